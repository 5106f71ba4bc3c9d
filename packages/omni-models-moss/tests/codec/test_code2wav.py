from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omni_core.engine.light_dispatch import DispatchGate
from omni_core.engine.light_runner import LightRunner
from omni_core.errors import ConfigError, RequestError
from omni_core.payload import decode_payload, encode_payload
from omni_core.runner import LightChunk, StageInput
from omni_core.stage import ResolvedStage
from omni_models_moss.code2wav import MossTTSCodecDecoder
from omni_models_moss.codec.tiny import write_codec

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("inference")]

FRAME = 3840
Array = np.ndarray[Any, Any]
StageOf = Callable[..., ResolvedStage]


@pytest.fixture(scope="module")
def model(tiny_codec: Path, stage_of: StageOf) -> MossTTSCodecDecoder:
    return MossTTSCodecDecoder.load(stage_of(tiny_codec, engine_args={"dtype": "float32"}))


def codes(frames: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 1024, (frames, 12), dtype=np.int32)


def chunk(model: MossTTSCodecDecoder, state: Any = None, request_id: str = "r", **payload: Any) -> LightChunk:
    state = model.begin(request_id, {}) if state is None else state
    # Across a connector arrays come back read-only.
    return LightChunk(request_id, state, decode_payload(encode_payload(payload)), False)


def audio(model: MossTTSCodecDecoder, *chunks: LightChunk) -> list[Array]:
    return [output["audio"] for output in model.step(chunks)]


def test_golden_codes_become_the_references_audio(case: Any, stage_of: StageOf) -> None:
    stage = stage_of(case.folder)
    model = MossTTSCodecDecoder.load(stage)
    first = {"ref_codes": case.array("ref_codes")} if case.continues else {}
    state, made = model.begin("r", {}), []

    sent = 0
    while sent < len(case.array("codes")):
        size = 15 if sent else 1
        made += audio(model, chunk(model, state, codes=case.array("codes")[sent : sent + size], **first))
        first, sent = {}, sent + size

    found = np.concatenate(made)
    assert found.dtype == np.float32
    assert found.shape == (case.array("wav").shape[1], 2)
    assert np.abs(found.T - case.array("wav")).max() < 1e-5


def test_output_is_described(model: MossTTSCodecDecoder) -> None:
    assert (model.sample_rate, model.channels) == (48000, 2)


def test_dispatch_options_of_the_edge_become_the_models(tiny_codec: Path, stage_of: StageOf) -> None:
    """MO-02."""
    options = {"codec_dispatch_max_rows": 16, "codec_dispatch_max_wait_ms": 6, "codec_chunk_frames": 15}
    stage = stage_of(tiny_codec, options=options)

    assert DispatchGate.of(MossTTSCodecDecoder.load(stage), stage, 128) == DispatchGate(16, 0.006)
    assert DispatchGate.of(MossTTSCodecDecoder.load(stage_of(tiny_codec)), stage, 128) == DispatchGate(1, 0.0)


def test_settings_of_other_codecs_are_said_to_have_no_effect(
    tiny_codec: Path, stage_of: StageOf, caplog: pytest.LogCaptureFixture
) -> None:
    """MO-02 has both."""
    args = {"hf_overrides": {"codec_attention_backend": "triton_slot"}, "compilation_config": {"backend": "inductor"}}

    with caplog.at_level(logging.INFO, "omni_models_moss"):
        MossTTSCodecDecoder.load(stage_of(tiny_codec))
        assert not caplog.messages
        MossTTSCodecDecoder.load(stage_of(tiny_codec, engine_args=args))

    (said,) = caplog.messages
    assert "codec_attention_backend, compilation_config: no effect on this codec" in said


def test_chunks_of_one_size_form_a_group(model: MossTTSCodecDecoder) -> None:
    keys = [
        model.group(chunk(model, codes=codes(4))),
        model.group(chunk(model, codes=codes(4, seed=1))),
        model.group(chunk(model, codes=codes(5))),
        model.group(chunk(model, codes=codes(4)[:, :8])),
        model.group(chunk(model, codes=codes(4), ref_codes=codes(3))),
        model.group(chunk(model)),
    ]

    assert keys[0] == keys[1]
    assert len(set(keys)) == 5


