from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.deploy.numa import (
    START_METHOD,
    NumaHost,
    check_numa,
    engine_core_cpus,
    parse_cpu_list,
    replica_numa,
)
from omni_core.deploy.outcome import Outcome
from omni_core.errors import ConfigError
from omni_core.pipeline import StagePipelineConfig
from omni_core.stage import Source

TALKER = StagePipelineConfig(stage_id=0, model_stage="talker")
HOST = NumaHost("linux", "/usr/bin/numactl", frozenset(range(16)), frozenset({0, 1}))
FIELDS = ("numa_bind", "numa_bind_nodes", "numa_bind_cpus")
SOURCES = {name: Source("overlay", f"my.yaml:{line}:3") for line, name in enumerate(FIELDS, 1)}


def check(
    *,
    bind: bool | None = True,
    nodes: list[int] | None = None,
    cpus: list[str] | None = None,
    env: dict[str, str] | None = None,
    ranks: int = 1,
    replicas: int = 1,
    platform: str = "cuda",
    host: NumaHost = HOST,
) -> Outcome:
    given: dict[str, Any] = {"numa_bind": bind, "numa_bind_nodes": nodes, "numa_bind_cpus": cpus}
    arguments = {name: value for name, value in given.items() if value is not None}
    return check_numa(
        TALKER, arguments, SOURCES, env=env or {}, ranks=ranks, num_replicas=replicas, platform=platform, host=host
    )


def test_stage_without_binding_changes_nothing() -> None:
    """NU-01: the default is off."""
    assert check(bind=None) == check(bind=False) == Outcome()


@pytest.mark.parametrize(
    ("nodes", "cpus", "ranks"),
    [(None, None, 2), ([0], ["2-3"], 1), ([0, 1], ["0-3", "4,6-7"], 2), ([0, 0], None, 2), (None, ["0"], 1)],
)
def test_binding_spawns_the_processes(nodes: list[int] | None, cpus: list[str] | None, ranks: int) -> None:
    """NU-01, NU-02: Omni sets the start method itself."""
    assert check(nodes=nodes, cpus=cpus, ranks=ranks) == Outcome(env={START_METHOD: "spawn"})


def test_start_method_of_the_stage_must_be_spawn() -> None:
    """NU-02."""
    assert check(env={START_METHOD: "spawn"}) == Outcome()
    with pytest.raises(ConfigError, match=r"stage 0 \(talker\): numa_bind needs VLLM_WORKER_MULTIPROC_METHOD=spawn"):
        check(env={START_METHOD: "fork"})


@pytest.mark.parametrize("bind", [None, False])
@pytest.mark.parametrize(
    ("lists", "field", "line"),
    [({"nodes": [0]}, "numa_bind_nodes [0]", 2), ({"cpus": ["0-3"]}, "numa_bind_cpus ['0-3']", 3)],
)
def test_lists_without_binding_are_refused(bind: bool | None, lists: dict[str, Any], field: str, line: int) -> None:
    """NU-04, E28: stage and value."""
    with pytest.raises(ConfigError) as caught:
        check(bind=bind, **lists)
    assert caught.value.message == f"stage 0 (talker): {field} has no effect without numa_bind"
    assert caught.value.hint == "set numa_bind: true"
    assert caught.value.where == f"my.yaml:{line}:3"


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"nodes": []}, "numa_bind_nodes [] is not a list of nodes from 0"),
        ({"nodes": [-1]}, "numa_bind_nodes [-1] is not a list of nodes from 0"),
        ({"nodes": [2]}, "has node 2, which is not here"),
        ({"cpus": []}, "numa_bind_cpus [] is empty"),
        ({"cpus": [""]}, "'' is no list of CPUs"),
        ({"cpus": ["3-1"]}, "the range '3-1' descends"),
        ({"cpus": ["0-"]}, "'0-' is no list of CPUs"),
        ({"cpus": ["0, 1"]}, "'0, 1' is no list of CPUs"),
        ({"cpus": ["all"]}, "'all' is no list of CPUs"),
        ({"cpus": ["٣"]}, "is no list of CPUs"),
        ({"cpus": ["0\n"]}, "is no list of CPUs"),
        ({"cpus": ["9999999"]}, "is no list of CPUs"),
        ({"cpus": ["14-17"]}, "has CPU 16, which this process cannot use"),
    ],
)
def test_lists_that_cannot_be_used_are_refused(lists: dict[str, Any], message: str) -> None:
    """NU-02, NU-04, E28."""
    with pytest.raises(ConfigError) as caught:
        check(**lists)
    assert message in caught.value.message
    assert caught.value.message.startswith("stage 0 (talker): numa_bind_")


