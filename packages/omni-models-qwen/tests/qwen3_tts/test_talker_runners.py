"""The joined runners of talkers that make audio, with a scripted talker and decoder: order, ends, faults, operators' calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.engine.light_runner import LightRunner
from omni_core.errors import RequestError, ServiceError, StageDeadError, UnsupportedError
from omni_core.payload import Payload
from omni_core.runner import StageInput, StageOutput, StageRunner
from omni_core.stage import ResolvedEdge, ResolvedPipeline, ResolvedStage
from omni_models_qwen.qwen3_tts.handoff import CODES, FIRST_AUDIO

pytestmark = [pytest.mark.engine, pytest.mark.anyio]

FRAME = 4
"""Samples that the scripted decoder makes of a frame."""


def frames(start: int, count: int) -> np.ndarray[Any, Any]:
    return np.arange(start, start + count, dtype=np.int32)[:, None].repeat(16, axis=1)


class Parts(StageRunner):
    """What both scripted runners have: a log of what was asked of them."""

    def __init__(self, stage: ResolvedStage, refuses: str = "") -> None:
        super().__init__(stage)
        self.log: list[Any] = []
        self.refuses = refuses
        self.answer = True
        self.dead = False

    async def start(self) -> Mapping[str, Any]:
        self.log.append("start")
        return {"sample_rate": 24000, "who": type(self).__name__}

    async def stop(self) -> None:
        self.log.append("stop")

    async def push(self, request_id: str, payload: Payload, final: bool) -> None:
        self.log.append("push")

    async def abort(self, request_id: str) -> None:
        self.log.append(f"abort {request_id}")

    async def check(self) -> None:
        if self.dead:
            raise StageDeadError("gone")

    def load(self) -> Mapping[str, int]:
        return {"held": 1}

    async def call(self, method: str, arguments: Mapping[str, Any]) -> Any:
        if method == self.refuses:
            raise UnsupportedError("no")
        self.log.append(method)
        return self.answer


class Talker(Parts):
    """Make frames 0, 1, 2 ... in outputs of the given sizes, and end."""

    def __init__(self, stage: ResolvedStage, script: list[int], *, fault: Exception | None = None, **handoff: Any) -> None:
        super().__init__(stage)
        self.script = script
        self.fault = fault
        self.handoff = {"num_codes": 16, "ref_codes": None, **handoff}
        self.ended = asyncio.Event()

    async def run(self, request: StageInput) -> AsyncIterator[StageOutput]:
        made, handoff = 0, self.handoff
        try:
            for count in self.script:
                yield StageOutput(tensors={CODES: frames(made, count)} if count else {}, handoff=handoff)
                made, handoff = made + count, {}
                await asyncio.sleep(0)
            if self.fault is not None:
                raise self.fault
            yield StageOutput(finished=True, finish_reason="length", metrics={"generated_tokens": made}, handoff=handoff)
        finally:
            self.ended.set()


class Codec(Parts):
    """Make FRAME samples of each frame, with the value of its code 0."""

    def __init__(self, stage: ResolvedStage, fault: Exception | None = None) -> None:
        super().__init__(stage)
        self.fault = fault
        self.queues: dict[str, asyncio.Queue[tuple[Payload, bool] | None]] = {}
        self.payloads: list[Payload] = []

    async def run(self, request: StageInput) -> AsyncIterator[StageOutput]:
        queue = self.queues[request.request_id] = asyncio.Queue()
        if request.inputs:
            queue.put_nowait((request.inputs, True))
        try:
            while (item := await queue.get()) is not None:
                if self.fault is not None:
                    raise self.fault
                payload, final = item
                self.payloads.append(payload)
                audio = payload["codes"][:, :1].repeat(FRAME, axis=0).astype(np.float32)
                yield StageOutput(tensors={"audio": audio, "codes": payload["codes"]}, finished=final)
        finally:
            self.queues.pop(request.request_id, None)

    async def push(self, request_id: str, payload: Payload, final: bool) -> None:
        if (queue := self.queues.get(request_id)) is not None:
            queue.put_nowait((payload, final))

    async def abort(self, request_id: str) -> None:
        await super().abort(request_id)
        if (queue := self.queues.get(request_id)) is not None:
            queue.put_nowait(None)


@pytest.fixture
def stage(data_folder: Path, stage_of: Callable[..., ResolvedStage]) -> ResolvedStage:
    own = {"talker_stream_decode": True, "talker_stream_first_audio": True, "ref_code_context_frames": 3}
    return stage_of(data_folder, engine_args={"additional_config": own})


def fused(stage: ResolvedStage, talker: Talker, codec: Codec) -> Any:
    from omni_models_qwen.qwen3_tts.talker_runners import FusedRunner

    return FusedRunner(stage, talker=talker, codec=codec)


def first(stage: ResolvedStage, talker: Talker, codec: Codec) -> Any:
    from omni_models_qwen.qwen3_tts.talker_runners import FirstAudioRunner

    return FirstAudioRunner(stage, talker=talker, codec=codec)


async def collect(runner: StageRunner) -> list[StageOutput]:
    async with asyncio.timeout(10):
        return [output async for output in runner.run(StageInput("r", {}, {}))]


async def test_single_stage_yields_audio_in_order_and_ends_as_the_talker_did(stage: ResolvedStage) -> None:
    """TT-02."""
    talker, codec = Talker(stage, [1] * 30), Codec(stage)

    outputs = await collect(fused(stage, talker, codec))

    heard = np.concatenate([output.tensors["audio"] for output in outputs])
    assert heard[:, 0].tolist() == np.arange(30).repeat(FRAME).tolist()
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert (outputs[-1].finish_reason, outputs[-1].metrics) == ("length", {"generated_tokens": 30})
    assert [len(payload["codes"]) for payload in codec.payloads] == [1, 25, 4]


async def test_single_stage_keeps_the_end_of_a_reference(stage: ResolvedStage) -> None:
    """TT-08: ref_code_context_frames."""
    talker, codec = Talker(stage, [1, 1], ref_codes=frames(100, 9)), Codec(stage)

    await collect(fused(stage, talker, codec))

    assert codec.payloads[0]["ref_codes"][:, 0].tolist() == [106, 107, 108]
    assert all("ref_codes" not in payload for payload in codec.payloads[1:])


async def test_request_without_a_frame_ends(stage: ResolvedStage) -> None:
    (output,) = await collect(fused(stage, Talker(stage, []), Codec(stage)))

    assert (output.tensors["audio"].shape, output.finished, output.finish_reason) == ((0, 1), True, "length")


@pytest.mark.parametrize("script", [[], [1, 1]], ids=["at once", "after audio"])
async def test_fault_of_the_talker_is_the_requests(stage: ResolvedStage, script: list[int]) -> None:
    talker, codec = Talker(stage, script, fault=RequestError("too long", param="input")), Codec(stage)

    with pytest.raises(RequestError, match="too long"):
        await collect(fused(stage, talker, codec))

    assert codec.queues == {}


async def test_fault_of_the_decoder_ends_the_talkers_request(stage: ResolvedStage) -> None:
    talker, codec = Talker(stage, [1] * 2000), Codec(stage, fault=ServiceError("broken"))

    with pytest.raises(ServiceError, match="broken"):
        await collect(fused(stage, talker, codec))

    assert talker.ended.is_set()


async def test_closing_the_iterator_ends_both(stage: ResolvedStage) -> None:
    talker, codec = Talker(stage, [1] * 2000), Codec(stage)
    outputs = fused(stage, talker, codec).run(StageInput("r", {}, {}))
    await anext(outputs)

    await outputs.aclose()

    assert talker.ended.is_set()
    assert codec.queues == {}


async def test_abort_reaches_both(stage: ResolvedStage) -> None:
    talker, codec = Talker(stage, []), Codec(stage)

    await fused(stage, talker, codec).abort("r")

    assert (talker.log, codec.log) == (["abort r"], ["abort r"])


async def test_first_frame_brings_its_audio_and_no_other_does(stage: ResolvedStage) -> None:
    """TT-09."""
    talker, codec = Talker(stage, [0, 1, 2]), Codec(stage)

    outputs = await collect(first(stage, talker, codec))

    assert [output.tensors.get(FIRST_AUDIO) is not None for output in outputs] == [False, True, False, False]
    assert outputs[1].tensors[FIRST_AUDIO][:, 0].tolist() == [0.0] * FRAME
    assert len(codec.payloads) == 1


async def test_of_frames_that_come_together_the_first_is_decoded(stage: ResolvedStage) -> None:
    outputs = await collect(first(stage, Talker(stage, [3]), Codec(stage)))

    assert len(outputs[0].tensors[FIRST_AUDIO]) == FRAME
    assert len(outputs[0].tensors[CODES]) == 3


async def test_request_with_reference_codes_is_left_to_code2wav(stage: ResolvedStage) -> None:
    """TT-11."""
    codec = Codec(stage)

    outputs = await collect(first(stage, Talker(stage, [1, 1], ref_codes=frames(0, 2)), codec))

    assert all(FIRST_AUDIO not in output.tensors for output in outputs)
    assert codec.payloads == []


async def test_facts_are_those_of_what_the_stage_makes(stage: ResolvedStage) -> None:
    assert await fused(stage, Talker(stage, []), Codec(stage)).start() == {"sample_rate": 24000, "who": "Talker"}
    assert await first(stage, Talker(stage, []), Codec(stage)).start() == {"sample_rate": 24000, "who": "Talker"}


async def test_both_are_checked_counted_and_stopped(stage: ResolvedStage) -> None:
    talker, codec = Talker(stage, []), Codec(stage)
    runner = fused(stage, talker, codec)

    await runner.check()
    assert runner.load() == {"held": 1, "codec_held": 1}
    codec.dead = True
    with pytest.raises(StageDeadError):
        await runner.check()
    await runner.stop()

    assert (talker.log, codec.log) == (["stop"], ["stop"])


async def test_operators_calls_reach_the_decoder_where_they_concern_it(stage: ResolvedStage) -> None:
    talker, codec = Talker(stage, []), Codec(stage)
    runner = fused(stage, talker, codec)

    for method in ("pause", "reload_weights", "sleep", "wake_up", "resume"):
        await runner.call(method, {})

    assert talker.log == ["pause", "reload_weights", "sleep", "wake_up", "resume"]
    assert codec.log == ["reload_weights", "sleep", "wake_up"]


async def test_prefix_cache_of_the_single_stage_is_not_reset_under_running_requests(
    stage: ResolvedStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TT-07."""
    talker = Talker(stage, [])
    runner = fused(stage, talker, Codec(stage))

    assert await runner.call("reset_prefix_cache", {"reset_running_requests": True}) is False
    assert talker.log == []
    assert await runner.call("reset_prefix_cache", {}) is True  # the engine's own matter
    monkeypatch.setattr(talker, "load", lambda: {"held": 0})
    assert await runner.call("reset_prefix_cache", {"reset_running_requests": True}) is True
    assert talker.log == ["reset_prefix_cache"] * 2


