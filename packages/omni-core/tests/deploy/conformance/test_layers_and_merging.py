"""Deploy files on top of each other, platforms and flags: rules of sections 5 to 10 and 14 that no other test is about."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from omni_core.deploy import files as deploy_files
from omni_core.deploy.merge import ATOMIC
from omni_core.errors import ConfigError
from omni_core.stage import Source

FAKE = "omni_core.testing.fakes:SumVocoder"
NATIVE = {"supports_native_mrv2_data_plane": True}


@pytest.mark.parametrize(
    ("field", "value"), [("enforce_eager", "true"), ("max_num_seqs", "8"), ("dtype", "float32"), ("env", "{A: x}")]
)
def test_null_leaves_the_engines_default(desk: Any, field: str, value: str) -> None:
    """DY-03: the key of a null value does not reach the engine."""
    written = desk.resolve("two", f"stages: [{{stage_id: 0, {field}: {value}}}]").stages[0]
    null = desk.resolve("two", f"stages: [{{stage_id: 0, {field}: null}}]").stages[0]

    assert field in written.sources
    assert (field in null.engine_args, dict(null.env)) == (False, {})


def test_scalars_of_the_overlay_win_and_structures_merge(desk: Any) -> None:
    """MG-01, MG-02: the order of stages is the base's."""
    desk.write(
        "base.yaml",
        "async_chunk: true\nconnectors: {shm: {name: SharedMemoryConnector, extra: {a: 1}}}\n"
        "stages: [{stage_id: 0, max_num_seqs: 1, dtype: float32, output_connectors: {to_stage_1: shm}}]",
    )
    overlay = (
        "base_config: base.yaml\nasync_chunk: false\nconnectors: {shm: {extra: {b: 2}}}\n"
        "stages: [{stage_id: 1, max_num_seqs: 3}, {stage_id: 0, max_num_seqs: 2}]"
    )

    resolved = desk.resolve("two", overlay)

    assert resolved.async_chunk is False
    assert [stage.engine_args for stage in resolved.stages] == [{"max_num_seqs": 2, "dtype": "float32"}, {"max_num_seqs": 3}]
    assert resolved.stages[0].outputs[0].stream == {"a": 1, "b": 2}


def test_null_of_the_whole_pipeline_says_what_it_erased(desk: Any) -> None:
    """DY-04, DY-05: for every stage, as a stage's own null does."""
    desk.write("base.yaml", "dtype: float32")

    stage = desk.resolve("two", "base_config: base.yaml\ndtype: null").stages[0]

    assert "dtype" not in stage.engine_args
    assert (stage.sources["dtype"].place, stage.sources["dtype"].value) == ("my.yaml:2:8", None)
    assert [loser.value for loser in stage.losers["dtype"]] == ["float32"]


@pytest.mark.parametrize("field", ["default_sampling_params", "env", "compilation_config", "additional_config", "hf_overrides"])
def test_mappings_of_a_stage_merge_by_key(desk: Any, field: str) -> None:
    """MG-02, MG-03: dictionaries of a stage merge, also those that the reference replaces whole."""
    desk.write("base.yaml", f"stages: [{{stage_id: 0, {field}: {{top_k: 1, temperature: 1}}}}]")

    stage = desk.resolve("two", f"base_config: base.yaml\nstages: [{{stage_id: 0, {field}: {{top_k: 2}}}}]").stages[0]

    found = {"default_sampling_params": stage.sampling, "env": stage.env}.get(field, stage.engine_args.get(field))
    assert {key: int(value) for key, value in found.items() if key in {"top_k", "temperature"}} == {
        "top_k": 2,
        "temperature": 1,
    }


def test_edges_replace_and_duplex_settings_merge(desk: Any) -> None:
    """MG-06, CN-08."""
    desk.change("two", duplex_plugin=FAKE)
    desk.write("base.yaml", "edges: []\nduplex_session: {max_sessions: 3, warmup_frames: 2}")
    overlay = "base_config: base.yaml\nsession_mode: duplex\nedges: [{from: 0, to: 1}]\nduplex_session: {max_sessions: 5}"

    resolved = desk.resolve("two", overlay)

    assert resolved.values["edges"] == [{"from": 0, "to": 1}]
    assert (resolved.duplex.settings.max_sessions, resolved.duplex.settings.warmup_frames) == (5, 2)


