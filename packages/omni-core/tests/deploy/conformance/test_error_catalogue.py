"""The error catalogue of the contract (section 32): each row is refused before anything starts, and names what it must name.

The rows E30 and E34 are about options of model packages, whose tests have them; E31 and the registration part of E32 belong to
the stage-based command line. `rules.yaml` says so for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from omni_core import cli
from omni_core.capabilities import DuplexCapabilities
from omni_core.errors import ConfigError, OmniError
from omni_core.pipeline import PipelineConfig, StagePipelineConfig

FAKE = "omni_core.testing.fakes:SumVocoder"
DUPLEX: dict[str, Any] = {"duplex_plugin": FAKE, "default_session_mode": "turn"}
CONCURRENT = DuplexCapabilities(supports_session_resume=True, supports_multi_session_same_replica=True)
SHARDED = DuplexCapabilities(supports_session_resume=False, supports_multi_session_same_replica=True)
TWO_REPLICAS = "stages: [{stage_id: 0, num_replicas: 2}, {stage_id: 1, num_replicas: 2}]"


@dataclass(frozen=True)
class Row:
    """One way to come to an error of the catalogue."""

    facts: tuple[str, ...]
    """What the message, its place or its hint must name."""
    text: str | None = None
    """The deploy file, my.yaml."""
    model_type: str = "two"
    given: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `desk.resolve`: flags, overrides, platform, files."""
    change: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the fake pipeline."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files beside my.yaml."""


def placed(text: str) -> str:
    """Return a deploy file with sessions that are placed; `text` are further fields of `duplex_session`."""
    fields = f"max_sessions: 4, replica_policy: least_sessions{', ' if text else ''}{text}"
    return f"session_mode: duplex\nduplex_session: {{{fields}}}\n"


def shm(references: str, name: str = "name: SharedMemoryConnector") -> str:
    return f"connectors: {{shm: {{{name}}}}}\nstages: [{references}]"