@pytest.mark.parametrize("was_asleep", [False, True])
async def test_decoder_is_awake_again_where_the_talker_refuses_to_sleep(
    stage: ResolvedStage, was_asleep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default: without `enable_sleep_mode` vLLM refuses, and requests that come later must not wait for the decoder."""
    talker, codec = Talker(stage, []), Codec(stage)
    talker.refuses = "sleep"
    if was_asleep:
        monkeypatch.setattr(codec, "answer", False)

    with pytest.raises(UnsupportedError):
        await first(stage, talker, codec).call("sleep", {"level": 1})

    assert codec.log == (["sleep"] if was_asleep else ["sleep", "wake_up"])


async def test_talker_is_untouched_where_the_decoder_refuses(stage: ResolvedStage) -> None:
    talker, codec = Talker(stage, []), Codec(stage)
    codec.refuses = "sleep"

    with pytest.raises(UnsupportedError):
        await fused(stage, talker, codec).call("sleep", {})

    assert talker.log == []


@pytest.fixture
def tf32(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What decoders ask torch for, one entry each."""
    asked: list[bool] = []
    monkeypatch.setattr("omni_models_qwen.talking.decoding.allow_tf32", asked.append)
    return asked


def decoding(stage: ResolvedStage) -> tuple[Any, str, dict[str, Any]]:
    """Return the dtype, the device and the options of a stage that decodes."""
    from omni_models_qwen.talking.decoding import decoder_device, decoder_dtype, edge_options

    return decoder_dtype(stage), decoder_device(stage), edge_options(stage)


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "null"])
async def test_the_decoder_of_first_frames_computes_as_code2wav_does(
    dtype: str, allowed: bool, resolve: Callable[..., ResolvedPipeline], overlay: Callable[..., Path], tf32: list[bool]
) -> None:
    """TT-09, TT-16: whatever the talker computes in, and whatever options of its own it has."""
    from omni_models_qwen.qwen3_tts.talker_runners import FirstAudioRunner

    talker, code2wav = resolve(
        "qwen3_tts",
        overlay(
            "qwen3_tts.yaml",
            "stages: [{stage_id: 0, dtype: float16, additional_config: {dispatch_max_rows: 9}}, "
            f"{{stage_id: 1, dtype: {dtype}}}]\n"
            "connectors: {connector_of_shared_memory: {extra: "
            f"{{decode_enable_tf32: {str(allowed).lower()}, decode_batch_max_size: 3}}}}}}\n",
        ),
    ).stages

    early = FirstAudioRunner(talker).codec.stage

    assert decoding(early) == decoding(code2wav)
    assert tf32 == [allowed, allowed]
    assert early.architecture == code2wav.architecture
    assert "additional_config" not in early.engine_args
    assert talker.engine_args["dtype"] == "float16"