def test_a_group_gives_what_each_gives_alone(model: MossTTSCodecDecoder) -> None:
    parts: list[dict[str, Any]] = [{"codes": codes(6, seed), "ref_codes": codes(20, seed + 10)} for seed in range(3)]

    together = audio(model, *(chunk(model, **part) for part in parts))

    for part, found in zip(parts, together, strict=True):
        (alone,) = audio(model, chunk(model, **part))
        np.testing.assert_allclose(found, alone, atol=1e-5)


def test_codes_are_passed_on_to_be_looked_at(model: MossTTSCodecDecoder) -> None:
    (output,) = model.step([chunk(model, codes=codes(3))])

    np.testing.assert_array_equal(output["codes"], codes(3))


@pytest.mark.parametrize("payload", [{}, {"codes": codes(0)}, {"codes": np.zeros((0, 12), np.int32)}])
def test_a_last_payload_may_be_empty(model: MossTTSCodecDecoder, payload: dict[str, Any]) -> None:
    (found,) = audio(model, chunk(model, **payload))

    assert found.shape == (0, 2)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"codes": np.full((2, 12), 1024)}, "codes holds ids from 1024 to 1024, but the codebooks have 1024 rows"),
        ({"codes": np.full((2, 12), -1)}, "codes holds ids from -1 to -1"),
        ({"codes": np.zeros((2, 13), int)}, r"codes must be whole numbers \[frames, 12 or fewer\], not int64 \[2, 13\]"),
        ({"codes": np.zeros((2, 12), np.float32)}, "not float32"),
        ({"codes": np.zeros(12, np.int32)}, r"not int32 \[12\]"),
        ({"codes": 7}, r"not int64 \[1\]"),
        ({"codes": codes(2), "ref_codes": np.full((1, 12), 4096)}, "ref_codes holds ids from 4096"),
    ],
    ids=["pad", "negative", "too many", "floats", "one row", "one number", "reference"],
)
def test_codes_that_cannot_be_are_refused(model: MossTTSCodecDecoder, payload: dict[str, Any], message: str) -> None:
    good, bad = chunk(model, codes=codes(2), request_id="good"), chunk(model, request_id="bad", **payload)

    model.group(bad)
    with pytest.raises(RequestError, match=message) as error:
        model.step([good, bad])

    assert error.value.where == "request bad"
    assert good.state.frames == bad.state.frames == 0


def test_a_reference_after_the_first_frames_is_refused(model: MossTTSCodecDecoder) -> None:
    first = chunk(model, codes=codes(2))
    audio(model, first)

    with pytest.raises(RequestError, match="ref_codes came after the first frames"):
        audio(model, chunk(model, first.state, codes=codes(2), ref_codes=codes(2)))


def test_new_weights_go_on_with_the_streams(tmp_path: Path, stage_of: StageOf) -> None:
    write_codec(tmp_path, 1)
    model = MossTTSCodecDecoder.load(stage_of(tmp_path))
    state = model.begin("r", {})
    before = np.concatenate(
        [*audio(model, chunk(model, state, codes=codes(4))), *audio(model, chunk(model, state, codes=codes(4)))]
    )
    write_codec(tmp_path, 1)

    state = model.begin("s", {})
    first = audio(model, chunk(model, state, codes=codes(4)))
    model.reload(stage_of(tmp_path))
    second = audio(model, chunk(model, state, codes=codes(4)))

    np.testing.assert_allclose(np.concatenate([*first, *second]), before, atol=1e-5)
    write_codec(tmp_path, 2)
    model.reload(stage_of(tmp_path))
    (other,) = audio(model, chunk(model, codes=codes(4)))
    assert np.abs(other - before[: 4 * FRAME]).max() > 0.01


def test_a_model_that_has_slept_goes_on_with_its_streams(model: MossTTSCodecDecoder) -> None:
    (whole,) = audio(model, chunk(model, codes=codes(6)))
    state = model.begin("r", {})
    (first,) = audio(model, chunk(model, state, codes=codes(6)[:3]))

    model.sleep()
    model.wake()

    (second,) = audio(model, chunk(model, state, codes=codes(6)[3:]))
    np.testing.assert_allclose(np.concatenate([first, second]), whole, atol=1e-5)