ROWS: dict[str, Row] = {
    "E02": Row(("my.yaml:1:11", "'three_'", "did you mean 'three'", "two"), "pipeline: three_"),
    "E03": Row(("checkpoint-nobody", "model_type 'nobody'", "two"), model_type="nobody"),
    "E05-file": Row(("missing.yaml", "--deploy-config"), given={"files": ["missing.yaml"]}),
    "E05-base": Row(("my.yaml", "below.yaml"), "base_config: below.yaml"),
    "E06": Row(("my.yaml -> a.yaml -> my.yaml",), "base_config: a.yaml", files={"a.yaml": "base_config: my.yaml"}),
    "E07-unknown": Row(("my.yaml:1:1", "async_chunks", "did you mean 'async_chunk'"), "async_chunks: true"),
    "E07-stage_args": Row(("my.yaml:1:1", "stage_args", "old schema"), "stage_args: []"),
    "E07-stage_configs": Row(("my.yaml:1:1", "stage_configs", "stages"), "stage_configs: []"),
    "E07-topology": Row(("my.yaml:1:1", "model_arch", "topology"), "model_arch: X"),
    "E08-without": Row(("my.yaml:1:10", "stage_id"), "stages: [{max_num_seqs: 1}]"),
    "E08-unknown": Row(("my.yaml:1:10", "stage 7", "0 (talker), 1 (vocoder)"), "stages: [{stage_id: 7}]"),
    "E08-twice": Row(("my.yaml:1:25", "stage 1", "my.yaml:1:10"), "stages: [{stage_id: 1}, {stage_id: 1}]"),
    "E08-override": Row(("--stage-overrides", "stage 9", "0 (talker), 1 (vocoder)"), given={"overrides": {"9": {}}}),
    "E09-nobody": Row(("my.yaml:1:24", "foo"), "stages: [{stage_id: 0, foo: 1}]"),
    "E09-type": Row(
        ("stage 1 (vocoder)", "LLM_GENERATION", "silence_ban_frames"), "stages: [{stage_id: 1, silence_ban_frames: 1}]"
    ),
    "E09-denoising": Row(
        ("stage 1 (dit)", "DIFFUSION", "max_num_scheduled_tokens"),
        "stages: [{stage_id: 1, max_num_scheduled_tokens: 1}]",
        "picture",
    ),
    "E10": Row(
        ("my.yaml:1:40", "use_v2_model_runner", "set model_runner"),
        "stages: [{stage_id: 0, engine_extras: {use_v2_model_runner: true}}]",
    ),
    "E10-plane": Row(
        ("my.yaml:1:24", "supports_native_mrv2_data_plane", "set model_runner"),
        "stages: [{stage_id: 0, supports_native_mrv2_data_plane: true}]",
    ),
    "E11": Row(("'two'", "--cfg-parallel-size", "--use-hsdp"), given={"cfg_parallel_size": 2, "use_hsdp": True}),
    "E12-json": Row(("--stage-overrides", '{"0": }', "character 7"), given={"overrides": '{"0": }'}),
    "E12-list": Row(("--stage-overrides", "[1]"), given={"overrides": "[1]"}),
    "E12-key": Row(("--stage-overrides", "'talker'"), given={"overrides": {"talker": {}}}),
    "E12-value": Row(("--stage-overrides", "stage 0", "3"), given={"overrides": {"0": 3}}),
    "E13-json": Row(("--default-sampling-params", "{0", "character 2"), given={"default_sampling_params": "{0"}),
    "E13-list": Row(("--default-sampling-params", "[]"), given={"default_sampling_params": "[]"}),
    "E13-stage": Row(("--default-sampling-params", "stage 9"), given={"default_sampling_params": '{"9": {}}'}),
    "E14-nobody": Row(("'whole'", "my.yaml:1:14", "async_chunk: false"), "async_chunk: true", "whole"),
    "E14-edge": Row(("'two'", "from stage 0 to stage 1", "set it alike"), "stages: [{stage_id: 1, async_chunk: false}]"),
    "E14-kv": Row(
        ("'two'", "stage 0", "kv_transfer_config", "async_chunk: false"),
        "stages: [{stage_id: 0, kv_transfer_config: {kv_connector: X}}]",
    ),
    "E15-invalid": Row(("my.yaml:1:15", "'simplex'"), "session_mode: simplex"),
    "E15-missing": Row(("'two'", "turn or duplex"), "{}", change={"duplex_plugin": FAKE}),
    "E15-plugin": Row(("'two'", "'duplex'", "duplex_plugin"), "session_mode: duplex"),
    "E16-range": Row(("duplex_session.max_sessions", "0"), "duplex_session: {max_sessions: 0}"),
    "E16-unknown": Row(("max_session", "did you mean 'max_sessions'"), "duplex_session: {max_session: 1}"),
    "E17-without": Row(("max_sessions_per_replica", FAKE), placed(""), change=DUPLEX),
    "E17-below": Row(("max_sessions_per_replica", "0"), placed("max_sessions_per_replica: 0"), change=DUPLEX),
    "E17-above": Row(("max_sessions_per_replica", "2", FAKE), placed("max_sessions_per_replica: 2"), change=DUPLEX),
    "E18-unequal": Row(
        ("stage 0", "stage 1", "2", "1"),
        placed("max_sessions_per_replica: 1") + "stages: [{stage_id: 0, num_replicas: 2}]",
        change=DUPLEX,
    ),
    "E18-missing": Row(
        ("group 0", "stage 1"),
        placed("max_sessions_per_replica: 1, replica_groups: [{0: 0}]"),
        change=DUPLEX,
    ),
    "E18-replica": Row(
        ("group 0", "stage 1", "replica 3"),
        placed("max_sessions_per_replica: 1, replica_groups: [{0: 0, 1: 3}]"),
        change=DUPLEX,
    ),
    "E18-negative": Row(
        ("replica_groups.0", "-1"),
        placed("max_sessions_per_replica: 1, replica_groups: [{0: 0, 1: -1}]"),
        change=DUPLEX,
    ),
    "E18-unused": Row(
        ("replica 1", "stage 0"),
        placed("max_sessions_per_replica: 1, replica_groups: [{0: 0, 1: 0}, {0: 0, 1: 1}]") + TWO_REPLICAS,
        change=DUPLEX,
    ),
    "E18-twice": Row(
        ("group 0", "1"),
        placed("max_sessions_per_replica: 1, replica_groups: [{0: 0, 1: 0}, {0: 0, 1: 0}]"),
        change=DUPLEX,
    ),
    "E19-groups": Row(
        ("--api-server-count", "2", "1"),
        placed("max_sessions_per_replica: 1"),
        given={"frontends": 2},
        change={**DUPLEX, "duplex_capabilities": SHARDED},
    ),
    "E19-legacy": Row(
        ("--api-server-count", "2", "legacy"),
        "session_mode: duplex",
        given={"frontends": 2},
        change={**DUPLEX, "duplex_capabilities": SHARDED},
    ),
    "E19-resume": Row(
        ("--api-server-count", "2", FAKE),
        placed("max_sessions_per_replica: 1") + TWO_REPLICAS,
        given={"frontends": 2},
        change={**DUPLEX, "duplex_capabilities": CONCURRENT},
    ),
    "E19-owners": Row(
        ("--api-server-count", "2 frontends", "2 replica groups", "replica 0 of stage 1", "frontends 0 and 1"),
        placed("max_sessions_per_replica: 2, replica_groups: [{0: 0, 1: 0}, {0: 1, 1: 0}]")
        + "stages: [{stage_id: 0, num_replicas: 2}]",
        given={"frontends": 2},
        change={**DUPLEX, "duplex_capabilities": SHARDED},
    ),
    "E20": Row(
        (
            "stage 0 (talker)",
            "3 device(s)",
            "4 rank(s)",
            "tensor_parallel_size 2",
            "data_parallel_size 1",
            "pipeline_parallel_size 2",
            "2 replicas",
            "4 or 8",
        ),
        "pipeline_parallel_size: 2\nstages: [{stage_id: 0, devices: '0,1,2', tensor_parallel_size: 2, num_replicas: 2}]",
    ),
    "E20-broadcast": Row(
        ("stage 0 (talker)", "--tensor-parallel-size", "every stage", "--stage-overrides", '"devices": "0,1"'),
        "stages: [{stage_id: 0, devices: '0'}]",
        given={"tensor_parallel_size": 2},
    ),
    "E21-range": Row(
        ("stage 0 (talker)", "'2,3'", "0 to 1"),
        "stages: [{stage_id: 0, devices: '2,3', tensor_parallel_size: 2, num_replicas: 2}]",
    ),
    "E21-name": Row(
        ("stage 0 (talker)", "'GPU-a,GPU-b'", "0 to 1"),
        "stages: [{stage_id: 0, devices: 'GPU-a,GPU-b', tensor_parallel_size: 2, num_replicas: 2}]",
    ),
    "E22-name": Row(("'shm'", "`name`", "SharedMemoryConnector"), shm("", "extra: {}")),
    "E22-class": Row(("'shm'", "'SharedMemory'", "SharedMemoryConnector"), shm("", "name: SharedMemory")),
    "E22-reference": Row(("'shn'", "shm"), shm("{stage_id: 0, output_connectors: {to_stage_1: shn}}")),
    "E22-edge": Row(("stage 0", "stage 5", "0 to 1"), shm("{stage_id: 0, output_connectors: {to_stage_5: shm}}")),
    "E22-mismatch": Row(
        ("stage 0 to stage 1", "'shm'", "'store'"),
        "connectors: {shm: {name: SharedMemoryConnector}, store: {name: StoreConnector}}\n"
        "stages: [{stage_id: 0, output_connectors: {to_stage_1: shm}}, {stage_id: 1, input_connectors: {from_stage_0: store}}]",
    ),
    "E23-deploy": Row(("model_runner", "'v3'", "'v1'", "'v2'"), "model_runner: v3"),
    "E23-stage": Row(("stages.0.model_runner", "'v3'", "'v1'", "'v2'"), "stages: [{stage_id: 0, model_runner: v3}]"),
    "E24": Row(
        ("'two'", "stage 1", "v1"),
        "session_mode: duplex\nmodel_runner: v2",
        change={**DUPLEX, "stages": {1: {"supports_native_mrv2_data_plane": True}}},
    ),
    "E26-value": Row(
        ("stage 0 (talker)", "moe_backend", "'tritn'", "flashinfer_cutlass"), "stages: [{stage_id: 0, moe_backend: tritn}]"
    ),
    "E26-attention": Row(
        ("stage 1 (dit)", "attention_backend", "diffusion_attention_config"),
        "stages: [{stage_id: 1, attention_backend: FLASH_ATTN}]",
        "picture",
    ),
    "E26-both": Row(
        ("stage 1 (dit)", "diffusion_attention_backend", "diffusion_attention_config"),
        "stages: [{stage_id: 1, diffusion_attention_backend: TORCH_SDPA, diffusion_attention_config: {default: FLASH_ATTN}}]",
        "picture",
    ),
    "E27-global": Row(
        ("--enable-lora", "'two'", "--stage-overrides", '{"0": {"enable_lora": true}}'), given={"enable_lora": True}
    ),
    "E27-denoising": Row(
        ("stage 1 (dit)", "enable_lora", "lora_path"), "stages: [{stage_id: 1, enable_lora: true}]", "picture"
    ),
    "E28-without": Row(("stage 0 (talker)", "[0]", "numa_bind"), "stages: [{stage_id: 0, numa_bind_nodes: [0]}]"),
    "E28-syntax": Row(
        ("stage 0 (talker)", "numa_bind_cpus", "3-0"), "stages: [{stage_id: 0, numa_bind: true, numa_bind_cpus: ['3-0']}]"
    ),
    "E28-few": Row(
        ("stage 0 (talker)", "numa_bind_cpus", "1 entries", "2"),
        "stages: [{stage_id: 0, numa_bind: true, numa_bind_cpus: ['0'], tensor_parallel_size: 2, devices: '0,1'}]",
    ),
    "E29": Row(
        ("GPU 0", "stages 0 (talker) and 1 (vocoder)", "/run/a", "/run/b"),
        "cuda_mps: true\nstages: [{stage_id: 0, devices: '0', env: {CUDA_MPS_PIPE_DIRECTORY: /run/a}}, "
        "{stage_id: 1, devices: '0', env: {CUDA_MPS_PIPE_DIRECTORY: /run/b}}]",
    ),
    "E33-launcher": Row(
        ("stage 1 (dit)", "'external_launcher'"),
        "stages: [{stage_id: 1, distributed_executor_backend: external_launcher}]",
        "picture",
    ),
    "E33-ray": Row(
        ("stage 0 (talker)", "'ray'", "pip install ray"), "stages: [{stage_id: 0, distributed_executor_backend: ray}]"
    ),
}


