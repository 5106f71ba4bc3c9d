"""The runners of talkers whose process makes audio: all of it (one stage, TT-02), or only each request's first frame (TT-09).

Both join two runners of core in the stage host: vLLM for the talker, and a light one with the codec's decoder in a thread of
its own, which batches the frames of many requests. The engine core, another process, goes on with its steps meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, cast

from omni_core.engine.ar.runner import ArRunner
from omni_core.engine.light_runner import LightRunner
from omni_core.errors import ServiceError
from omni_core.observe.series import TOKENS
from omni_core.payload import Payload
from omni_core.runner import Handoff, StageInput, StageOutput, StageRunner
from omni_core.stage import ResolvedStage
from omni_models_qwen.qwen3_tts.handoff import CODES, FIRST_AUDIO, talker2code2wav_async_chunk
from omni_models_qwen.talking.options import own_options

_CODEC = "omni_models_qwen.qwen3_tts.code2wav:Qwen3TTSCode2Wav"
_CODEC_FIRST = frozenset({"sleep", "reload_weights"})
"""Calls that the decoder may refuse, so it is asked before the talker has changed."""


class TalkerWithCodec(StageRunner):
    """A talker and a decoder that start, stop and fail as one.

    Args:
        stage: The talker's stage.
        replica: Its replica.
        talker: The talker's runner; core's AR runner where none is given.
        codec: The decoder's runner; core's light runner where none is given.
    """

    def __init__(
        self,
        stage: ResolvedStage,
        replica: int = 0,
        *,
        talker: StageRunner | None = None,
        codec: StageRunner | None = None,
    ) -> None:
        super().__init__(stage, replica)
        self.talker = talker or ArRunner(stage, replica)
        self.codec = codec or LightRunner(codec_stage(stage), replica)
        # What the stage measures are the talker's steps; the decoder's would be mixed up with them.
        self.talker.metrics = self.metrics

    async def start(self) -> Mapping[str, Any]:
        """Load both, the talker first: it claims its share of the device's memory; return the facts of both."""
        facts = await self.talker.start()
        return {**await self.codec.start(), **facts}

    async def stop(self) -> None:
        """Stop both."""
        try:
            await self.codec.stop()
        finally:
            await self.talker.stop()

    async def push(self, request_id: str, payload: Payload, final: bool) -> None:
        """Give the talker a payload."""
        await self.talker.push(request_id, payload, final)

    async def abort(self, request_id: str) -> None:
        """Stop a request in both."""
        await self.talker.abort(request_id)
        await self.codec.abort(request_id)

    async def check(self) -> None:
        """Raise StageDeadError if one of the two cannot work any more."""
        await self.talker.check()
        await self.codec.check()

    def load(self) -> Mapping[str, int]:
        """Return the sizes of both; the decoder's begin with `codec_`."""
        return {**self.talker.load(), **{f"codec_{name}": size for name, size in self.codec.load().items()}}

    async def call(self, method: str, arguments: Mapping[str, Any]) -> Any:
        """Answer an operator's call for the talker, and do to the decoder what concerns memory and weights."""
        fell_asleep = method in _CODEC_FIRST and await self.codec.call(method, {}) and method == "sleep"
        try:
            answer = await self.talker.call(method, arguments)
        except Exception:  # raised again: a decoder that sleeps beside a talker that does not keeps every later request waiting
            if fell_asleep:
                await self.codec.call("wake_up", {})
            raise
        if method == "wake_up":
            await self.codec.call(method, {})
        return answer


class FusedRunner(TalkerWithCodec):
    """Run the single-stage pipeline: what it yields is audio, with the frames that it was made of."""

    def __init__(self, stage: ResolvedStage, replica: int = 0, **parts: StageRunner) -> None:
        super().__init__(stage, replica, **parts)
        own = own_options(stage)
        self._options = {
            "ref_code_context_frames": int(own.get("ref_code_context_frames", 25)),
            # A first frame of its own where it is wanted early; otherwise the larger the more there is to do.
            "initial_codec_chunk_frames": 1 if own.get("talker_stream_first_audio") else 0,
        }

    async def call(self, method: str, arguments: Mapping[str, Any]) -> Any:
        """Answer an operator's call; running requests are not computed again, since their audio has left (TT-07)."""
        if method == "reset_prefix_cache" and arguments.get("reset_running_requests") and self.talker.load()["held"]:
            return False
        return await super().call(method, arguments)

    async def run(self, request: StageInput) -> AsyncIterator[StageOutput]:
        """Yield a request's audio; the last output has what the talker said at its end."""
        pump = _Pump(self.talker, self.codec, request, self._options)
        pumping = asyncio.create_task(pump.run())
        sound = StageInput(request.request_id, {}, {}, streaming=True)
        try:
            async with contextlib.aclosing(cast("Any", self.codec.run(sound))) as pieces:
                async for piece in pieces:
                    yield replace(piece, **pump.end()) if piece.finished else piece
                    if piece.finished:
                        return
            # The decoder was told to stop: by the pump, whose fault it is, or by an abort, which is no fault.
            await pumping
        finally:
            pumping.cancel()
            await asyncio.wait({pumping})