def test_each_file_is_read_once(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """BC-05: stages, connectors, session mode and the server see one and the same content."""
    read = Counter[str]()
    original = deploy_files.read_deploy_file

    def count(file: Any, label: str) -> Any:
        read[label] += 1
        return original(file, label)

    monkeypatch.setattr(deploy_files, "read_deploy_file", count)
    desk.write("base.yaml", "session_mode: turn\nstages: [{stage_id: 0, max_num_seqs: 1}]")

    resolved = desk.resolve("two", "base_config: base.yaml")

    assert read == {"my.yaml": 1, "base.yaml": 1}
    assert resolved.files == ("my.yaml", "base.yaml")


def test_platform_section_replaces_devices_and_merges_mappings(desk: Any) -> None:
    """PL-03: between the files and the command line."""
    text = """
stages: [{stage_id: 0, devices: "0", env: {A: 1}, default_sampling_params: {top_k: 1, temperature: 1}, max_num_seqs: 4}]
platforms:
  npu:
    stages: [{stage_id: 0, devices: "2", env: {B: 2}, default_sampling_params: {top_k: 3}, block_size: 16, max_num_seqs: 5}]
"""

    stage = desk.resolve("two", text, platform="npu", max_num_seqs=6).stages[0]

    assert (stage.devices, stage.env) == ("2", {"A": "1", "B": "2"})
    assert (stage.sampling["top_k"], stage.sampling["temperature"]) == (3, 1)
    assert stage.engine_args == {"block_size": 16, "max_num_seqs": 6}


@pytest.mark.parametrize("platform", ["npu", "xpu", "rocm", "musa", "cuda"])
def test_second_model_runner_can_be_chosen_on_every_platform(desk: Any, platform: str) -> None:
    """PL-06, MR-09: opting in is no error anywhere."""
    desk.change("two", stages={0: NATIVE, 1: NATIVE})

    resolved = desk.resolve("two", f"platforms: {{{platform}: {{model_runner: v2}}}}", platform=platform)

    assert [stage.model_runner for stage in resolved.stages] == ["v2", "v2"]
    assert resolved.warnings == ()


@pytest.mark.parametrize("flag", ["compilation_config", "additional_config", "hf_overrides"])
def test_mapping_of_a_flag_merges_into_that_of_the_file(desk: Any, flag: str) -> None:
    """PR-10."""
    stage = desk.resolve("two", f"stages: [{{stage_id: 0, {flag}: {{a: 1, b: 1}}}}]", **{flag: {"b": 2}}).stages[0]

    assert stage.engine_args[flag] == {"a": 1, "b": 2}
    assert (stage.sources[f"{flag}.a"].layer, stage.sources[f"{flag}.b"]) == (
        "base",
        Source("flag", f"--{flag.replace('_', '-')}"),
    )


def test_kv_configuration_is_one_value() -> None:
    """PR-10, SP-01."""
    assert {"omni_kv_config"} == ATOMIC


def test_names_of_extra_arguments_reach_the_stage(desk: Any) -> None:
    """SM-06: the stage's baseline has the keys, from which its engine can tell what requests will use."""
    text = "stages: [{stage_id: 0, default_sampling_params: {extra_args: {cfg_scale: 2, steps: 3}}}]"

    stage = desk.resolve("two", text, default_sampling_params='{"0": {"extra_args": {"steps": 4}}}').stages[0]

    assert stage.sampling["extra_args"] == {"cfg_scale": 2, "steps": 4}


DUPLEX_ON_V2 = "session_mode: duplex\nmodel_runner: v2\n"


@pytest.mark.parametrize(
    "text",
    [
        DUPLEX_ON_V2 + "stages: [{stage_id: 1, model_runner: v1}]",
        DUPLEX_ON_V2 + "platforms: {cuda: {model_runner: v1}}",
        DUPLEX_ON_V2 + "platforms: {cuda: {stages: [{stage_id: 1, model_runner: v1}]}}",
    ],
    ids=["stage", "platform", "stage of the platform"],
)
def test_runner_is_checked_after_every_layer(desk: Any, text: str) -> None:
    """MR-03: what a fallback takes back is no error."""
    desk.change("two", duplex_plugin=FAKE, stages={1: NATIVE})

    assert desk.resolve("two", text).stages[1].model_runner == "v1"
    with pytest.raises(ConfigError, match="model runner v2, which stage 1 uses"):
        desk.resolve("two", text, set=["stages.1.model_runner=v2"])


@pytest.mark.parametrize("name", ["use_v2_model_runner", "supports_native_mrv2_data_plane"])
@pytest.mark.parametrize("form", ["file", "extras", "override", "flag"])
def test_facts_about_the_runner_are_derived_and_never_set(desk: Any, name: str, form: str) -> None:
    """MR-07, SF-04."""
    text = {"file": f"{name}: true", "extras": f"engine_extras: {{{name}: true}}"}.get(form, "")
    overrides = {"0": {name: True}} if form == "override" else None
    flags = {name: True} if form == "flag" else {}

    with pytest.raises(ConfigError, match=name.replace("_", "[_-]")):
        desk.resolve("two", f"stages: [{{stage_id: 0, {text}}}]", overrides=overrides, **flags)
