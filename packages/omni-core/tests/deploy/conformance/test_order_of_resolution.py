"""The steps of resolving (section 31): what is looked at before what, and that nothing is started, opened or fetched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omni_core.deploy.resolve import resolve_deployment
from omni_core.errors import ConfigError
from omni_core.model_info import ModelInfo
from omni_core.testing.plugins import make_manager, make_plugin

CATALOGUE = Path(__file__).with_name("test_error_catalogue.py")
HEAVY = ("torch", "vllm", "transformers", "diffusers", "starlette")
DEVICES = "devices: '0,1'"


def unlucky(stages: Any) -> None:
    raise ConfigError("a plugin finds fault")


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ({"overrides": "{", "text": "async_chunks: true"}, "is not JSON"),
        ({"text": "async_chunks: true\npipeline: nothing"}, "async_chunks is not one of"),
        ({"text": "pipeline: nothing\nstages: [{stage_id: 9}]"}, "there is no pipeline 'nothing'"),
        ({"text": "stages: [{stage_id: 9}]", "cfg_parallel_size": 2}, "has no stage 9"),
        ({"text": f"stages: [{{stage_id: 0, {DEVICES}}}]", "cfg_parallel_size": 2}, "no stage of pipeline 'two' takes"),
        ({"text": f"stages: [{{stage_id: 0, silence_ban_frames: -1, {DEVICES}}}]"}, "silence_ban_frames: input should be"),
        ({"text": f"stages: [{{stage_id: 0, moe_backend: x, {DEVICES}}}]"}, r"lists 2 device\(s\)"),
        ({"text": "stages: [{stage_id: 0, moe_backend: x}]"}, "there is no moe_backend"),
        ({"text": "{}"}, "a plugin finds fault"),
    ],
    ids=["command line", "file", "pipeline", "stages", "flags", "types", "devices", "backends", "plugins"],
)
def test_earliest_step_speaks(desk: Any, given: dict[str, Any], first: str) -> None:
    """RA-01, RA-03, RA-04, RA-07, RA-12, RA-13, RA-14: each case has the fault of a later step too."""
    desk.hooks["omni_config_resolved"] = unlucky

    with pytest.raises(ConfigError, match=first):
        desk.resolve("two", **given)


def test_default_file_is_read_after_the_pipeline_is_known(desk: Any) -> None:
    """RA-02, RA-05: and not at all where the user names one."""
    desk.write("bundle/two.yaml", "stages: [{stage_id: 0, max_num_seqs: 7}]")

    assert desk.resolve("two").stages[0].engine_args == {"max_num_seqs": 7}
    assert desk.resolve("two", "{}").stages[0].engine_args == {}
    assert desk.resolve("three").files == ()


def test_flags_of_the_whole_pipeline_lie_below_nothing_but_overrides(desk: Any) -> None:
    """RA-08, RA-09, RA-12: async_chunk, a pipeline-wide field, the platform's section, a flag, an override."""
    text = "async_chunk: true\ndtype: float32\nplatforms: {cuda: {dtype: bfloat16, async_chunk: true}}"

    resolved = desk.resolve("two", text, async_chunk=False, dtype="float16", overrides={"1": {"dtype": "bfloat16"}})

    assert resolved.async_chunk is False
    assert [stage.engine_args["dtype"] for stage in resolved.stages] == ["float16", "bfloat16"]
    assert resolved.sources["async_chunk"].place == "--async-chunk"


def test_same_input_has_the_same_result(desk: Any) -> None:
    """RA-15: immutable, with a hash that knows every value."""
    text = "stages: [{stage_id: 0, max_num_seqs: 4, env: {B: 1, A: 2}}]"
    other = "stages: [{stage_id: 0, env: {A: 2, B: 1}, max_num_seqs: 4}]"

    first = desk.resolve("two", text)

    assert first == desk.resolve("two", text)
    assert first.config_hash == desk.resolve("two", other).config_hash
    assert first.config_hash != desk.resolve("two", text, max_num_seqs=5).config_hash


def test_checkpoint_needs_nothing_but_its_configuration(desk: Any, nothing_starts: Any) -> None:
    """RA-16: a whole deployment is resolved before a weight is opened, a process started or a socket bound."""
    resolved = desk.resolve("three", "stages: [{stage_id: 1, num_replicas: 2, devices: '0,1'}]")

    assert [path.name for path in Path(resolved.model).iterdir()] == ["config.json"]
    assert nothing_starts() == []


def test_record_of_started_processes_notices_one(nothing_starts: Any) -> None:
    """The record that other tests rely on can fail."""
    from_here = nothing_starts()
    subprocess.run([sys.executable, "-c", ""], timeout=60, check=True)

    assert from_here == []
    assert "subprocess.Popen" in nothing_starts()
    nothing_starts.forget()


def test_weights_of_a_repository_are_fetched_last(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """RA-16: a fault of the configuration costs no download."""
    fetched: list[bool] = []

    def read(reference: str, *, revision: str | None = None, weights: bool = True) -> ModelInfo:
        fetched.append(weights)
        return ModelInfo(reference, desk.folder, {"model_type": "two"})

    monkeypatch.setattr("omni_core.deploy.resolve.read_model_info", read)
    manager = make_manager({"acme": make_plugin(**desk.hooks)})

    with pytest.raises(ConfigError):
        resolve_deployment("org/two", flags={"devices": "0"}, manager=manager, platform="cpu")
    assert fetched == [False]


def test_whole_catalogue_runs_without_an_engine() -> None:
    """In a process of its own, so that nothing another test imported is there."""
    script = f"""
import sys, pytest
code = pytest.main([{str(CATALOGUE)!r}, "-q", "-p", "no:cacheprovider"])
print("HEAVY", sorted(set({HEAVY!r}) & set(sys.modules)))
sys.exit(code)
"""

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "HEAVY []"
