from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.capabilities import DuplexCapabilities
from omni_core.deploy.duplex import (
    DuplexPlan,
    DuplexSettings,
    admitted_sessions,
    check_placement,
    check_session_mode,
    read_settings,
    resolve_duplex,
)
from omni_core.deploy.reader import parse_deploy_text
from omni_core.deploy.replica_groups import count_reserved, place
from omni_core.deploy.schema import DuplexSession
from omni_core.deploy.tree import from_plain
from omni_core.errors import ConfigError
from omni_core.pipeline import PipelineConfig, StagePipelineConfig
from omni_core.stage import Source

PLUGIN = "acme.duplex:Plugin"
CONCURRENT = DuplexCapabilities(supports_session_resume=True, supports_multi_session_same_replica=True)
SINGLE = DuplexCapabilities(supports_session_resume=True, supports_multi_session_same_replica=False)
SHARDED = DuplexCapabilities(supports_session_resume=False, supports_multi_session_same_replica=True)


def pipeline(**fields: Any) -> PipelineConfig:
    stages = (
        StagePipelineConfig(stage_id=0, model_stage="talker"),
        StagePipelineConfig(stage_id=1, model_stage="vocoder", input_sources=(0,), final_output=True),
    )
    return PipelineConfig(model_type="moshi", stages=stages, **{"duplex_plugin": PLUGIN, **fields})


def plan(
    text: str,
    replicas: Mapping[int, int] | None = None,
    capabilities: DuplexCapabilities = CONCURRENT,
    **options: Any,
) -> DuplexPlan:
    """Resolve a deploy file; replicas are those of its stages unless given."""
    root = parse_deploy_text(text, "my.yaml")
    if replicas is None:
        stages = root.plain().get("stages", [{"stage_id": 0}, {"stage_id": 1}])
        replicas = {entry["stage_id"]: entry.get("num_replicas", 1) for entry in stages}
    return resolve_duplex(root.get("duplex_session"), pipeline(), replicas, capabilities, **options)


def fields(**values: Any) -> str:
    """Return a deploy file with these fields of `duplex_session`."""
    return "duplex_session:\n" + "".join(f"  {name}: {value}\n" for name, value in values.items())


SEED_EXAMPLE = """
session_mode: duplex
duplex_session:
  max_sessions: 4
  replica_policy: least_sessions
  max_sessions_per_replica: 2
stages:
  - stage_id: 0
    num_replicas: 2
    devices: "0,1"
  - stage_id: 1
    num_replicas: 2
    devices: "2,3"
"""
PERSONAPLEX = """
session_mode: duplex
duplex_session:
  max_sessions: 64
  replica_policy: least_sessions
  max_sessions_per_replica: 8
stages:
  - {stage_id: 0, num_replicas: 8, devices: "0,1,2,3,4,5,6,7"}
  - {stage_id: 1, num_replicas: 8, devices: "0,1,2,3,4,5,6,7"}
"""


def test_example_with_four_replicas_opens_four_sessions() -> None:
    """DP-11, DP-05."""
    resolved = plan(SEED_EXAMPLE)

    assert resolved.groups == ({0: 0, 1: 0}, {0: 1, 1: 1})
    assert admitted_sessions(resolved) == 4
    assert resolved.settings.duplex_max_sessions == 2
    sessions: list[int] = []
    for expected in (0, 1, 0, 1):
        last = sessions[-1] if sessions else None
        assert place(resolved.groups, count_reserved(resolved.groups, sessions), 2, last) == expected
        sessions.append(expected)
    assert place(resolved.groups, count_reserved(resolved.groups, sessions), 2, 1) is None


def test_scaled_example_with_four_frontends_gives_each_two_groups() -> None:
    """FE-06, FE-03: 64 sessions, 8 groups, 8 on a replica, K = 4."""
    resolved = plan(PERSONAPLEX, capabilities=SHARDED, frontend_count=4)

    assert [frontend.groups for frontend in resolved.frontends] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert [frontend.max_sessions for frontend in resolved.frontends] == [16, 16, 16, 16]
    assert resolved.settings.duplex_max_sessions == 8
    assert admitted_sessions(resolved) == 64


def test_defaults_are_those_of_the_contract() -> None:
    """DX-02."""
    assert read_settings(None).model_dump() == {
        "max_sessions": 1,
        "replica_policy": "legacy",
        "max_sessions_per_replica": None,
        "replica_groups": None,
        "idle_ttl_s": 300,
        "disconnect_grace_s": 30,
        "reaper_interval_s": 5,
        "resume_replay_ttl_s": 60,
        "resume_replay_max_bytes_per_session": 8 * 2**20,
        "max_pending_input_bytes_per_session": 16 * 2**20,
        "max_pending_turns_per_session": 4,
        "server_vad_model_path": None,
        "warmup_frames": 0,
    }


