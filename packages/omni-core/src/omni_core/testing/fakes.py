"""Fakes of what runs in stage processes: a runner that makes tokens, a light model, a connector; without vLLM and torch.

They misbehave on request, so that tests can have a stage fail, die or hang at a chosen moment: by the request's inputs, or for
the start by the stage's `engine_args`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from omni_core.connector import Connector, PayloadNotReady
from omni_core.errors import ConfigError, RequestError, StageDeadError
from omni_core.payload import Payload, decode_payload, encode_payload
from omni_core.runner import Handoff, LightChunk, LightModel, StageInput, StageOutput, StageRunner
from omni_core.stage import ResolvedStage

SAMPLE_RATE = 1000
SAMPLES_PER_CODE = 4


def misbehave_at_start(stage: ResolvedStage) -> None:
    """Do what `engine_args` says at a start: `sleep_s`, `fail`, `fail_if` (a file is there), `fail_config`, `exit_code`."""
    args = stage.engine_args
    time.sleep(float(args.get("sleep_s", 0)))
    if Path(args.get("fail_if", "/no/file")).exists():
        raise ValueError(f"{args['fail_if']} is there")
    if "fail" in args:
        raise ValueError(str(args["fail"]))
    if "fail_config" in args:
        raise ConfigError(str(args["fail_config"]), where="model.safetensors", hint="download it again")
    if "exit_code" in args:
        os._exit(int(args["exit_code"]))


class TokenRunner(StageRunner):
    """Make `count` codes from `seed`, one output for each, `step_s` apart.

    A request's inputs may also say `fail_at` (RequestError before that code), `break_at` (an unexpected error), `die_at`
    (the engine is gone), `exit_at` (the process ends) and `hang_at` (nothing more comes).
    """

    def __init__(self, stage: ResolvedStage, replica: int = 0) -> None:
        super().__init__(stage, replica)
        self.running: set[str] = set()
        self.made = 0
        self.appended: list[Any] = []

    async def start(self) -> Mapping[str, Any]:
        """Become ready."""
        await asyncio.to_thread(misbehave_at_start, self.stage)
        args = self.stage.engine_args
        told = {name: os.environ.get(name) for name in args.get("tell_env", ())}
        limit = {"max_num_seqs": args["max_num_seqs"]} if "max_num_seqs" in args else {}
        return {"replica": self.replica, **told, **limit}

    def load(self) -> Mapping[str, int]:
        """Return the number of requests that run and of the codes made."""
        return {"held": len(self.running), "made": self.made}

    async def run(self, request: StageInput) -> AsyncIterator[StageOutput]:
        """Yield one code at a time."""
        inputs = request.inputs
        count = min(int(inputs["count"]), int(request.sampling.get("max_tokens", 1 << 30)))
        reason = "stop" if count == int(inputs["count"]) else "length"
        self.running.add(request.request_id)
        try:
            for index, code in enumerate(make_codes(int(inputs["seed"]), count)):
                await asyncio.sleep(float(inputs.get("step_s", 0)))
                await self._misbehave(inputs, index)
                self.made += 1
                last = index == count - 1
                yield StageOutput(
                    tensors={"codes": code.reshape(1, 1), "made": np.array([self.made])},
                    token_ids=[int(code)],
                    text=f"{int(code)} ",
                    finished=last,
                    finish_reason=reason if last else None,
                    metrics={"frames": float(count)} if last else {},
                    handoff={"seed": int(inputs["seed"])} if index == 0 else {},
                )
        finally:
            self.running.discard(request.request_id)

    async def _misbehave(self, inputs: Payload, index: int) -> None:
        if inputs.get("fail_at") == index:
            raise RequestError("the seed is unlucky", param="seed")
        if inputs.get("break_at") == index:
            raise KeyError("weights")
        if inputs.get("die_at") == index:
            raise StageDeadError("the engine core is gone")
        if inputs.get("exit_at") == index:
            os._exit(9)
        if inputs.get("hang_at") == index:
            await asyncio.Event().wait()

    async def call(self, method: str, arguments: Mapping[str, Any]) -> Any:
        """Answer `echo` and `append` (to a list, `after_s`); `wait` for ever, `break`, `answer_badly` with no plain value."""
        match method:
            case "echo":
                return {"replica": self.replica, "value": arguments["value"]}
            case "append":
                await asyncio.sleep(float(arguments.get("after_s", 0)))
                self.appended.append(arguments["value"])
                return list(self.appended)
            case "wait":
                await asyncio.Event().wait()
            case "break":
                raise KeyError("echo")
            case "answer_badly":
                return object()
            case "start_weight_update" | "finish_weight_update" | "reload_weights":
                return True
        return await super().call(method, arguments)

    async def push(self, request_id: str, payload: Payload, final: bool) -> None:
        """Take nothing: this stage is an entry."""

    async def abort(self, request_id: str) -> None:
        """End nothing: closing the iterator is enough."""

    async def stop(self) -> None:
        """Leave."""


def make_codes(seed: int, count: int) -> np.ndarray[Any, Any]:
    """Return the codes that TokenRunner makes: int64 [count], at least one."""
    return np.random.default_rng(seed).integers(0, 1000, max(count, 1))


def make_audio(seed: int, count: int) -> np.ndarray[Any, Any]:
    """Return the audio that TokenRunner and SumVocoder make together: float32 [samples, 1]."""
    totals = np.cumsum(make_codes(seed, count)).astype(np.float32)
    return np.repeat(totals + seed, SAMPLES_PER_CODE).reshape(-1, 1)


def chunk_codes(handoff: Handoff, output: StageOutput) -> Payload | None:
    """Hand on codes in chunks of `chunk_frames`, the first with the request's seed."""
    waiting = handoff.state.setdefault("codes", [])
    waiting.extend(output.tensors["codes"])
    if len(waiting) < int(handoff.options.get("chunk_frames", 3)) and not output.finished:
        return None
    handoff.state["codes"] = []
    payload: dict[str, Any] = {"codes": np.array(waiting)}
    if not handoff.state.get("begun"):
        handoff.state["begun"] = True
        payload["seed"] = handoff.inputs["seed"]
    return payload


