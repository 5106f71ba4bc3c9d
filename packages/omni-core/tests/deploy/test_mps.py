from collections.abc import Collection
from typing import Any

import pytest

from omni_core.deploy.mps import PIPE_DIRECTORY, MpsDaemon, MpsPlan, MpsReason, plan_mps
from omni_core.errors import ConfigError
from omni_core.pipeline import ExecutionType, StagePipelineConfig
from omni_core.stage import ResolvedStage, Source


def stage(stage_id: int, devices: str | None = "0", pipe: str | None = None, **fields: Any) -> ResolvedStage:
    topology = StagePipelineConfig(
        stage_id=stage_id, model_stage=f"s{stage_id}", execution_type=fields.pop("kind", ExecutionType.LLM_AR)
    )
    env = {**fields.pop("env", {}), **({} if pipe is None else {PIPE_DIRECTORY: pipe})}
    sources = {f"env.{PIPE_DIRECTORY}": Source("overlay", f"my.yaml:{stage_id + 1}:9")}
    return ResolvedStage(
        "two", topology, "/m", "FakeModel", None, "x:Y", devices=devices, env=env, sources=sources,
        **{"platform": "cuda", **fields},
    )  # fmt: skip


def plan(
    *stages: ResolvedStage,
    wanted: bool = True,
    environ: dict[str, str] | None = None,
    parallel: bool = False,
    remote: Collection[int] = (),
) -> MpsPlan:
    return plan_mps(stages, wanted=wanted, environ=environ or {}, parallel_stage_init=parallel, remote=remote)


def test_nothing_is_managed_by_default() -> None:
    """MP-01, MP-08: an operator's daemon stays in force, even with stages that name different ones."""
    assert plan(stage(0, pipe="/a"), stage(1, pipe="/b"), wanted=False, environ={PIPE_DIRECTORY: "/c"}) == MpsPlan()


def test_each_gpu_gets_a_private_daemon_for_the_stages_on_it() -> None:
    """MP-01, MP-03."""
    found = plan(stage(0, "1"), stage(1, "0"), stage(2, "1"))

    assert found == MpsPlan(wanted=True, daemons=(MpsDaemon(0, None, ((1, 0),)), MpsDaemon(1, None, ((0, 0), (2, 0)))))
    assert found.daemon_of(2, 0) == MpsDaemon(1, None, ((0, 0), (2, 0)))
    assert found.daemon_of(2, 1) is None


def test_replicas_of_a_stage_have_a_gpu_each() -> None:
    """MP-03."""
    found = plan(stage(0, "0,1", num_replicas=2), stage(1, "1"))

    assert [daemon.users for daemon in found.daemons] == [((0, 0),), ((0, 1), (1, 0))]


@pytest.mark.parametrize(
    ("parent", "first", "second", "expected"),
    [
        ("", None, None, None),
        ("/op", None, None, "/op"),
        ("/op", "", None, None),
        ("/op", "/own", None, "/own"),
        ("/op", None, "/op", "/op"),
        ("/op", "", "", None),
        ("", "/own", "/own/", "/own"),
        ("", None, "", None),
    ],
    ids=[
        "private",
        "the operator's",
        "explicit private",
        "the stage's",
        "repeats the operator's",
        "both private",
        "same place",
        "repeats private",
    ],
)
def test_first_stage_on_a_gpu_chooses_the_daemon(
    parent: str, first: str | None, second: str | None, expected: str | None
) -> None:
    """MP-04, MP-05, MP-06: later stages may omit the setting or repeat it; the environment is only read."""
    environ = {PIPE_DIRECTORY: parent} if parent else {}
    before = dict(environ)

    (daemon,) = plan(stage(0, pipe=first), stage(1, pipe=second), environ=environ).daemons

    assert daemon == MpsDaemon(0, expected, ((0, 0), (1, 0)))
    assert environ == before


@pytest.mark.parametrize(
    ("parent", "first", "second", "shown"),
    [
        ("", None, "/b", "is '' and '/b'"),
        ("/op", None, "", "is '/op' and ''"),
        ("/op", "", "/op", "is '' and '/op'"),
        ("", "/a", "/b", "is '/a' and '/b'"),
    ],
)
def test_stages_that_name_different_daemons_for_one_gpu_are_refused(
    parent: str, first: str | None, second: str, shown: str
) -> None:
    """MP-06, E29: the GPU, both stages and both values."""
    with pytest.raises(ConfigError) as caught:
        plan(stage(0, "3", first), stage(1, "3", second), environ={PIPE_DIRECTORY: parent} if parent else {})

    assert caught.value.message.startswith("stages 0 (s0) and 1 (s1) share GPU 3 and name different MPS daemons")
    assert shown in caught.value.message
    assert caught.value.where == "my.yaml:2:9"


def test_stages_on_different_gpus_may_name_different_daemons() -> None:
    """MP-06."""
    found = plan(stage(0, "0", "/a"), stage(1, "1", "/b"))

    assert [daemon.pipe_directory for daemon in found.daemons] == ["/a", "/b"]


@pytest.mark.parametrize(
    "odd",
    [
        stage(1, "0,1", engine_args={"tensor_parallel_size": 2}),
        stage(1, "GPU-8c5c"),
        stage(1, None),
        stage(1, "0", platform="cpu"),
        stage(1, "0", env={"CUDA_VISIBLE_DEVICES": "0,1"}),
    ],
    ids=["two GPUs", "UUID", "not placed", "no CUDA", "its own visibility"],
)
def test_stage_that_is_not_on_one_numbered_gpu_disables_mps_for_all(odd: ResolvedStage) -> None:
    """MP-02 (d), MP-07."""
    found = plan(stage(0), odd)

    assert found.wanted
    assert found.daemons == ()
    (refusal,) = found.refusals
    assert refusal.reason is MpsReason.NOT_ONE_NUMERIC_GPU
    assert refusal.message == "stage 1 (s1) is not on exactly one numbered CUDA GPU"


def test_stage_without_devices_is_where_the_launcher_is() -> None:
    """MP-02 (d): exactly one number is visible."""
    (daemon,) = plan(stage(0, None), stage(1, "2"), environ={"CUDA_VISIBLE_DEVICES": "2"}).daemons

    assert daemon.gpu == 2
    assert daemon.users == ((0, 0), (1, 0))


def test_visibility_by_uuid_disables_mps() -> None:
    """MP-07."""
    (refusal,) = plan(stage(0), environ={"CUDA_VISIBLE_DEVICES": "GPU-8c5c"}).refusals

    assert refusal.reason is MpsReason.NOT_ONE_NUMERIC_GPU
    assert "GPU-8c5c" in refusal.message


def test_every_reason_is_given_and_conflicts_do_not_matter_then() -> None:
    """MP-02 (e), (f), (g): disabled for the whole configuration, one line for each reason."""
    found = plan(stage(0, pipe="/a"), stage(1, pipe="/b", kind=ExecutionType.DIFFUSION), stage(2), parallel=True, remote=[2])

    assert found.daemons == ()
    assert [(refusal.reason, refusal.message) for refusal in found.refusals] == [
        (MpsReason.PARALLEL_STAGE_INIT, "stages start in parallel"),
        (MpsReason.DIFFUSION_STAGE, "stage 1 (s1) denoises"),
        (MpsReason.REMOTE_STAGE, "stage 2 (s2) runs on another machine"),
    ]


def test_reasons_of_the_runtime_are_of_the_same_kind() -> None:
    """MP-02 (a), (b), (c)."""
    assert {"no_program", "start_failed", "no_answer"} < {reason.value for reason in MpsReason}
