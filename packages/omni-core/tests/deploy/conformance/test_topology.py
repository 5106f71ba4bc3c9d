"""What pipelines are and how one is chosen: rules of sections 1 to 4 that no other test is about."""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, fields
from typing import Any

import pytest

from omni_core.capabilities import DuplexCapabilities
from omni_core.errors import ConfigError
from omni_core.model_info import read_model_info
from omni_core.pipeline import ExecutionType, PipelineConfig, StagePipelineConfig

PIPELINE = {
    "model_arch": "",
    "default_deploy_config_name": None,
    "hf_architectures": (),
    "hf_config_predicate": None,
    "diffusers_class_name": None,
    "diffusers_class_aliases": (),
    "duplex_plugin": None,
    "duplex_capabilities": DuplexCapabilities(),
    "default_session_mode": None,
    "supports_duplex_mrv2": False,
    "endpoint_restrictions": (),
    "stage_cli_aliases": {},
    "single_stage_streams": False,
    "speech": None,
    "chat": None,
}
STAGE = {
    "execution_type": ExecutionType.LLM_AR,
    "input_sources": (),
    "final_output": False,
    "final_output_type": None,
    "owns_tokenizer": False,
    "requires_multimodal_data": False,
    "model_arch": None,
    "hf_config_name": None,
    "engine_output_type": None,
    "custom_process_input_func": None,
    "sync_process_input_func": None,
    "custom_process_next_stage_input_func": None,
    "async_chunk_process_next_stage_input_func": None,
    "sampling_constraints": {},
    "supports_native_mrv2_data_plane": False,
    "requires_full_payload_input": False,
    "retains_state_across_chunks": False,
    "scheduler_cls": None,
    "model_subdir": None,
    "tokenizer_subdir": None,
    "extras": {},
}


def defaults(record: type) -> dict[str, Any]:
    """Return the default of every field that has one."""
    found = {}
    for item in fields(record):
        if item.default is not MISSING:
            found[item.name] = item.default
        elif item.default_factory is not MISSING:
            found[item.name] = item.default_factory()
    return found


def test_fields_and_defaults_are_those_of_the_contract() -> None:
    """PC-02, SP-01: what the contract lists, less what nothing reads yet (rules.yaml names it)."""
    assert defaults(PipelineConfig) == PIPELINE
    assert defaults(StagePipelineConfig) == STAGE
    assert {item.name for item in fields(PipelineConfig)} - PIPELINE.keys() == {"model_type", "stages"}
    assert {item.name for item in fields(StagePipelineConfig)} - STAGE.keys() == {"stage_id", "model_stage"}


def test_execution_types_are_those_of_the_contract() -> None:
    """SP-01."""
    assert [kind.value for kind in ExecutionType] == ["LLM_AR", "LLM_GENERATION", "DIFFUSION"]


@pytest.mark.parametrize("mode", ["turn", "duplex"])
def test_duplex_plugin_counts_in_duplex_mode_only(desk: Any, mode: str) -> None:
    """PC-07, DX-01."""
    desk.change("two", duplex_plugin="omni_core.testing.fakes:SumVocoder", default_session_mode="turn")

    resolved = desk.resolve("two", f"session_mode: {mode}")

    assert resolved.values["session_mode"] == mode
    assert (resolved.duplex is not None) is (mode == "duplex")


def test_settings_of_duplex_sessions_say_that_they_have_no_effect_in_turn_mode(desk: Any) -> None:
    """DX-01."""
    (warning,) = desk.resolve("two", "duplex_session: {max_sessions: 3}").warnings

    assert warning == "my.yaml:1:17: duplex_session has no effect, the session mode is turn"


def test_resolved_pipeline_says_everything_that_runs(desk: Any) -> None:
    """PC-09: stages with their classes, communication, engine arguments, dependencies and sampling."""
    text = """
connectors: {shm: {name: SharedMemoryConnector, extra: {chunk_frames: 5}}}
stages:
  - {stage_id: 0, max_num_seqs: 4, output_connectors: {to_stage_1: shm}, default_sampling_params: {temperature: 0.5}}
"""

    talker, vocoder = desk.resolve("two", text).stages

    assert (talker.architecture, talker.architecture_target) == ("FakeModel", "omni_core.testing.fakes:SumVocoder")
    assert talker.engine_args == {"max_num_seqs": 4}
    assert talker.sampling == {"temperature": 0.5, "stop_token_ids": [2150], "detokenize": False}
    assert vocoder.topology.input_sources == (0,)
    assert talker.outputs == vocoder.inputs
    (edge,) = talker.outputs
    assert (edge.connector, edge.stream, edge.async_chunk) == ("shm", {"chunk_frames": 5}, True)


@pytest.mark.parametrize("reference", ["s3://bucket/model", "gs://bucket/models/a", "az://box/model"])
def test_weights_in_an_object_store_are_refused_without_the_network(reference: str) -> None:
    """RG-11."""
    with pytest.raises(ConfigError, match="there is no folder"):
        read_model_info(reference, weights=False)


@pytest.mark.parametrize("reference", ["", "   "])
def test_deploy_file_is_no_source_of_a_model(desk: Any, reference: str) -> None:
    """RG-12."""
    from omni_core.deploy.resolve import resolve_deployment

    with pytest.raises(ConfigError, match="no model is named"):
        resolve_deployment(reference, deploy_config=desk.write("my.yaml", "pipeline: two"), platform="cpu")


def test_modality_that_users_see_is_no_engine_output_type() -> None:
    """EO-13: `final_output_type` has its own names, such as the `timestamps` of an aligner."""
    stage = StagePipelineConfig(stage_id=0, model_stage="aligner", final_output=True, final_output_type="timestamps")

    assert PipelineConfig(model_type="aligner", stages=(stage,)).stages[0].final_output_type == "timestamps"


@pytest.mark.parametrize(
    ("section", "field"),
    [("", "input_sources: [0]"), ("", "model_arch: X"), ("stages: [{stage_id: 0, ", "execution_type: LLM_AR}]")],
)
def test_topology_is_changed_by_another_pipeline_and_not_by_a_file(desk: Any, section: str, field: str) -> None:
    """PC-06, DY-01."""
    with pytest.raises(ConfigError, match="is topology") as caught:
        desk.resolve("two", f"{section}{field}")
    assert "pipeline:" in caught.value.hint


def test_resolved_records_cannot_be_changed(desk: Any) -> None:
    """PC-01: nothing after resolving can change what was decided."""
    resolved = desk.resolve("two", "{}")

    with pytest.raises(FrozenInstanceError):
        resolved.async_chunk = False
    with pytest.raises(FrozenInstanceError):
        resolved.stages[0].devices = "3"