def all_codes(handoff: Handoff, output: StageOutput) -> Payload:
    """Hand on every code at once."""
    return {"codes": output.tensors["codes"], "seed": handoff.inputs["seed"]}


def broken_hand_over(handoff: Handoff, output: StageOutput) -> Payload:
    """Raise, as a hand-over function with a mistake does."""
    raise IndexError("frame 3")


@dataclass
class VocoderState:
    """What SumVocoder keeps for a request."""

    request_id: str
    total: int = 0
    seed: int | None = None
    ended: bool = False


@dataclass
class SumVocoder(LightModel):
    """Turn each code into samples of the sum of all codes so far plus the request's seed, so that any mix-up is heard.

    A chunk with the code `poison` makes the whole step fail. `log` lists what happened, for unit tests. Its one weight is the
    number in the file that `engine_args.gain` names; samples are multiplied by it.
    """

    poison: int = -1
    step_s: float = 0.0
    gain: float = 1.0
    is_asleep: bool = False
    log: list[tuple[str, Any]] = field(default_factory=list)

    sample_rate = SAMPLE_RATE
    channels = 1

    @classmethod
    def load(cls, stage: ResolvedStage) -> SumVocoder:
        """Load nothing."""
        misbehave_at_start(stage)
        return cls(int(stage.engine_args.get("poison", -1)), float(stage.engine_args.get("step_s", 0)), read_gain(stage))

    def begin(self, request_id: str, sampling: Mapping[str, Any]) -> VocoderState:
        """Return a fresh state."""
        self.log.append(("begin", request_id))
        return VocoderState(request_id)

    def step(self, chunks: Sequence[LightChunk]) -> Sequence[Mapping[str, Any]]:
        """Return the samples of each chunk."""
        self.log.append(("step", [chunk.request_id for chunk in chunks]))
        assert not self.is_asleep
        time.sleep(self.step_s)
        codes = [np.asarray(chunk.payload.get("codes", np.zeros((0, 1), np.int64))).reshape(-1) for chunk in chunks]
        if any(self.poison in part for part in codes):
            raise ArithmeticError("a poisoned code")
        outputs = []
        for chunk, part in zip(chunks, codes, strict=True):
            state: VocoderState = chunk.state
            assert state.request_id == chunk.request_id
            assert not state.ended
            state.seed = chunk.payload.get("seed", state.seed)
            totals = state.total + np.cumsum(part)
            state.total = int(totals[-1]) if part.size else state.total
            samples = np.repeat((totals + (state.seed or 0)).astype(np.float32), SAMPLES_PER_CODE) * np.float32(self.gain)
            outputs.append({"audio": samples.reshape(-1, 1)})
        return outputs

    def end(self, state: VocoderState) -> None:
        """Mark the state, so that a second end or a later step is noticed."""
        assert not state.ended
        state.ended = True
        self.log.append(("end", state.request_id))

    def sleep(self) -> None:
        """Note it."""
        self.log.append(("sleep", None))
        self.is_asleep = True

    def wake(self) -> None:
        """Note it."""
        self.log.append(("wake", None))
        self.is_asleep = False

    def reload(self, stage: ResolvedStage) -> None:
        """Read the gain again."""
        self.gain = read_gain(stage)


def read_gain(stage: ResolvedStage) -> float:
    """Return the weight of a SumVocoder, 1 where its stage names no file.

    Raises:
        ConfigError: The file is not there.
    """
    name = stage.engine_args.get("gain")
    if name is None:
        return 1.0
    if not Path(name).exists():
        raise ConfigError("the gain is not there", where=str(name), hint="write it")
    return float(Path(name).read_text())


class FolderConnector(Connector):
    """Carry payloads as files in the run directory.

    The option `drop` names the sequence number of a chunk that gets lost, `drop_request` the number of the only request that
    loses it, and with `wait` a payload that is not there is waited for.
    """

    def put(self, request_id: str, sequence: int, payload: Payload, timeout_s: float) -> bytes:
        """Write the file."""
        name = f"{self.edge.from_stage}-{self.edge.to_stage}-{request_id}-{sequence}.payload"
        only = self.options.get("drop_request")
        if self.options.get("drop") != sequence or (only is not None and not request_id.endswith(f"-{only}")):
            path = Path(self.edge.run_dir) / name
            path.with_suffix(".part").write_bytes(encode_payload(payload))
            path.with_suffix(".part").rename(path)
        return name.encode()

    def get(self, handle: bytes, timeout_s: float) -> dict[str, Any]:
        """Read the file and remove it."""
        path = Path(self.edge.run_dir) / handle.decode()
        end = time.monotonic() + (timeout_s if self.options.get("wait") else 0)
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.005)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise PayloadNotReady(f"{path.name} is not there") from None
        path.unlink()
        return decode_payload(data)

    def cleanup(self, request_id: str) -> None:
        """Remove the files of a request."""
        pattern = f"{self.edge.from_stage}-{self.edge.to_stage}-{request_id}-*"
        for path in Path(self.edge.run_dir).glob(pattern):
            path.unlink(missing_ok=True)

    def health(self) -> Mapping[str, Any]:
        """Return the number of files."""
        return {"in_flight": len(list(Path(self.edge.run_dir).glob("*.payload")))}

    def close(self) -> None:
        """Close nothing."""
