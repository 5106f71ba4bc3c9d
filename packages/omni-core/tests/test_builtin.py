from dataclasses import replace

import pytest

from omni_core import builtin
from omni_core.pipeline import ExecutionType, StagePipelineConfig
from omni_core.platforms import CPU
from omni_core.stage import ResolvedStage
from omni_core.target import find_module, load_target

STAGE = ResolvedStage("p", StagePipelineConfig(stage_id=0, model_stage="s"), "/m", "A", "m:A", "")


@pytest.mark.parametrize(
    ("kind", "target", "expected"),
    [
        (ExecutionType.LLM_AR, "m:A", builtin.AR),
        (ExecutionType.LLM_AR, None, builtin.AR),
        (ExecutionType.LLM_GENERATION, "m:A", builtin.LIGHT),
        (ExecutionType.DIFFUSION, "m:A", builtin.LIGHT),
        (ExecutionType.LLM_GENERATION, None, None),
    ],
)
def test_kind_of_stage_chooses_its_runner(kind: ExecutionType, target: str | None, expected: object) -> None:
    stage = replace(STAGE, topology=replace(STAGE.topology, execution_type=kind), architecture_target=target)

    assert builtin.omni_stage_runner(stage, CPU) == expected


def test_every_command_can_be_loaded() -> None:
    for entry in builtin.omni_commands():
        command = load_target(entry.target)

        assert callable(command.configure)  # type: ignore[attr-defined]
        assert callable(command.run)  # type: ignore[attr-defined]


def test_runners_are_where_they_are_said_to_be() -> None:
    for entry in (builtin.AR, builtin.LIGHT):
        find_module(entry.target)