async def test_the_decoder_of_first_frames_batches_as_code2wav_does(
    tiny_base: Path, stage_of: Callable[..., ResolvedStage]
) -> None:
    """TT-16."""
    import torch

    from omni_models_qwen.qwen3_tts.talker_runners import FirstAudioRunner

    edge = ResolvedEdge(0, 1, "shm", "m:C", stream={"decode_batch_max_size": 3}, dtype="bfloat16")
    codec = FirstAudioRunner(stage_of(tiny_base, outputs=(edge,), engine_args={"dtype": "float32"})).codec
    assert isinstance(codec, LightRunner)

    try:
        await codec.start()
        model: Any = codec.model
        assert model.max_batch == 3
        assert {memory.dtype for memory in model.begin("r", {}).memory} == {torch.bfloat16}
    finally:
        await codec.stop()


@pytest.mark.parametrize("options", [{}, {"decode_enable_tf32": True, "decode_batch_max_size": 5}], ids=["unset", "set"])
async def test_the_decoder_of_the_single_stage_has_the_stages_options(
    options: dict[str, Any], resolve: Callable[..., ResolvedPipeline], overlay: Callable[..., Path], tf32: list[bool]
) -> None:
    """TT-04, TT-16: there is no edge, so options stand in `additional_config`; the stage has one dtype."""
    import torch

    from omni_models_qwen.qwen3_tts.talker_runners import FusedRunner

    own = "".join(f", {key}: {str(value).lower()}" for key, value in options.items())
    text = f"stages: [{{stage_id: 0, dtype: float32, additional_config: {{talker_stream_first_audio: false{own}}}}}]\n"
    (stage,) = resolve("qwen3_tts", overlay("qwen3_tts_fused_single_gpu.yaml", text)).stages

    dtype, device, found = decoding(FusedRunner(stage).codec.stage)

    assert (dtype, device) == (torch.float32, "cuda")
    assert tf32 == [options.get("decode_enable_tf32", False)]
    assert found.get("decode_batch_max_size") == options.get("decode_batch_max_size")