DIRTY = {
    "E01-empty": ((), ("no stages",)),
    "E01-twice": (((0,), (0,)), ("stage ids [0] appear twice",)),
    "E01-source": (((0,), (1, 7)), ("stage 1 (s1)", "[7]")),
    "E01-self": (((0,), (1, 1, 0)), ("stage 1 (s1)", "itself")),
    "E01-cycle": (((0,), (1, 2), (2, 1)), ("1 -> 2 -> 1",)),
    "E01-entry": (((0, 1), (1, 0)), ("entry point",)),
    "E01-all": (((0, 0), (2, 9)), ("itself", "contiguous from 0", "[9]", "entry point")),
}
"""Stages as (id, sources ...), and the faults that must be named beside the pipeline."""


@pytest.fixture(autouse=True)
def _nothing_starts(nothing_starts: Any) -> None:
    """Watch every test of this module."""


@pytest.mark.parametrize("name", ROWS)
def test_row_is_refused_and_names_its_facts(name: str, desk: Any) -> None:
    row = ROWS[name]
    for file, text in row.files.items():
        desk.write(file, text)
    if row.change:
        desk.change(row.model_type, **row.change)

    with pytest.raises(ConfigError) as caught:
        desk.resolve(row.model_type, row.text, **row.given)

    assert [fact for fact in row.facts if fact not in str(caught.value)] == [], str(caught.value)
    assert caught.value.exit_code == 2
    assert caught.value.hint


