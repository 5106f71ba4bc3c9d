"""What operators and trainers do to a running pipeline: pause, sleep, new weights. `AsyncOmni` has these methods.

Each is one call, or a few, of `StageRunner.call` in every replica of the stages it is for. Where nothing is said it is for all
stages that can be meant. Requests that meet a paused or sleeping stage wait, and their deadlines go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from omni_core.errors import OmniError, RequestError, UnsupportedError
from omni_core.pipeline import ExecutionType
from omni_core.stage import ResolvedPipeline, ResolvedStage

CALL_TIMEOUT_S = 60.0
"""Seconds that one call may take."""
WEIGHTS_TIMEOUT_S = 600.0
"""Seconds that reading or receiving weights may take."""

PauseMode = Literal["keep", "wait", "abort"]
"""What happens to requests that a stage works on: they stop where they are, or end first, or fail."""
StageIds = Sequence[int] | None
Ack = dict[str, Any]
"""`stage_id`, `replica` and `status`: `OK`, or `SKIPPED` where there was nothing to do."""


class Operations(ABC):
    """Operate a pipeline that runs."""

    pipeline: ResolvedPipeline | None
    """The deployment; None for an engine that was made otherwise, which cannot be operated."""

    @abstractmethod
    async def call_stage(
        self, stage_id: int, method: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> list[Any]:
        """Call a method of a stage in every replica and return their answers.

        Raises:
            UnsupportedError: The stage cannot do that.
            StageDeadError: A replica is not there.
            DeadlineError: A replica did not answer in time.
        """

    # Pause and sleep

    async def pause(
        self, stage_ids: StageIds = None, *, mode: PauseMode = "keep", timeout_s: float = CALL_TIMEOUT_S
    ) -> list[Ack]:
        """Hold the requests of stages back, from the first stage on; nothing is lost but with `abort`.

        With `wait`, a stage is paused when the requests that it works on have ended. If they have not within `timeout_s`, it
        goes on as before.

        Raises:
            RequestError: There is no such mode.
        """
        if mode not in get_args(PauseMode):
            raise RequestError(f"there is no pause mode {mode!r}", param="mode", hint=f"use {', '.join(get_args(PauseMode))}")
        stages = self._stages(stage_ids)
        return await self._each(stages, "pause", {"mode": mode}, undo="resume", timeout_s=timeout_s)

    async def resume(self, stage_ids: StageIds = None, *, timeout_s: float = CALL_TIMEOUT_S) -> list[Ack]:
        """Let paused stages go on, from the last one on."""
        return await self._each(self._stages(stage_ids)[::-1], "resume", timeout_s=timeout_s)

    async def is_paused(self, stage_ids: StageIds = None) -> bool:
        """Return whether one of the stages is paused or asleep."""
        return any([any(await self.call_stage(stage.stage_id, "is_paused")) for stage in self._stages(stage_ids)])

    async def sleep(self, stage_ids: StageIds = None, *, level: int = 1, timeout_s: float = CALL_TIMEOUT_S) -> list[Ack]:
        """Pause stages and give their devices' memory up: at level 1 weights go to the host, at level 2 they are dropped.

        Either all of them sleep in the end, or those that did not before are awake again.

        Raises:
            UnsupportedError: A stage cannot: its platform is a CPU, or its engine was not started for it.
            RequestError: There is no such level.
        """
        if level not in (1, 2):
            raise RequestError(f"there is no sleep level {level!r}", param="level", hint="use 1 or 2")
        stages = self._stages(stage_ids)
        return await self._each(stages, "sleep", {"level": level}, undo="wake_up", timeout_s=timeout_s)

    async def wake_up(self, stage_ids: StageIds = None, *, timeout_s: float = WEIGHTS_TIMEOUT_S) -> list[Ack]:
        """Bring stages back and let them go on, from the last one on; one that is awake is skipped."""
        return await self._each(self._stages(stage_ids)[::-1], "wake_up", timeout_s=timeout_s)

    # Weights

    async def reload_weights(self, stage_ids: StageIds = None, *, timeout_s: float = WEIGHTS_TIMEOUT_S) -> list[Ack]:
        """Read the weights of stages from the checkpoint again; requests wait meanwhile and go on with them."""
        return await self._each(self._stages(stage_ids), "reload_weights", timeout_s=timeout_s)

    async def reset_prefix_cache(
        self, stage_ids: StageIds = None, *, reset_running_requests: bool = False, timeout_s: float = CALL_TIMEOUT_S
    ) -> bool:
        """Let LLM stages forget what they have computed of prompts, and return whether all of them did.

        A stage does not while requests are under way, unless `reset_running_requests` lets it compute them again from their
        beginning. A stage that makes audio of its own tokens does not even then (TT-07): wait for its requests, or abort them.
        """
        stages = [stage for stage in self._stages(stage_ids) if stage.topology.execution_type is ExecutionType.LLM_AR]
        if not stages:
            raise UnsupportedError("no stage keeps what it has computed of prompts")
        arguments = {"reset_running_requests": reset_running_requests}
        done = [await self.call_stage(stage.stage_id, "reset_prefix_cache", arguments, timeout_s=timeout_s) for stage in stages]
        return all(all(answers) for answers in done)

    async def init_weight_transfer_engine(
        self, init_info: Mapping[str, Any], stage_ids: StageIds = None, *, timeout_s: float = WEIGHTS_TIMEOUT_S
    ) -> None:
        """Connect stages to a trainer (WT-01); what `init_info` holds is the backend's matter."""
        await self._train("init_weight_transfer_engine", {"init_info": dict(init_info)}, stage_ids, timeout_s)

    async def shutdown_weight_transfer_engine(self, stage_ids: StageIds = None, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Leave the trainer; the stages go on with the weights they have."""
        await self._train("shutdown_weight_transfer_engine", {}, stage_ids, timeout_s)

    async def start_weight_update(self, stage_ids: StageIds = None, *, timeout_s: float = WEIGHTS_TIMEOUT_S) -> None:
        """Begin an update; the stages must be paused until it is finished.

        Raises:
            RequestError: A stage is not paused.
        """
        await self._train("start_weight_update", {}, stage_ids, timeout_s)

    async def update_weights(
        self,
        update_info: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        stage_ids: StageIds = None,
        *,
        timeout_s: float = WEIGHTS_TIMEOUT_S,
    ) -> None:
        """Receive one part of an update; a list has an entry for each worker."""
        info = dict(update_info) if isinstance(update_info, Mapping) else [dict(item) for item in update_info]
        await self._train("update_weights", {"update_info": info}, stage_ids, timeout_s)

    async def finish_weight_update(
        self, weight_version: str | None = None, stage_ids: StageIds = None, *, timeout_s: float = WEIGHTS_TIMEOUT_S
    ) -> None:
        """End an update and, if a version is given, call the new weights by it."""
        await self._train("finish_weight_update", {"weight_version": weight_version}, stage_ids, timeout_s)

    async def update_weight_version(self, version: str, stage_ids: StageIds = None) -> None:
        """Call the weights by a version, without changing them."""
        await self._train("update_weight_version", {"version": version}, stage_ids, CALL_TIMEOUT_S)

    async def weight_versions(self, stage_ids: StageIds = None) -> dict[int, list[str]]:
        """Return the version of the weights of each stage that takes updates, for each replica; at first it is `default`."""
        stages = self._trainable(stage_ids)
        return {stage.stage_id: await self.call_stage(stage.stage_id, "weight_version") for stage in stages}

    async def world_size(self, stage_ids: StageIds = None) -> int:
        """Return the number of workers that a trainer updates."""
        return sum([sum(await self.call_stage(s.stage_id, "world_size")) for s in self._trainable(stage_ids)])

    # How

    async def _each(
        self,
        stages: Iterable[ResolvedStage],
        method: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        undo: str = "",
        timeout_s: float,
    ) -> list[Ack]:
        """Call one stage after the other; if one fails, undo what was done to it and to those before."""
        acks: list[Ack] = []
        changed: list[int] = []
        for stage in stages:
            try:
                answers = await self.call_stage(stage.stage_id, method, arguments, timeout_s=timeout_s)
            except OmniError as error:
                if undo:
                    await self._undo(undo, [*changed, stage.stage_id] if stage.num_replicas > 1 else changed, error)
                raise
            if any(answers):
                changed.append(stage.stage_id)
            acks += [
                {"stage_id": stage.stage_id, "replica": replica, "status": "OK" if done else "SKIPPED"}
                for replica, done in enumerate(answers)
            ]
        return acks

    async def _undo(self, method: str, stage_ids: Sequence[int], error: OmniError) -> None:
        for stage_id in reversed(stage_ids):
            try:
                await self.call_stage(stage_id, method)
            except OmniError as other:
                error.add_note(f"{method} of stage {stage_id} failed, too: {other}")

    async def _train(self, method: str, arguments: Mapping[str, Any], stage_ids: StageIds, timeout_s: float) -> None:
        for stage in self._trainable(stage_ids):
            await self.call_stage(stage.stage_id, method, arguments, timeout_s=timeout_s)

    def _trainable(self, stage_ids: StageIds) -> list[ResolvedStage]:
        """Return the stages meant by a weight update: those named, otherwise every LLM that has a backend for it."""
        if stage_ids is not None:
            return self._stages(stage_ids)
        found = [
            stage
            for stage in self._stages(None)
            if stage.topology.execution_type is ExecutionType.LLM_AR and stage.engine_args.get("weight_transfer_config")
        ]
        if not found:
            raise UnsupportedError("no stage takes weight updates", hint="set weight_transfer_config in the deploy file")
        return found

    def _stages(self, stage_ids: StageIds) -> list[ResolvedStage]:
        """Return stages by their ids, in the pipeline's order; None is all."""
        if self.pipeline is None:
            raise UnsupportedError("this engine was not made from a deployment and cannot be operated")
        known = {stage.stage_id: stage for stage in self.pipeline.stages}
        wanted = list(known) if stage_ids is None else stage_ids
        unknown = [number for number in wanted if number not in known]
        if unknown:
            raise RequestError(
                f"there is no stage {unknown[0]}", param="stage_ids", hint=f"the stages are {', '.join(map(str, known))}"
            )
        return [stage for number, stage in known.items() if number in set(wanted)]
