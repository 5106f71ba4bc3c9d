from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.engine.light_runner import LightRunner
from omni_core.errors import ConfigError, RequestError
from omni_core.payload import decode_payload, encode_payload
from omni_core.runner import LightChunk, StageInput
from omni_core.stage import ResolvedEdge, ResolvedStage
from omni_models_qwen.qwen3_tts.code2wav import Qwen3TTSCode2Wav
from omni_models_qwen.talking.decoding import allow_tf32

pytestmark = pytest.mark.engine

FRAME = 1920


@pytest.fixture(scope="module")
def model(tiny_base: Path, stage_of: Callable[..., ResolvedStage]) -> Qwen3TTSCode2Wav:
    return Qwen3TTSCode2Wav.load(stage_of(tiny_base, 1, engine_args={"dtype": "float32"}))


def codes(frames: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 2048, (frames, 16), dtype=np.int32)


def chunk(model: Qwen3TTSCode2Wav, state: Any = None, request_id: str = "r", **payload: Any) -> LightChunk:
    state = model.begin(request_id, {}) if state is None else state
    # Across a connector arrays come back read-only.
    return LightChunk(request_id, state, decode_payload(encode_payload(payload)), False)


def audio(model: Qwen3TTSCode2Wav, *chunks: LightChunk) -> list[np.ndarray[Any, Any]]:
    return [output["audio"] for output in model.step(chunks)]


@pytest.mark.usefixtures("inference")
def test_golden_codes_become_the_references_audio(case: Any, stage_of: Callable[..., ResolvedStage]) -> None:
    stage = Qwen3TTSCode2Wav.load(stage_of(case.folder, 1))
    reference = case.array("ref_codes")
    first = {} if reference is None else {"ref_codes": reference, "ref_total": len(reference)}
    state, made = stage.begin("r", {}), []

    for start in range(0, len(case.array("codes")), 5):
        part = chunk(stage, state, codes=case.array("codes")[start : start + 5], **first)
        made += audio(stage, part)
        first = {}

    found = np.concatenate(made)
    assert found.dtype == np.float32
    assert found.shape == (len(case.array("wav")), 1)
    assert np.abs(found[:, 0] - case.array("wav")).max() < 1e-4


def test_output_is_described(model: Qwen3TTSCode2Wav) -> None:
    assert (model.sample_rate, model.channels) == (24000, 1)


def test_chunks_of_one_size_form_a_group(model: Qwen3TTSCode2Wav) -> None:
    keys = [
        model.group(chunk(model, codes=codes(4))),
        model.group(chunk(model, codes=codes(4, seed=1))),
        model.group(chunk(model, codes=codes(5))),
        model.group(chunk(model, codes=codes(4), ref_codes=codes(3), ref_total=9)),
        model.group(chunk(model)),
    ]

    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


def test_a_group_gives_what_each_gives_alone(model: Qwen3TTSCode2Wav) -> None:
    parts = [{"codes": codes(6, seed), "ref_codes": codes(8, seed + 10)} for seed in range(3)]

    together = audio(model, *(chunk(model, **part) for part in parts))

    for part, found in zip(parts, together, strict=True):
        (alone,) = audio(model, chunk(model, **part))
        np.testing.assert_allclose(found, alone, atol=1e-5)


def test_reference_is_heard_and_left_out(model: Qwen3TTSCode2Wav) -> None:
    (whole,) = audio(model, chunk(model, codes=np.concatenate((codes(20, 1), codes(3)))))

    (found,) = audio(model, chunk(model, codes=codes(3), ref_codes=codes(20, 1), ref_total=20))

    np.testing.assert_allclose(found, whole[20 * FRAME :], atol=1e-5)