@pytest.mark.parametrize("name", DIRTY)
def test_topology_is_refused_with_every_fault(name: str) -> None:
    stages, faults = DIRTY[name]
    last = len(stages) - 1
    made = tuple(
        StagePipelineConfig(stage_id=ids[0], model_stage=f"s{ids[0]}", input_sources=ids[1:], final_output=position == last)
        for position, ids in enumerate(stages)
    )

    with pytest.raises(ConfigError) as caught:
        PipelineConfig(model_type="dirty", stages=made)

    assert [fault for fault in ("'dirty'", *faults) if fault not in str(caught.value)] == [], str(caught.value)


def test_topology_without_a_final_output_is_refused() -> None:
    """E01."""
    with pytest.raises(ConfigError, match=r"(?s)'dirty'.*no stage has final_output"):
        PipelineConfig(model_type="dirty", stages=(StagePipelineConfig(stage_id=0, model_stage="s0"),))


@pytest.mark.parametrize(
    ("value", "fact"),
    [("wav", "write audio"), ("text+tokens", "text for text output, or token_ids"), ("Text", "text, image, audio, latent")],
)
def test_output_type_is_refused_with_its_stage_and_the_way_out(value: str, fact: str) -> None:
    """E25."""
    stage = StagePipelineConfig(stage_id=0, model_stage="talker", final_output=True, engine_output_type=value)

    with pytest.raises(ConfigError) as caught:
        PipelineConfig(model_type="dirty", stages=(stage,))

    facts = ("'dirty'", "stage 0 (talker)", repr(value), repr(value.split("+")[-1]), fact)
    assert [fact for fact in facts if fact not in str(caught.value)] == [], str(caught.value)


