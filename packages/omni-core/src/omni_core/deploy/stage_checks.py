"""Every check of one stage's operators, executor, adapters, CPUs and weight transfer, in the order in which they depend."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from omni_core.deploy.backends import check_backends
from omni_core.deploy.devices import parse_devices, world_size
from omni_core.deploy.executors import resolve_executor
from omni_core.deploy.lora import check_lora
from omni_core.deploy.numa import NumaHost, check_numa
from omni_core.deploy.outcome import Outcome
from omni_core.deploy.stages import StageValues
from omni_core.deploy.weight_transfer import check_weight_transfer
from omni_core.pipeline import ExecutionType, StagePipelineConfig


def check_stage(
    stage: StagePipelineConfig,
    values: StageValues,
    *,
    platform: str,
    host: NumaHost | None = None,
    environ: Mapping[str, str] | None = None,
    ray_installed: bool | None = None,
) -> tuple[str, ...]:
    """Check a stage's values, change them where they are normalised or completed, and return warnings.

    Args:
        stage: The topology.
        values: What the stage's fields came to.
        platform: Name of the platform.
        host: The machine; by default this one.
        environ: The environment of the server; by default this process's.
        ray_installed: Whether Ray can be imported; looked up by default.

    Raises:
        ConfigError: Something cannot be used.
    """
    environ = os.environ if environ is None else environ
    arguments, sources = values.engine_args, values.provenance.sources
    ranks = _ranks(stage, values)

    def outcomes() -> Iterator[Outcome]:
        """Run the checks one by one; each sees what those before it changed."""
        yield check_backends(stage, arguments, sources, environ={**environ, **values.env})
        yield resolve_executor(stage, arguments, sources, ranks=ranks, ray_installed=ray_installed)
        yield check_lora(stage, arguments, sources)
        yield check_weight_transfer(stage, arguments, sources)
        yield check_numa(
            stage,
            arguments,
            sources,
            env=values.env,
            ranks=ranks,
            num_replicas=values.num_replicas,
            platform=platform,
            host=host or NumaHost.read(),
        )

    warnings: list[str] = []
    for outcome in outcomes():
        # Applied before the next check runs.
        outcome.apply(arguments, values.env, values.provenance)
        warnings += outcome.warnings
    return tuple(warnings)


def _ranks(stage: StagePipelineConfig, values: StageValues) -> int:
    """Return the devices of one replica; those of a denoising stage are counted where it lists them."""
    world = max(1, world_size(values.engine_args))
    if stage.execution_type is not ExecutionType.DIFFUSION or values.devices is None:
        return world
    listed = len(parse_devices(values.devices))
    replicas = values.num_replicas
    return listed // replicas if replicas > 1 and listed % replicas == 0 else max(1, listed)