def test_described_defaults_are_the_real_ones() -> None:
    """DX-02: what the documentation of a field says is what holds."""
    spelt = {8 * 2**20: "8 MiB", 16 * 2**20: "16 MiB"}
    for name, field in DuplexSettings.model_fields.items():
        description = DuplexSession.model_fields[name].description or ""
        if field.default is None:
            assert "default:" not in description
            continue
        value = int(field.default) if isinstance(field.default, float) else field.default
        assert f"(default: {spelt.get(value, value)}" in description, name


def test_written_values_hold_and_null_means_the_default() -> None:
    """DX-02, DY-04; a null of idle_ttl_s turns it off."""
    held = plan(fields(max_sessions=3, idle_ttl_s="null", reaper_interval_s="null", warmup_frames=-1)).settings

    assert (held.max_sessions, held.warmup_frames) == (3, -1)
    assert held.idle_ttl_s is None
    assert held.reaper_interval_s == 5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_sessions", "0"),
        ("max_sessions", "true"),
        ("max_sessions", "1.0"),
        ("max_sessions", "'4'"),
        ("replica_policy", "random"),
        ("max_sessions_per_replica", "0"),
        ("max_sessions_per_replica", "-1"),
        ("replica_groups", "{0: 0}"),
        ("replica_groups.0.0", "[{0: -1}]"),
        ("replica_groups.0.0", "[{0: true}]"),
        ("replica_groups.0.0", "[{0: a}]"),
        ("idle_ttl_s", "0"),
        ("idle_ttl_s", ".inf"),
        ("idle_ttl_s", ".nan"),
        ("disconnect_grace_s", "0"),
        ("reaper_interval_s", "-5"),
        ("resume_replay_ttl_s", "0.0"),
        ("resume_replay_max_bytes_per_session", "0"),
        ("max_pending_input_bytes_per_session", "0"),
        ("max_pending_turns_per_session", "0"),
        ("server_vad_model_path", "'  '"),
        ("warmup_frames", "1.5"),
        ("max_session", "1"),
        ("completed_append_cache_size", "256"),
    ],
)
def test_field_that_is_out_of_range_or_unknown_is_named(field: str, value: str) -> None:
    """DX-02, E16, and E17 for a limit below 1."""
    with pytest.raises(ConfigError, match=rf"^my.yaml:2:\d+: duplex_session\.{field}: .* \(got ") as caught:
        plan(fields(**{field.split(".")[0]: value}))
    assert caught.value.param == f"duplex_session.{field}"


@pytest.mark.parametrize(
    ("value", "config", "expected"),
    [
        (None, pipeline(duplex_plugin=None), "turn"),
        (None, pipeline(default_session_mode="turn"), "turn"),
        (None, pipeline(default_session_mode="duplex"), "duplex"),
        (None, pipeline(duplex_plugin=None, default_session_mode="duplex"), "turn"),
        ("turn", pipeline(default_session_mode="duplex"), "turn"),
        ("turn", pipeline(duplex_plugin=None), "turn"),
        ("duplex", pipeline(), "duplex"),
    ],
    ids=["no plugin", "default turn", "default duplex", "default without a plugin", "written", "no plugin, turn", "duplex"],
)
def test_session_mode_is_written_or_the_pipelines(value: str | None, config: PipelineConfig, expected: str) -> None:
    """DY-07."""
    assert check_session_mode(value, config) == expected


@pytest.mark.parametrize(
    ("value", "config", "facts"),
    [
        ("duplx", pipeline(), ["session_mode of pipeline 'moshi' is 'duplx'", "did you mean 'duplex'?"]),
        (True, pipeline(), ["session_mode of pipeline 'moshi' is True", "the session modes are duplex, turn"]),
        ("", pipeline(duplex_plugin=None), ["session_mode of pipeline 'moshi' is ''"]),
        (None, pipeline(), ["pipeline 'moshi' needs session_mode turn or duplex", PLUGIN]),
        (None, pipeline(default_session_mode="both"), ["default_session_mode of pipeline 'moshi' is 'both'"]),
        ("duplex", pipeline(duplex_plugin=None), ["session_mode is 'duplex', but pipeline 'moshi' has no duplex sessions"]),
    ],
    ids=["misspelt", "boolean", "empty", "missing", "wrong default", "no plugin"],
)
def test_wrong_or_missing_session_mode_names_value_and_pipeline(value: Any, config: PipelineConfig, facts: list[str]) -> None:
    """DY-07, E15."""
    with pytest.raises(ConfigError) as caught:
        check_session_mode(value, config, "my.yaml:1:15")

    assert caught.value.where == "my.yaml:1:15"
    assert [fact for fact in facts if fact not in str(caught.value)] == []