def test_faulty_pipeline_of_a_plugin_stops_the_start_with_its_faults(desk: Any) -> None:
    """E01, E25: the hook builds it, so the message comes through the plugin host."""

    def build() -> list[PipelineConfig]:
        return [PipelineConfig(model_type="dirty", stages=(StagePipelineConfig(stage_id=0, model_stage="s0"),))]

    desk.hooks["omni_pipelines"] = build

    with pytest.raises(OmniError) as caught:
        desk.resolve("dirty")
    assert "acme" in str(caught.value)
    assert "no stage has final_output" in str(caught.value)


def test_two_pipelines_that_match_are_both_named(desk: Any) -> None:
    """E04."""
    stages = (StagePipelineConfig(stage_id=0, model_stage="s0", final_output=True),)
    desk.hooks["omni_pipelines"] = [
        PipelineConfig(model_type=key, stages=stages, hf_architectures=("Shared",)) for key in ("old", "new")
    ]

    with pytest.raises(ConfigError) as caught:
        desk.resolve("unknown", config={"architectures": ["Shared"]})
    assert [fact for fact in ("'old'", "'new'", "pipeline: KEY") if fact not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--stage-overrides", '{"0": }'], ("--stage-overrides", '{"0": }', "character 7")),
        (["--stage-overrides", "[]"], ("--stage-overrides", "[]", "no object")),
        (["--stage-overrides", '{"0": 3}'], ("--stage-overrides", "stage 0", "3")),
        (["--default-sampling-params", "{0"], ("--default-sampling-params", "{0", "character 2")),
        (["--default-sampling-params", '{"x": {}}'], ("--default-sampling-params", "'x'")),
    ],
    ids=["E12-json", "E12-list", "E12-value", "E13-json", "E13-key"],
)
def test_command_line_is_refused_before_the_model_is_looked_at(
    arguments: list[str], facts: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "setup_logging", lambda process: None)

    with pytest.raises(SystemExit) as caught:
        cli.main(["config", "show", "/no/such/model", *arguments])

    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert [fact for fact in facts if fact not in said] == [], said