class _Pump:
    """One request's way from the talker to the decoder."""

    def __init__(self, talker: StageRunner, codec: StageRunner, request: StageInput, options: Mapping[str, Any]) -> None:
        self._talker = talker
        self._codec = codec
        self._request = request
        self._handoff = Handoff(request.request_id, {}, options)
        self._last: StageOutput | None = None

    async def run(self) -> None:
        """Push payloads until the talker has ended. While the decoder is busy, frames gather for the next one."""
        request_id = self._request.request_id
        try:
            async with contextlib.aclosing(cast("Any", self._talker.run(self._request))) as outputs:
                async for output in outputs:
                    if self._last is None:
                        self._handoff.inputs = output.handoff
                    self._last = output
                    self._talker.metrics.inc(TOKENS, len(output.token_ids))  # what the stage yields is audio, without tokens
                    payload = talker2code2wav_async_chunk(self._handoff, output)
                    if payload is not None:
                        await self._codec.push(request_id, payload, output.finished)
        except BaseException:  # cancelled or failed, the codec forgets it; raised again
            await self._codec.abort(request_id)
            raise
        if self._last is None or not self._last.finished:  # it was aborted
            await self._codec.abort(request_id)

    def end(self) -> dict[str, Any]:
        """Return what the last output says of the request's end."""
        assert self._last is not None
        return {"finish_reason": self._last.finish_reason, "metrics": dict(self._last.metrics), "load": self._last.load}


class FirstAudioRunner(TalkerWithCodec):
    """Run the talker of two stages and decode the first frame of each request here, so that it waits for no other request.

    The frame's audio goes along with its codes (`handoff.FIRST_AUDIO`); Code2Wav passes it on and makes its state of the
    codes. A request with reference codes is left to Code2Wav (TT-11), which has to hear the reference before anything else.
    """

    async def start(self) -> Mapping[str, Any]:
        """Load both; the stage's facts are the talker's, since its output is codes."""
        facts = await self.talker.start()
        await self.codec.start()
        return facts

    async def run(self, request: StageInput) -> AsyncIterator[StageOutput]:
        """Yield the talker's outputs, the first frames with their audio."""
        waits = True
        async with contextlib.aclosing(cast("Any", self.talker.run(request))) as outputs:
            async for output in outputs:
                if output.handoff.get("ref_codes") is not None:
                    waits = False
                codes = output.tensors.get(CODES)
                if waits and codes is not None and len(codes):
                    waits = False
                    output.tensors[FIRST_AUDIO] = await self._decode(request.request_id, codes[:1])
                yield output

    async def _decode(self, request_id: str, codes: Any) -> Any:
        async with contextlib.aclosing(cast("Any", self.codec.run(StageInput(request_id, {"codes": codes}, {})))) as pieces:
            async for piece in pieces:
                return piece.tensors["audio"]
        raise ServiceError("the decoder of first frames gave nothing", where=f"stage {self.stage.name}")


def codec_stage(stage: ResolvedStage) -> ResolvedStage:
    """Return the talker's stage as one of the codec's decoder: the same place, the codec's class and folder.

    Where Code2Wav follows, the decoder does a part of its work: in its dtype, with the options of the edge and none of the
    talker's own. The single stage has one dtype and its own options.
    """
    given = dict(stage.engine_args)
    if stage.outputs:
        given.pop("additional_config", None)
        given["dtype"] = stage.outputs[0].dtype
    return replace(
        stage,
        topology=replace(stage.topology, model_subdir=None),
        architecture="Qwen3TTSCode2Wav",
        architecture_target=_CODEC,
        engine_args=given,
        inputs=stage.outputs,
        outputs=(),
    )