@pytest.mark.parametrize("payload", [{}, {"codes": codes(0)}, {"codes": np.zeros((0, 16), np.int32)}])
def test_a_last_payload_may_be_empty(model: Qwen3TTSCode2Wav, payload: dict[str, Any]) -> None:
    (found,) = audio(model, chunk(model, **payload))

    assert found.shape == (0, 1)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"codes": np.full((2, 16), 2048)}, "codes holds ids from 2048 to 2048, but the codebooks have 2048 rows"),
        ({"codes": np.full((2, 16), -1)}, "codes holds ids from -1 to -1"),
        ({"codes": codes(2)[:, :8]}, r"codes must be whole numbers \[frames, 16\], not int32 \[2, 8\]"),
        ({"codes": np.zeros((2, 16), np.float32)}, "not float32"),
        ({"codes": np.zeros(16, np.int32)}, r"not int32 \[16\]"),
        ({"codes": 7}, r"not int64 \[1\]"),
        ({"codes": codes(2), "ref_codes": np.full((1, 16), 4096)}, "ref_codes holds ids from 4096"),
    ],
    ids=["too large", "negative", "too few", "floats", "one row", "one number", "reference"],
)
def test_codes_that_cannot_be_are_refused(model: Qwen3TTSCode2Wav, payload: dict[str, Any], message: str) -> None:
    good, bad = chunk(model, codes=codes(2), request_id="good"), chunk(model, request_id="bad", **payload)

    model.group(bad)
    with pytest.raises(RequestError, match=message) as error:
        model.step([good, bad])

    assert error.value.where == "request bad"
    assert good.state.frames == bad.state.frames == 0


def test_a_reference_after_the_first_frames_is_refused(model: Qwen3TTSCode2Wav) -> None:
    first = chunk(model, codes=codes(2))
    audio(model, first)

    with pytest.raises(RequestError, match="ref_codes came after the first frames"):
        audio(model, chunk(model, first.state, codes=codes(2), ref_codes=codes(2)))


def test_a_checkpoint_without_a_codec_is_named(tmp_path: Path, stage_of: Callable[..., ResolvedStage]) -> None:
    with pytest.raises(ConfigError, match=r"cannot read config\.json") as error:
        Qwen3TTSCode2Wav.load(stage_of(tmp_path, 1))

    assert error.value.where == str(tmp_path / "speech_tokenizer" / "config.json")


