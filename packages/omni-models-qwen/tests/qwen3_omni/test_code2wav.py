from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.engine.light_runner import LightRunner
from omni_core.errors import ConfigError, RequestError
from omni_core.payload import decode_payload, encode_payload
from omni_core.runner import LightChunk, StageInput
from omni_core.stage import ResolvedStage

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("inference")]

FRAME, LACKING = 1920, 555
CLOSE = 1e-4


@pytest.fixture(scope="module")
def load(omni_stage: Callable[..., ResolvedStage]) -> Callable[..., Any]:
    """Return the stage's model over a checkpoint folder, with options of its edge."""
    from omni_models_qwen.qwen3_omni.code2wav import Qwen3OmniCode2Wav

    return lambda folder, **stream: Qwen3OmniCode2Wav.load(omni_stage(folder, 2, stream=stream))


@pytest.fixture(scope="module")
def model(load: Callable[..., Any], omni_folder: Path) -> Any:
    return load(omni_folder)


def codes(frames: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 2048, (frames, 16), dtype=np.int32)


def chunk(model: Any, state: Any = None, *, final: bool = False, **payload: Any) -> LightChunk:
    state = model.begin("r", {}) if state is None else state
    # Across a connector arrays come back read-only.
    return LightChunk("r", state, decode_payload(encode_payload(payload)), final)


def streamed(model: Any, frames: np.ndarray[Any, Any], sizes: list[int]) -> list[np.ndarray[Any, Any]]:
    """Return the audio of each window, decoded one after the other."""
    state, start, found = model.begin("r", {}), 0, []
    for size in sizes:
        part = chunk(model, state, codes=frames[start : start + size], windows=np.array([size]))
        found.append(model.step([part])[0]["audio"][:, 0])
        start += size
    return found


def test_a_whole_reply_becomes_the_references_audio(case: Any, load: Callable[..., Any]) -> None:
    stage = load(case.folder)

    found = stage.step([chunk(stage, codes=case.array("codes"), final=True)])[0]

    assert found["audio"].dtype == np.float32
    assert found["audio"].shape == (len(case.array("wav")), 1)
    assert np.abs(found["audio"][:, 0] - case.array("wav")).max() < CLOSE
    assert np.array_equal(found["codes"], case.array("codes"))


def test_windows_are_the_references_chunks_without_the_gaps_between_them(case: Any, load: Callable[..., Any]) -> None:
    frames, reference = case.array("codes"), case.array("wav_chunked_8_4")
    sizes = [min(8, len(frames) - start) for start in range(0, len(frames), 8)]

    windows = streamed(load(case.folder, codec_left_context_frames=4), frames, sizes)

    assert sum(map(len, windows)) == len(case.array("wav"))
    start = 0
    for number, (window, size) in enumerate(zip(windows, sizes, strict=True)):
        theirs = size * FRAME - LACKING
        assert len(window) == theirs + (LACKING if number else 0)
        assert np.abs(window[-theirs:] - reference[start : start + theirs]).max() < CLOSE
        start += theirs
    assert start == len(reference)


def test_with_all_frames_before_it_a_window_is_a_part_of_one_decode(model: Any) -> None:
    frames = codes(25)
    whole = model.step([chunk(model, codes=frames)])[0]["audio"][:, 0]

    found = np.concatenate(streamed(model, frames, [4, 10, 1, 1, 9]))

    assert len(found) == len(whole) == 25 * FRAME - LACKING
    assert np.abs(found - whole).max() < CLOSE


def test_windows_sound_alike_however_many_come_in_a_payload(model: Any) -> None:
    frames, sizes = codes(60, seed=1), [4, 25, 25, 6]
    one_by_one = np.concatenate(streamed(model, frames, sizes))
    state = model.begin("r", {})

    first = model.step([chunk(model, state, codes=frames[:29], windows=np.array([4, 25]))])[0]["audio"]
    rest = model.step([chunk(model, state, codes=frames[29:], windows=np.array([25, 6]), final=True)])[0]["audio"]

    assert np.array_equal(np.concatenate([first, rest])[:, 0], one_by_one)
    assert len(one_by_one) == 60 * FRAME - LACKING


def test_a_long_reply_is_decoded_in_the_references_windows_without_gaps(load: Callable[..., Any], omni_folder: Path) -> None:
    stage = load(omni_folder, codec_left_context_frames=25)
    frames = codes(310, seed=2)

    found = stage.step([chunk(stage, codes=frames, final=True)])[0]["audio"][:, 0]

    whole = stage.model.chunked_decode(torch.from_numpy(frames.astype(np.int64)).T[None], 300, 25)[0, 0].numpy()
    assert len(found) == len(whole) + LACKING == 310 * FRAME - LACKING
    cut = 300 * FRAME - LACKING
    assert np.abs(found[:cut] - whole[:cut]).max() < CLOSE
    assert np.abs(found[cut + LACKING :] - whole[cut:]).max() < CLOSE


