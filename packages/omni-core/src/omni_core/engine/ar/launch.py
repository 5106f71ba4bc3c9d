"""The start and the end of a stage's engine, both bounded in time. Runs in the stage host."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

from omni_core import envs
from omni_core.capabilities import ModelCapabilities
from omni_core.engine.ar import client
from omni_core.engine.ar.capture import captured_layers
from omni_core.engine.ar.checkpoint import check_checkpoint
from omni_core.engine.ar.core_process import CoreContext, core_context
from omni_core.engine.ar.engine_args import build_engine_args, checkpoint_folder, engine_environment
from omni_core.engine.ar.model_class import stage_capabilities
from omni_core.engine.ar.pulse import Pulse
from omni_core.engine.ar.stats import stat_logger
from omni_core.engine.heart import HEARTBEAT_S
from omni_core.engine.vllm_bridge import AsyncLLM
from omni_core.engine.vllm_plugin import register
from omni_core.errors import ConfigError, OmniError, StageDeadError, StageStartError
from omni_core.observe.endpoint import traces_endpoint
from omni_core.observe.registry import Registry
from omni_core.observe.tracing import FLUSH_S, share_interpreter, shut_down
from omni_core.stage import ResolvedStage

INIT_TIMEOUT_ENV = "OMNI_STAGE_INIT_TIMEOUT"
_DEFAULT_INIT_TIMEOUT_S = 300.0
HEARTBEAT_TIMEOUT_ENV = "OMNI_STAGE_HEARTBEAT_TIMEOUT"
_DEFAULT_HEARTBEAT_TIMEOUT_S = 30.0


@dataclass
class Launched:
    """A running engine."""

    llm: Any
    """vLLM's AsyncLLM."""
    capabilities: ModelCapabilities
    context: CoreContext
    rows: dict[str, client.Rows]
    pulse: Pulse
    captured: tuple[str, ...] = ()
    """Names of the hidden states that its requests may be captured for."""

    def check(self) -> None:
        """Ask the engine for a sign of life, at each heartbeat.

        Raises:
            StageDeadError: It gave none for too long. It is killed then: one that was stopped hears nothing else.
        """
        try:
            self.pulse.check(HEARTBEAT_S)
        except StageDeadError:
            self.context.kill()
            raise

    async def stop(self, timeout_s: float) -> None:
        """Stop the engine; kill its process if it has not ended by the deadline."""
        self.pulse.stop()
        # It waits for outputs, and would report the core's end as a failure.
        if (handler := self.llm.output_handler) is not None:
            handler.cancel()
            await asyncio.wait({handler}, timeout=1)
        # The process ends without what OpenTelemetry has registered for its end.
        flushed = asyncio.create_task(asyncio.to_thread(_send_spans, timeout_s))
        ended = asyncio.get_running_loop().run_in_executor(None, self.llm.shutdown, timeout_s)
        done, _ = await asyncio.wait({ended}, timeout=timeout_s + 2)
        if not done:
            self.context.kill()
            await asyncio.wait({ended}, timeout=2)
        await flushed


async def launch(stage: ResolvedStage, replica: int = 0, metrics: Registry | None = None) -> Launched:
    """Start a stage's engine.

    Args:
        stage: The stage.
        replica: Which copy of it.
        metrics: Where the engine's numbers go; None counts nothing.

    Raises:
        StageStartError: It did not become ready, with the engine core's own reason where it gave one.
        ConfigError, DependencyError: The configuration or the model class cannot be used.
    """
    where = f"stage {stage.name}"
    timeout = float(envs.read(INIT_TIMEOUT_ENV) or _DEFAULT_INIT_TIMEOUT_S)
    check_checkpoint(checkpoint_folder(stage), where=where)
    environment = engine_environment(stage)
    os.environ.update(environment)
    if traces_endpoint() is not None:
        share_interpreter()
    models = {stage.architecture: stage.architecture_target} if stage.architecture_target else {}
    context = CoreContext(core_context(stage.platform), environment, models)
    starting = asyncio.get_running_loop().run_in_executor(None, _construct, stage, replica, context, metrics)
    done, _ = await asyncio.wait({starting}, timeout=timeout)
    if not done:
        await _give_up(starting, context)
        raise StageStartError(
            f"the engine was not ready after {timeout:g} s",
            where=where,
            hint=f"raise {INIT_TIMEOUT_ENV} or see the log",
        )
    llm, capabilities = starting.result()
    # Asked here once: a request would ask the core otherwise, and an answer that a dead core owes never comes.
    async with asyncio.timeout(timeout):
        await llm.get_supported_tasks()
    capture = capabilities.capture
    captured = captured_layers(capture, llm.vllm_config.model_config.hf_config) if capture is not None else {}
    silence_s = float(envs.read(HEARTBEAT_TIMEOUT_ENV) or _DEFAULT_HEARTBEAT_TIMEOUT_S)
    pulse = Pulse(llm, [process.pid for process in context.processes if process.pid is not None], silence_s, where)
    return Launched(llm, capabilities, context, client.install(llm), pulse, tuple(captured))


def _send_spans(timeout_s: float) -> None:
    """Send the spans of vLLM that are left, if it makes any."""
    if traces_endpoint() is None:
        return
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    if isinstance(provider := trace.get_tracer_provider(), TracerProvider):
        shut_down(provider, min(timeout_s, FLUSH_S))


async def _give_up(starting: asyncio.Future[Any], context: CoreContext) -> None:
    # The constructor comes back when its core is gone. Where it hangs before it has one, the thread ends with the host.
    for _ in range(50):
        context.kill()
        done, _ = await asyncio.wait({starting}, timeout=0.1)
        if done:
            starting.exception()
            return


def _construct(
    stage: ResolvedStage, replica: int, context: CoreContext, metrics: Registry | None
) -> tuple[Any, ModelCapabilities]:
    where = f"stage {stage.name}"
    register()
    capabilities = stage_capabilities(stage)
    args = build_engine_args(stage, capabilities, replica)
    try:
        config = args.create_engine_config()
    except (ValueError, TypeError, OSError, KeyError) as error:
        raise ConfigError(f"vLLM refuses the configuration: {error}", where=where, hint="correct the deploy file") from error
    try:
        with context.installed():
            llm = AsyncLLM.from_vllm_config(
                config,
                enable_log_requests=args.enable_log_requests,
                disable_log_stats=args.disable_log_stats,
                stat_loggers=[stat_logger(metrics)] if metrics is not None else None,
            )
    except OmniError:
        raise
    except Exception as error:  # whatever vLLM raises here, the stage has not started
        reason = context.failure() or f"{type(error).__name__}: {error}"
        raise StageStartError(
            f"the engine did not start: {reason}", where=where, hint=f"see the stage's log; the checkpoint is {stage.model}"
        ) from error
    return llm, capabilities