def test_hint_lists_what_the_process_may_use() -> None:
    """NU-02."""
    with pytest.raises(ConfigError) as caught:
        check(cpus=["5"], host=NumaHost("linux", "numactl", frozenset({0, 1, 2, 8}), None))
    assert caught.value.hint == "the CPUs are 0-2,8"


@pytest.mark.parametrize("field", ["nodes", "cpus"])
def test_each_device_needs_an_entry(field: str) -> None:
    """NU-02, NU-04, E28: a device beyond the list."""
    entries: dict[str, Any] = {field: [0] if field == "nodes" else ["0-3"]}

    with pytest.raises(ConfigError, match="has 1 entries for 2 devices") as caught:
        check(**entries, ranks=2, replicas=3)
    assert caught.value.hint == "list 2 or 6, one for each device"


def test_entries_that_no_device_uses_are_a_warning() -> None:
    """NU-02: one entry for each visible device."""
    (warning,) = check(nodes=[0, 0, 1], ranks=2).warnings

    assert warning == "my.yaml:2:3: stage 0 (talker): numa_bind_nodes has 3 entries, of which 2 are used; it can list 2"


def test_replicas_on_the_same_cpus_are_a_warning() -> None:
    (warning,) = check(cpus=["0-3"], replicas=2).warnings

    assert "every replica runs on the same CPUs" in warning
    assert check(cpus=["0-3", "4-7"], replicas=2).warnings == ()


@pytest.mark.parametrize(
    ("host", "platform", "message"),
    [
        (NumaHost("darwin", "/x", None, None), "cuda", "works on Linux, and this is darwin"),
        (NumaHost("linux", None, None, None), "cuda", "needs numactl, which is not installed"),
        (HOST, "cpu", "needs the nodes on cpu, which cannot be detected there"),
    ],
)
def test_machine_must_be_able_to_bind(host: NumaHost, platform: str, message: str) -> None:
    """NU-01, NU-02."""
    with pytest.raises(ConfigError, match=message) as caught:
        check(host=host, platform=platform)
    assert caught.value.where == "my.yaml:1:3"


def test_cpu_platform_binds_to_given_nodes() -> None:
    """NU-02."""
    assert check(nodes=[0], cpus=["1"], platform="cpu").env == {START_METHOD: "spawn"}


def test_unknown_machine_is_not_checked() -> None:
    """A file can be checked on another machine than it is for."""
    assert check(nodes=[9], cpus=["900"], host=NumaHost("linux", "/x")).env == {START_METHOD: "spawn"}


@pytest.mark.parametrize(("text", "expected"), [("2-3,8", {2, 3, 8}), ("0", {0}), ("4,4-4,4", {4}), ("10-11,0", {0, 10, 11})])
def test_cpu_list_is_read_as_numactl_does(text: str, expected: set[int]) -> None:
    """NU-04."""
    assert parse_cpu_list(text) == expected


@settings(deadline=None)
@given(st.text(alphabet="0123-, ", max_size=8))
def test_cpu_list_is_read_or_refused(text: str) -> None:
    """NU-04."""
    try:
        found = parse_cpu_list(text)
    except ValueError:
        return
    assert found
    assert parse_cpu_list(",".join(map(str, found))) == found


def test_lists_of_all_replicas_are_cut() -> None:
    """NU-02: devices count from 0 in each replica."""
    arguments = {"numa_bind_nodes": [0, 1], "numa_bind_cpus": ["0", "1", "2", "3"]}

    assert replica_numa(arguments, 2, 2) == [
        {"numa_bind_nodes": [0, 1], "numa_bind_cpus": ["0", "1"]},
        {"numa_bind_nodes": [0, 1], "numa_bind_cpus": ["2", "3"]},
    ]
    assert replica_numa({}, 2, 1) == [{}, {}]


def test_engine_core_runs_on_the_workers_cpus_only_in_process() -> None:
    """NU-03."""
    arguments = {"numa_bind": True, "numa_bind_cpus": ["2-3", "4-5"]}

    assert engine_core_cpus(arguments, in_process=True) == {2, 3}
    assert engine_core_cpus(arguments, in_process=False) is None
    assert engine_core_cpus({"numa_bind": True}, in_process=True) is None
    assert engine_core_cpus({}, in_process=True) is None


def test_this_machine_is_read(tmp_path: Path) -> None:
    online = tmp_path / "online"
    online.write_text("0-1\n")

    host = NumaHost.read(online)

    assert host.nodes == {0, 1}
    assert host.system
    assert host.cpus is None or host.cpus
    assert NumaHost.read(tmp_path / "missing").nodes is None