LEAST = "replica_policy: least_sessions"


@pytest.mark.parametrize(
    ("text", "capabilities", "distributed", "param", "facts"),
    [
        (LEAST, CONCURRENT, (), "replica_policy", ["least_sessions needs max_sessions_per_replica"]),
        (
            f"{LEAST}, max_sessions_per_replica: 2",
            SINGLE,
            (),
            "max_sessions_per_replica",
            ["max_sessions_per_replica is 2", "does not support concurrent sessions on one replica"],
        ),
        (
            f"{LEAST}, max_sessions_per_replica: 1",
            SINGLE,
            ("--stage-id", "--omni-master-address"),
            "replica_policy",
            ["--stage-id, --omni-master-address asks for distributed routing"],
        ),
        (
            LEAST,
            SINGLE,
            ("--headless",),
            "replica_policy",
            ["least_sessions needs max_sessions_per_replica", "--headless asks for distributed routing"],
        ),
    ],
    ids=["no limit", "limit above 1 without support", "distributed", "two faults"],
)
def test_placement_that_cannot_be_is_refused(
    text: str, capabilities: DuplexCapabilities, distributed: tuple[str, ...], param: str, facts: list[str]
) -> None:
    """DP-08, DP-09, E17."""
    with pytest.raises(ConfigError) as caught:
        plan(f"duplex_session: {{{text}}}", capabilities=capabilities, distributed=distributed)

    assert f"pipeline 'moshi' with the plugin {PLUGIN}" in caught.value.message
    assert [fact for fact in facts if fact not in caught.value.message] == []
    assert caught.value.where.startswith("my.yaml:1:")
    assert caught.value.param == f"duplex_session.{param}"
    assert caught.value.hint


def test_one_session_on_a_replica_needs_no_support() -> None:
    """DP-09."""
    text = fields(replica_policy="least_sessions", max_sessions_per_replica=1)

    assert plan(text, capabilities=SINGLE).settings.duplex_max_sessions == 1


def test_legacy_policy_gives_workers_the_limit_of_all_sessions() -> None:
    """DX-03: and it may be distributed, with unequal replicas."""
    resolved = plan(fields(max_sessions=5), {0: 2, 1: 1}, SINGLE, distributed=("--stage-id",))

    assert resolved.settings.duplex_max_sessions == 5
    assert resolved.groups == ()
    assert [frontend.max_sessions for frontend in resolved.frontends] == [5]
    assert admitted_sessions(resolved) == 5


def test_placement_fields_without_effect_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """DX-03."""
    with caplog.at_level(logging.WARNING):
        check_placement(DuplexSettings(max_sessions_per_replica=2, replica_groups=[{0: 0}]), pipeline(), SINGLE)

    assert [record.message for record in caplog.records] == [
        "duplex_session: max_sessions_per_replica has no effect under replica_policy legacy",
        "duplex_session: replica_groups has no effect under replica_policy legacy",
    ]


def test_groups_are_refused_at_their_place() -> None:
    """DP-03, E18."""
    groups = "[{0: 0, 1: 0}, {0: 1, 1: 0}]"
    text = fields(replica_policy="least_sessions", max_sessions_per_replica=1, replica_groups=groups)

    with pytest.raises(ConfigError, match="replica 1 of stage 1 is in no group") as caught:
        plan(text, {0: 2, 1: 2})

    assert caught.value.where == "my.yaml:4:19"


def test_unequal_replicas_without_groups_are_refused_at_duplex_session() -> None:
    """DP-02, E18."""
    text = fields(replica_policy="least_sessions", max_sessions_per_replica=1)

    with pytest.raises(ConfigError, match="stage 0 has 2, stage 1 has 1") as caught:
        plan(text, {0: 2, 1: 1})

    assert caught.value.where == "my.yaml:2:3"


@pytest.mark.parametrize(
    ("capabilities", "count", "text", "message"),
    [
        (SHARDED, 9, PERSONAPLEX, "9 frontends are more than the 8 replica groups"),
        (CONCURRENT, 2, PERSONAPLEX, "cannot run 2 duplex frontends: the plugin acme.duplex:Plugin can resume"),
        (SHARDED, 2, "duplex_session: {max_sessions: 4}", "cannot run 2 duplex frontends: replica_policy is legacy"),
        (SHARDED, 2, "stages: []", "cannot run 2 duplex frontends: replica_policy is legacy"),
    ],
    ids=["more than groups", "resume", "legacy", "nothing written"],
)
def test_frontends_that_cannot_be_are_refused(capabilities: DuplexCapabilities, count: int, text: str, message: str) -> None:
    """FE-02, FE-03, E19."""
    with pytest.raises(ConfigError, match=message) as caught:
        plan(text, capabilities=capabilities, frontend_count=count)
    assert caught.value.where == "--api-server-count"