def test_sleeping_moves_every_weight_and_no_stream(tiny_codec: Path, stage_of: StageOf) -> None:
    """On the device `meta`, where nothing can be computed, what has not moved is seen."""
    model = MossTTSCodecDecoder.load(stage_of(tiny_codec))
    state = model.begin("r", {})
    audio(model, chunk(model, state, codes=codes(2)))

    model.decoder.move(torch.device("meta"))

    weights = [tensor for tensor in _tensors(model.decoder) if not any(tensor is layer for layer in _memory(model))]
    assert len(weights) > 20
    assert {tensor.device.type for tensor in weights} == {"meta"}
    assert {layer.device.type for layer in _memory(model)} == {"cpu"}


def _memory(model: MossTTSCodecDecoder) -> list[torch.Tensor]:
    return model.decoder._stack.memory._layers


def _tensors(found: Any) -> list[torch.Tensor]:
    """Return every tensor that an object of the codec holds."""
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, (list, tuple)):
        return [tensor for item in found for tensor in _tensors(item)]
    if type(found).__module__.startswith("omni_models_moss"):
        return [tensor for item in vars(found).values() for tensor in _tensors(item)]
    return []


def test_a_codec_of_other_sizes_does_not_take_over(tmp_path: Path, stage_of: StageOf) -> None:
    write_codec(tmp_path, 1)
    model = MossTTSCodecDecoder.load(stage_of(tmp_path))
    running = model.decoder
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config["decoder_kwargs"][0]["context_duration"] = 4.0
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")

    with pytest.raises(ConfigError, match="other sizes"):
        model.reload(stage_of(tmp_path))

    assert model.decoder is running


@pytest.mark.parametrize(
    ("asked", "declared", "expected"),
    [(None, "bf16", torch.bfloat16), ("auto", None, torch.float32), ("float32", "bf16", torch.float32)],
)
def test_the_dtype_is_the_stages_or_the_checkpoints(
    asked: str | None, declared: str | None, expected: torch.dtype, tmp_path: Path, stage_of: StageOf
) -> None:
    write_codec(tmp_path, 1)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "compute_dtype": declared}), encoding="utf-8")

    model = MossTTSCodecDecoder.load(stage_of(tmp_path, engine_args={"dtype": asked} if asked else {}))

    assert model.decoder._placement.dtype is expected
    assert audio(model, chunk(model, codes=codes(1)))[0].dtype == np.float32


def test_an_unknown_dtype_is_refused(tiny_codec: Path, stage_of: StageOf) -> None:
    with pytest.raises(ConfigError, match="cannot use dtype 'int8'"):
        MossTTSCodecDecoder.load(stage_of(tiny_codec, engine_args={"dtype": "int8"}))


def test_a_codec_cut_short_is_named(tiny_codec: Path, tmp_path: Path, stage_of: StageOf) -> None:
    (tmp_path / "config.json").symlink_to(tiny_codec / "config.json")
    weights = (tiny_codec / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])

    with pytest.raises(ConfigError, match=r"model\.safetensors is cut short or damaged") as error:
        MossTTSCodecDecoder.load(stage_of(tmp_path))

    assert error.value.where == str(tmp_path / "model.safetensors")


def test_requests_share_the_light_runners_steps_and_give_their_memory_back(tiny_codec: Path, stage_of: StageOf) -> None:
    async def speak(runner: LightRunner, name: str, seed: int) -> Array:
        outputs = []

        async def collect() -> None:
            async for output in runner.run(StageInput(name, {}, {}, streaming=True)):
                outputs.append(output.tensors["audio"])  # noqa: PERF401 - kept when it fails half-way

        task = asyncio.create_task(collect())
        await asyncio.sleep(0)
        for begin, end in ((0, 1), (1, 16), (16, 20)):
            await runner.push(name, {"codes": codes(20, seed)[begin:end]}, end == 20)
        await task
        return np.concatenate(outputs)

    async def all_at_once() -> tuple[list[Array], MossTTSCodecDecoder]:
        runner = LightRunner(stage_of(tiny_codec))
        facts = await runner.start()
        assert facts == {"sample_rate": 48000, "channels": 2}
        spoken = await asyncio.gather(*(speak(runner, f"r{seed}", seed) for seed in range(5)))
        await runner.stop()
        assert isinstance(runner.model, MossTTSCodecDecoder)
        return spoken, runner.model

    made, model = asyncio.run(all_at_once())

    assert model.decoder._stack.memory.open_streams == 0
    for seed, found in enumerate(made):
        (expected,) = audio(model, chunk(model, codes=codes(20, seed)))
        np.testing.assert_allclose(found, expected, atol=1e-5)
