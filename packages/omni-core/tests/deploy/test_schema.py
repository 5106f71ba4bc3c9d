from collections.abc import Callable
from typing import Any

import pytest

from omni_core.deploy.diffusion import DiffusionFields
from omni_core.deploy.schema import DeployConfig, DuplexSession, EngineFields, PlacementFields
from omni_core.errors import ConfigError
from omni_core.stage import ResolvedPipeline

Resolve = Callable[..., ResolvedPipeline]


def stage(field: str) -> str:
    return f"stages: [{{stage_id: 0, {field}}}]"


@pytest.mark.parametrize(
    "text",
    [
        "async_chunk: 1",
        "async_chunk: yes",
        "async_chunk: 'true'",
        "model_runner: v3",
        "session_mode: both",
        "active_stream_window: -1",
        "active_stream_window: 1.0",
        "data_parallel_size: 0",
        "trust_remote_code: 'true'",
        "dtype: 16",
        "weight_transfer_config: nccl",
        "duplex_session: {max_sessions: 0}",
        "duplex_session: {idle_ttl_s: 0}",
        "duplex_session: {replica_policy: random}",
        "duplex_session: {replica_groups: [{0: -1}]}",
        "connectors: {shm: SharedMemoryConnector}",
        "stages: {0: {}}",
        "stages: [0]",
        stage("max_num_seqs: 0"),
        stage("max_num_seqs: 1.5"),
        stage("max_num_seqs: true"),
        stage("max_num_seqs: '8'"),
        stage("gpu_memory_utilization: 0"),
        stage("gpu_memory_utilization: 1.01"),
        stage("gpu_memory_utilization: .nan"),
        stage("max_model_len: -2"),
        stage("kv_cache_memory_bytes: -1"),
        stage("mm_processor_cache_gb: -0.5"),
        stage("env: {A: [1]}"),
        stage("env: {A: true}"),
        stage("devices: {a: 1}"),
        stage("num_replicas: 0"),
        stage("numa_bind_nodes: [a]"),
        "stages: [{stage_id: '0'}]",
        "stages: [{stage_id: -1}]",
    ],
)
def test_wrong_type_or_range_is_refused_at_its_place(resolve: Resolve, text: str) -> None:
    """DY-10: booleans and numbers are strict."""
    with pytest.raises(ConfigError, match="got") as caught:
        resolve("two", text)
    assert caught.value.where.startswith("my.yaml:1:")


def test_all_faults_of_a_file_are_reported_at_once(resolve: Resolve) -> None:
    text = "async_chunk: maybe\nstages:\n  - stage_id: 0\n    gpu_memory_utilization: lots\n"

    with pytest.raises(ConfigError) as caught:
        resolve("two", text)

    message = str(caught.value)
    assert message.startswith("my.yaml:1:14: async_chunk: ")
    assert "my.yaml:4:29: stages.0.gpu_memory_utilization: " in message
    assert "(got 'lots')" in message


@pytest.mark.parametrize(("written", "devices"), [("0", "0"), ('"0"', "0"), ("[0]", "0"), ("'0'", "0")])
def test_devices_may_be_written_as_a_number_or_a_list(resolve: Resolve, written: str, devices: str) -> None:
    assert resolve("two", stage(f"devices: {written}")).stages[0].devices == devices


def test_environment_values_become_strings(resolve: Resolve) -> None:
    assert resolve("two", stage("env: {A: 1, B: x, C: 0.5}")).stages[0].env == {"A": "1", "B": "x", "C": "0.5"}


@pytest.mark.parametrize("model", [DeployConfig, DuplexSession, EngineFields, PlacementFields, DiffusionFields])
def test_every_field_says_what_it_means(model: Any) -> None:
    undescribed = [name for name, field in model.model_fields.items() if not field.description]

    assert undescribed == []


def test_schema_can_be_exported() -> None:
    schema = DeployConfig.model_json_schema()

    assert schema["additionalProperties"] is False
    assert "gpu_memory_utilization" in schema["$defs"]["StageDeployConfig"]["properties"]
