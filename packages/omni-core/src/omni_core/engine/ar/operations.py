"""What operators may ask of an AR stage: pause, sleep, new weights. Runs in the stage host, on vLLM's own methods for each.

Weights change under a pause only, and KV caches that were computed with old weights are thrown away with them: requests that
were under way are computed again from their beginning, so that no answer mixes what two versions attended to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_core.engine.vllm_bridge import EngineDeadError, WeightTransferInitRequest, WeightTransferUpdateRequest
from omni_core.errors import RequestError, StageDeadError, UnsupportedError
from omni_core.stage import ResolvedStage

_TRANSFER = frozenset(
    {
        "init_weight_transfer_engine",
        "shutdown_weight_transfer_engine",
        "start_weight_update",
        "update_weights",
        "finish_weight_update",
    }
)


class ArOperations:
    """Answer calls for an AR stage.

    Args:
        stage: The stage.
        llm: Its engine, vLLM's AsyncLLM.
    """

    def __init__(self, stage: ResolvedStage, llm: Any) -> None:
        self._stage = stage
        self._llm = llm
        self._where = f"stage {stage.name}"
        self._is_paused = False
        self._level = 0
        """The level at which the engine sleeps; 0 is awake."""

    async def call(self, method: str, arguments: Mapping[str, Any]) -> Any:
        """Answer a call.

        Raises:
            UnsupportedError: The stage's engine or its platform cannot do that.
            RequestError: Not now.
            StageDeadError: The engine is dead.
        """
        if self._llm.errored:
            # A dead core owes an answer for ever. Where it dies meanwhile, the host ends, and the call with it.
            raise StageDeadError("the engine is dead", where=self._where)
        try:
            if method in _TRANSFER:
                return await self._transfer(method, arguments)
            match method:
                case "pause":
                    return await self._pause(str(arguments.get("mode", "keep")))
                case "resume":
                    return await self._resume()
                case "is_paused":
                    return self._is_paused or self._level > 0
                case "sleep":
                    return await self._sleep(int(arguments.get("level", 1)))
                case "wake_up":
                    return await self._wake_up()
                case "reload_weights":
                    return await self._reload_weights()
                case "reset_prefix_cache":
                    running = bool(arguments.get("reset_running_requests"))
                    return bool(await self._llm.reset_prefix_cache(reset_running_requests=running))
                case "update_weight_version":
                    await self._llm.update_weight_version(str(arguments["version"]))
                    return True
                case "weight_version":
                    return await self._llm.get_weight_version()
                case "world_size":
                    return self._llm.vllm_config.parallel_config.world_size_across_dp
        except EngineDeadError as error:
            raise StageDeadError("the engine is dead", where=self._where) from error
        raise UnsupportedError(f"an LLM's stage cannot {method}", where=self._where)

    # -- pause and sleep -------------------------------------------------------------------------------------------

    async def _pause(self, mode: str) -> bool:
        was_paused, self._is_paused = self._is_paused, True
        try:
            await self._llm.pause_generation(mode=mode, clear_cache=False)
        except BaseException:  # the pause is undone however it failed; raised again
            self._is_paused = was_paused
            if not was_paused:
                await self._llm.resume_generation()
            raise
        return not was_paused

    async def _resume(self) -> bool:
        self._check_awake()
        was_paused = self._is_paused
        await self._llm.resume_generation()
        self._is_paused = False
        return was_paused

    async def _sleep(self, level: int) -> bool:
        if self._stage.platform != "cuda":
            raise UnsupportedError(f"vLLM's sleep does nothing on the platform {self._stage.platform}", where=self._where)
        if not self._llm.vllm_config.model_config.enable_sleep_mode:
            hint = "set enable_sleep_mode: true for the stage"
            raise UnsupportedError("the stage was started without sleep mode", where=self._where, hint=hint)
        if self._level:
            return False
        # Requests that are under way stay: their KV cache is given up and computed again when the stage is awake.
        self._level = level
        await self._llm.sleep(level, mode="keep")
        return True

    async def _wake_up(self) -> bool:
        if not self._level:
            return False
        if self._level == 2:
            # The weights were given up, too. Scheduling goes on when the last part is back.
            await self._llm.wake_up(tags=["weights"])
            await self._llm.collective_rpc("reload_weights")
            await self._llm.wake_up(tags=["kv_cache"])
        else:
            await self._llm.wake_up()
        self._level, self._is_paused = 0, False
        return True

    def _check_awake(self) -> None:
        if self._level:
            raise RequestError("the stage is asleep", where=self._where, hint="wake it up")

    # -- weights ---------------------------------------------------------------------------------------------------

    async def _reload_weights(self) -> bool:
        self._check_awake()
        was_paused = self._is_paused
        if not was_paused:
            await self._pause("keep")
        # Where this fails, the weights may be mixed: the stage stays paused until a further reload has gone well.
        await self._llm.collective_rpc("reload_weights")
        await self._forget_kv()
        if not was_paused:
            await self._resume()
        return True

    async def _transfer(self, method: str, arguments: Mapping[str, Any]) -> bool:
        if self._stage.engine_args.get("weight_transfer_config") is None:
            hint = "set weight_transfer_config in the deploy file"
            raise UnsupportedError("the stage takes no weight updates", where=self._where, hint=hint)
        self._check_awake()
        if method.endswith(("_update", "_weights")) and not self._is_paused:
            # While they change, a step would compute with half of them.
            raise RequestError("weights are updated while the stage is paused only", where=self._where, hint="pause it first")
        match method:
            case "init_weight_transfer_engine":
                await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=dict(arguments["init_info"])))
            case "update_weights":
                await self._llm.update_weights(WeightTransferUpdateRequest(update_info=arguments["update_info"]))
            case "finish_weight_update":
                await self._llm.finish_weight_update(arguments.get("weight_version"))
                await self._forget_kv()
            case _:
                await getattr(self._llm, method)()
        return True

    async def _forget_kv(self) -> None:
        await self._llm.reset_prefix_cache(reset_running_requests=True)