def test_requests_in_one_step_sound_as_alone(model: Any) -> None:
    requests = [codes(12, seed) for seed in range(3)]
    alone = [streamed(model, frames, [4, 8]) for frames in requests]
    states = [model.begin(str(number), {}) for number in range(3)]

    for number, (start, end) in enumerate([(0, 4), (4, 12)]):
        parts = [
            chunk(model, state, codes=frames[start:end], windows=np.array([end - start]))
            for state, frames in zip(states, requests, strict=True)
        ]
        assert len({model.group(part) for part in parts}) == 1
        for found, wanted in zip(model.step(parts), alone, strict=True):
            assert np.abs(found["audio"][:, 0] - wanted[number]).max() < CLOSE


def test_chunks_with_other_windows_or_another_past_are_apart(model: Any) -> None:
    state = model.begin("r", {})
    model.step([chunk(model, state, codes=codes(4), windows=np.array([4]))])
    keys = {
        model.group(chunk(model, codes=codes(8), windows=np.array([8]))),
        model.group(chunk(model, codes=codes(8), windows=np.array([4, 4]))),
        model.group(chunk(model, state, codes=codes(8), windows=np.array([8]))),
    }

    assert len(keys) == 3


def test_an_end_without_frames_is_empty_audio(model: Any) -> None:
    found = model.step([chunk(model, codes=np.zeros((0, 16), np.int32), windows=np.zeros(0, np.int32), final=True)])[0]

    assert found["audio"].shape == (0, 1)
    assert model.step([chunk(model)]) == [{}]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"codes": codes(3)[:, :8]}, r"whole numbers \[frames, 16\]"),
        ({"codes": codes(3).astype(np.float32)}, "whole numbers"),
        ({"codes": codes(3) + 2048}, "codebooks have 2048 rows"),
        ({"codes": codes(3), "windows": np.array([2])}, r"windows of \[2\] frames do not divide 3"),
        ({"codes": codes(3), "windows": np.array([4, -1])}, "do not divide 3"),
    ],
    ids=["width", "floats", "control ids", "sum", "negative"],
)
def test_codes_that_cannot_be_used_are_refused_and_change_nothing(model: Any, payload: dict[str, Any], message: str) -> None:
    state = model.begin("r", {})
    part = chunk(model, state, **payload)

    def compute() -> None:
        model.group(part)
        model.step([part])

    with pytest.raises(RequestError, match=message):
        compute()

    assert len(state.context) == 0


def test_the_runner_joins_what_streams(load: Callable[..., Any], omni_folder: Path, omni_stage: Callable[..., Any]) -> None:
    """As in the stage's process: payloads of two requests, pushed one after the other."""
    stage = omni_stage(omni_folder, 2, stream={"codec_left_context_frames": 25})

    async def run() -> list[np.ndarray[Any, Any]]:
        runner = LightRunner(stage)
        await runner.start()

        async def hear(number: int) -> np.ndarray[Any, Any]:
            async def feed() -> None:
                await asyncio.sleep(0)
                for start, end in ((0, 4), (4, 20)):
                    part = {"codes": codes(20, number)[start:end], "windows": np.array([end - start])}
                    await runner.push(str(number), part, end == 20)

            feeding = asyncio.create_task(feed())
            outputs = [output async for output in runner.run(StageInput(str(number), {}, {}, streaming=True))]
            await feeding
            return np.concatenate([output.tensors["audio"] for output in outputs])

        try:
            return list(await asyncio.gather(hear(0), hear(1)))
        finally:
            await runner.stop()

    model = load(omni_folder)
    for number, found in enumerate(asyncio.run(run())):
        whole = model.step([chunk(model, codes=codes(20, number), final=True)])[0]["audio"]
        assert np.abs(found - whole).max() < CLOSE


def test_weights_go_to_the_host_and_back(model: Any) -> None:
    wanted = model.step([chunk(model, codes=codes(5))])[0]["audio"]

    model.sleep()
    model.wake()

    assert np.array_equal(model.step([chunk(model, codes=codes(5))])[0]["audio"], wanted)


def test_reloading_keeps_what_requests_remember(load: Callable[..., Any], omni_folder: Path, omni_stage: Any) -> None:
    stage = load(omni_folder)
    wanted = streamed(stage, codes(12), [4, 8])
    state = stage.begin("r", {})
    stage.step([chunk(stage, state, codes=codes(12)[:4], windows=np.array([4]))])

    stage.reload(omni_stage(omni_folder, 2))

    again = stage.step([chunk(stage, state, codes=codes(12)[4:], windows=np.array([8]))])[0]["audio"][:, 0]
    assert np.array_equal(again, wanted[1])


def test_a_checkpoint_without_the_decoder_is_an_error_that_names_a_tensor(
    load: Callable[..., Any], omni_folder: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copyfile(omni_folder / "config.json", tmp_path / "config.json")
    tensors = load_file(omni_folder / "model.safetensors")
    del tensors["code2wav.code_embedding.weight"]
    save_file(tensors, tmp_path / "model.safetensors")

    with pytest.raises(ConfigError, match=r"lacks the tensor code2wav\.code_embedding\.weight"):
        load(tmp_path)


def test_an_unknown_dtype_is_refused(omni_folder: Path, omni_stage: Callable[..., ResolvedStage]) -> None:
    from omni_models_qwen.qwen3_omni.code2wav import Qwen3OmniCode2Wav

    with pytest.raises(ConfigError, match="int8"):
        Qwen3OmniCode2Wav.load(omni_stage(omni_folder, 2, engine_args={"dtype": "int8"}))