def test_a_codec_cut_short_is_named(tiny_base: Path, tmp_path: Path, stage_of: Callable[..., ResolvedStage]) -> None:
    codec = tmp_path / "speech_tokenizer"
    codec.mkdir()
    (codec / "config.json").symlink_to(tiny_base / "speech_tokenizer" / "config.json")
    weights = (tiny_base / "speech_tokenizer" / "model.safetensors").read_bytes()
    (codec / "model.safetensors").write_bytes(weights[: len(weights) // 2])

    with pytest.raises(ConfigError, match=r"model\.safetensors is cut short or damaged") as error:
        Qwen3TTSCode2Wav.load(stage_of(tmp_path, 1))

    assert error.value.where == str(codec / "model.safetensors")


def test_an_unknown_dtype_is_refused(tiny_base: Path, stage_of: Callable[..., ResolvedStage]) -> None:
    with pytest.raises(ConfigError, match="cannot use dtype 'int8'"):
        Qwen3TTSCode2Wav.load(stage_of(tiny_base, 1, engine_args={"dtype": "int8"}))


def test_requests_share_the_light_runners_steps(tiny_base: Path, stage_of: Callable[..., ResolvedStage]) -> None:
    target = "omni_models_qwen.qwen3_tts.code2wav:Qwen3TTSCode2Wav"
    stage = stage_of(tiny_base, 1, architecture_target=target)

    async def speak(runner: LightRunner, seed: int) -> np.ndarray[Any, Any]:
        name = f"r{seed}"

        async def feed() -> None:
            for start in (0, 4, 8):
                await runner.push(name, {"codes": codes(12, seed)[start : start + 4]}, start == 8)

        pieces = runner.run(StageInput(name, {}, {}, streaming=True))
        first = asyncio.ensure_future(anext(pieces))
        await asyncio.sleep(0)  # the runner knows the request once its iterator has begun
        feeding = asyncio.create_task(feed())
        found = [await first, *[piece async for piece in pieces]]
        await feeding
        return np.concatenate([piece.tensors["audio"] for piece in found])

    async def scenario() -> tuple[Any, list[np.ndarray[Any, Any]]]:
        runner = LightRunner(stage)
        try:
            facts = await runner.start()
            async with asyncio.timeout(60):
                return facts, list(await asyncio.gather(*(speak(runner, seed) for seed in range(3))))
        finally:
            await runner.stop()

    facts, spoken = asyncio.run(scenario())

    model = Qwen3TTSCode2Wav.load(stage)
    assert facts == {"sample_rate": 24000, "channels": 1}
    for seed, found in enumerate(spoken):
        (alone,) = audio(model, chunk(model, codes=codes(12, seed)))
        np.testing.assert_allclose(found, alone, atol=1e-5)


def test_the_codes_of_the_audio_come_with_it(model: Qwen3TTSCode2Wav) -> None:
    (output,) = model.step([chunk(model, codes=codes(3), ref_codes=codes(2, 1))])

    assert output["codes"].dtype == np.int32
    np.testing.assert_array_equal(output["codes"], codes(3))


def test_audio_that_came_with_the_first_frames_is_passed_on_and_primes_the_state(model: Qwen3TTSCode2Wav) -> None:
    """TT-10: nothing doubled, nothing lost; the audio after it is that of a request which brought none."""
    frame, later = codes(1), codes(5, 7)
    regular = chunk(model, codes=frame)
    expected = [*audio(model, regular), *audio(model, chunk(model, regular.state, codes=later))]
    marked = chunk(model, codes=frame, audio=expected[0])

    ready = model.ready(marked.payload)
    (primed,) = model.step([marked])
    (after,) = audio(model, chunk(model, marked.state, codes=later))

    assert ready is not None
    np.testing.assert_array_equal(ready["audio"], expected[0])
    np.testing.assert_array_equal(ready["codes"], frame)
    assert primed == {}
    np.testing.assert_allclose(after, expected[1], atol=1e-6)
    assert marked.state.frames == 6


def test_frames_beside_the_one_that_has_audio_are_decoded(model: Qwen3TTSCode2Wav) -> None:
    (whole,) = audio(model, chunk(model, codes=codes(4)))
    marked = chunk(model, codes=codes(4), audio=whole[:FRAME])

    (output,) = model.step([marked])

    np.testing.assert_allclose(output["audio"], whole[FRAME:], atol=1e-5)
    np.testing.assert_array_equal(output["codes"], codes(4)[1:])


def test_request_without_the_marker_is_decoded_whole_in_the_same_stage(model: Qwen3TTSCode2Wav) -> None:
    """TT-10: the option alone suppresses nothing; chunks with and without the marker are no group."""
    regular = chunk(model, codes=codes(1))
    marked = chunk(model, codes=codes(1), audio=np.zeros((FRAME, 1), np.float32))

    assert model.ready(regular.payload) is None
    assert model.group(regular) != model.group(marked)
    (found,) = audio(model, regular)
    assert found.shape == (FRAME, 1)


@pytest.mark.parametrize(
    "sound",
    [
        np.zeros((FRAME + 1, 1), np.float32),
        np.zeros((2 * FRAME, 1), np.float32),
        np.zeros((FRAME, 2), np.float32),
        np.zeros((FRAME, 1), np.float64),
        np.zeros((0, 1), np.float32),
        7,
    ],
    ids=["cut", "too many frames", "stereo", "float64", "nothing", "no array"],
)
def test_audio_that_is_not_of_these_frames_is_refused_and_not_passed_on(model: Qwen3TTSCode2Wav, sound: Any) -> None:
    bad = chunk(model, codes=codes(1), audio=sound)

    assert model.ready(bad.payload) is None
    with pytest.raises(RequestError, match="audio is not float32") as error:
        model.step([bad])
    assert error.value.where == "request r"
    assert bad.state.frames == 0


def test_audio_in_a_later_payload_or_with_a_reference_is_refused(model: Qwen3TTSCode2Wav) -> None:
    sound = np.zeros((FRAME, 1), np.float32)
    begun = chunk(model, codes=codes(1))
    audio(model, begun)

    with pytest.raises(RequestError, match="audio came after the first frames"):
        model.step([chunk(model, begun.state, codes=codes(1), audio=sound)])
    with pytest.raises(RequestError, match="audio came with ref_codes"):
        model.step([chunk(model, codes=codes(1), ref_codes=codes(2), audio=sound)])


def test_options_of_the_edge_bound_the_batch(tiny_base: Path, stage_of: Callable[..., ResolvedStage]) -> None:
    """TT-16."""
    edge = ResolvedEdge(0, 1, "shm", "m:C", stream={"decode_batch_max_size": 4})

    assert Qwen3TTSCode2Wav.load(stage_of(tiny_base, 1, inputs=(edge,))).max_batch == 4
    assert Qwen3TTSCode2Wav.load(stage_of(tiny_base, 1)).max_batch == 0


def test_first_frames_have_their_own_queue_unless_the_single_stage_says_otherwise(
    tiny_base: Path, stage_of: Callable[..., ResolvedStage]
) -> None:
    """TT-05."""
    for own, expected in (
        ({}, True),
        ({"talker_stream_first_audio": True}, True),
        ({"talker_stream_first_audio": False}, False),
    ):
        stage = stage_of(tiny_base, 1, engine_args={"additional_config": own})

        assert Qwen3TTSCode2Wav.load(stage).firsts_first is expected


@pytest.fixture
def tf32() -> Iterator[Any]:
    """The switches of torch, as they were afterwards."""
    import torch

    switches = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [switch.allow_tf32 for switch in switches]
    yield switches
    for switch, value in zip(switches, before, strict=True):
        switch.allow_tf32 = value


@pytest.mark.parametrize("allowed", [True, False])
def test_tf32_is_a_switch(allowed: bool, tf32: Any) -> None:
    """TT-16: decode_enable_tf32."""
    for switch in tf32:
        switch.allow_tf32 = not allowed

    allow_tf32(allowed)

    assert [switch.allow_tf32 for switch in tf32] == [allowed, allowed]


@pytest.mark.usefixtures("inference")
def test_weights_that_are_read_again_are_those_of_the_checkpoint_then(
    tiny_base: Path, tmp_path: Path, stage_of: Callable[..., ResolvedStage]
) -> None:
    from safetensors.numpy import load_file, save_file

    folder = shutil.copytree(tiny_base, tmp_path / "model")
    stage = stage_of(folder, 1)
    served = Qwen3TTSCode2Wav.load(stage)
    state = served.begin("r", {})
    (before,) = audio(served, chunk(served, state, codes=codes(3)))

    served.reload(stage)
    (same,) = audio(served, chunk(served, codes=codes(3)))
    weights = load_file(folder / "speech_tokenizer" / "model.safetensors")
    name = "decoder.pre_conv.conv.weight"
    save_file({**weights, name: weights[name] * 2}, tmp_path / "changed")
    (tmp_path / "changed").rename(folder / "speech_tokenizer" / "model.safetensors")
    served.reload(stage)
    (changed,) = audio(served, chunk(served, codes=codes(3)))
    (later,) = audio(served, chunk(served, state, codes=codes(3, seed=1)))

    (fresh,) = audio(model := Qwen3TTSCode2Wav.load(stage), chunk(model, codes=codes(3)))
    assert np.array_equal(same, before)
    assert np.array_equal(changed, fresh)
    assert not np.array_equal(changed, before)
    assert later.shape == (3 * FRAME, 1)


@pytest.mark.usefixtures("inference")
def test_a_model_that_has_slept_goes_on_with_its_requests(model: Qwen3TTSCode2Wav) -> None:
    whole = np.concatenate([audio(model, chunk(model, codes=codes(6)))[0]])
    state = model.begin("r", {})
    (first,) = audio(model, chunk(model, state, codes=codes(6)[:3]))

    model.sleep()
    model.wake()

    (second,) = audio(model, chunk(model, state, codes=codes(6)[3:]))
    assert np.abs(np.concatenate([first, second]) - whole).max() < 1e-5