def test_sessions_that_can_never_open_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """DP-04: allowed by the contract, and said."""
    groups = "[{0: 0, 1: 0}, {0: 1, 1: 0}]"
    text = fields(max_sessions=4, replica_policy="least_sessions", max_sessions_per_replica=2, replica_groups=groups)

    with caplog.at_level(logging.WARNING):
        resolved = plan(text, {0: 2, 1: 1})

    assert admitted_sessions(resolved) == 2
    assert [record.message for record in caplog.records] == [
        "my.yaml:2:17: max_sessions is 4, but at most 2 can be open at once"
    ]


def test_groups_may_have_more_room_than_all_sessions_need(caplog: pytest.LogCaptureFixture) -> None:
    """DP-04: the global limit holds then."""
    with caplog.at_level(logging.WARNING):
        resolved = plan(SEED_EXAMPLE.replace("max_sessions: 4", "max_sessions: 3"))

    assert admitted_sessions(resolved) == 3
    assert caplog.records == []


def test_frontends_without_a_slot_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """FE-06: choose max_sessions >= K."""
    text = PERSONAPLEX.replace("64", "2")

    with caplog.at_level(logging.WARNING):
        resolved = plan(text, capabilities=SHARDED, frontend_count=4)

    assert [frontend.warmed_groups for frontend in resolved.frontends] == [(0, 4), (1, 5), (), ()]
    assert [record.message for record in caplog.records] == [
        "my.yaml:4:17: frontend 2, 3 of 4 accepts no session, because max_sessions is 2"
    ]


def test_plan_that_fits_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        plan(SEED_EXAMPLE)
        plan(PERSONAPLEX, capabilities=SHARDED, frontend_count=4)

    assert caplog.records == []


def test_plan_can_be_sent_to_another_process() -> None:
    """Frontends are processes of their own."""
    resolved = plan(PERSONAPLEX, capabilities=SHARDED, frontend_count=4)

    assert pickle.loads(pickle.dumps(resolved)) == resolved


scalars = st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text(max_size=3)
values = scalars | st.lists(st.dictionaries(st.integers(-1, 3) | st.text(max_size=1), scalars, max_size=3), max_size=4)
likely: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "max_sessions": st.integers(1, 20),
        "replica_policy": st.just("least_sessions"),
        "max_sessions_per_replica": st.integers(1, 4),
    },
    optional={
        "replica_groups": st.lists(
            st.fixed_dictionaries({0: st.integers(0, 1), 1: st.integers(0, 1)}), min_size=2, max_size=4, unique_by=str
        )
    },
)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(DuplexSession.model_fields)) | st.text(max_size=3), values) | likely,
    st.fixed_dictionaries({0: st.integers(1, 2), 1: st.integers(1, 2)}),
    st.builds(DuplexCapabilities, st.booleans(), st.booleans()),
    st.integers(-1, 4),
)
def test_anything_written_is_planned_or_refused(
    written: dict[str, Any], replicas: dict[int, int], capabilities: DuplexCapabilities, count: int
) -> None:
    """DX-02: nothing but ConfigError."""
    node = from_plain(written, Source("overlay", "my.yaml:1:1"))
    try:
        resolved = resolve_duplex(node, pipeline(), replicas, capabilities, frontend_count=count)
    except ConfigError:
        return

    assert len(resolved.frontends) == count


@settings(deadline=None)
@given(likely, st.integers(1, 2), st.integers(1, 2))
def test_plan_keeps_its_limits(written: dict[str, Any], replicas: int, count: int) -> None:
    """DP-04, FE-06."""
    node = from_plain(written, Source("overlay", "my.yaml:1:1"))
    try:
        resolved = resolve_duplex(node, pipeline(), {0: replicas, 1: replicas}, SHARDED, frontend_count=count)
    except ConfigError:
        assert "replica_groups" in written or count > replicas
        return

    room = replicas * resolved.settings.duplex_max_sessions
    assert sum(frontend.max_sessions for frontend in resolved.frontends) <= resolved.settings.max_sessions
    assert 0 <= admitted_sessions(resolved) <= min(resolved.settings.max_sessions, room)
    assert sorted(group for frontend in resolved.frontends for group in frontend.groups) == list(range(len(resolved.groups)))
