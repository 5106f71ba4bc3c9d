"""Settings with their reasons, and the lines of a server's start."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from omni_core import client
from omni_core.deploy.explain import all_settings, describe_stage, find_source, show_value
from omni_core.engine.orchestrator import Orchestrator
from omni_core.stage import Source
from omni_core.testing.pipelines import fake_pipeline


def test_nested_values_take_the_source_of_what_is_around_them() -> None:
    sources = {"compilation_config": Source("base", "a:1:1"), "compilation_config.mode": Source("flag", "--x")}

    assert find_source("compilation_config.mode", sources).layer == "flag"
    assert find_source("compilation_config.cudagraph_mode.x", sources).layer == "base"
    assert find_source("max_num_seqs", sources) == Source("default")


def test_every_value_of_stages_and_edges_is_a_setting() -> None:
    resolved = fake_pipeline(
        engine_args={0: {"compilation_config": {"mode": 3}, "hf_overrides": {}}},
        stream={"codec_chunk_frames": 5},
        env={"A": "b"},
    )

    found = {(setting.stage, setting.field): setting.value for setting in all_settings(resolved)}

    assert found[None, "async_chunk"] is True
    assert found[0, "compilation_config.mode"] == 3
    assert found[0, "to_stage_1.connector"] == "folder"
    assert found[0, "to_stage_1.codec_chunk_frames"] == 5
    assert found[1, "env.A"] == "b"


@pytest.mark.parametrize(
    ("value", "expected"), [(None, "-"), ("a b", "a b"), ("", '""'), (True, "true"), ([1], "[1]"), (0.5, "0.5")]
)
def test_values_are_shown_as_people_write_them(value: object, expected: str) -> None:
    assert show_value(value) == expected


def test_line_of_a_stage_has_what_matters_at_start() -> None:
    resolved = fake_pipeline(replicas={0: 2}, engine_args={0: {"max_num_seqs": 8, "dtype": "auto"}})

    line = describe_stage(replace(resolved.stages[0], devices="0,1", platform="cuda"))

    assert line == (
        "stage 0 (talker): LLM_AR, FakeModel on cuda, devices 0,1, 2 replicas, model runner v1, max_num_seqs 8, "
        "chunks to stage 1 by folder"
    )


@pytest.mark.anyio
async def test_start_logs_the_hash_one_line_for_each_stage_and_warnings_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def start(self: Orchestrator) -> None:
        return None

    monkeypatch.setattr(Orchestrator, "prepare", lambda self: None)
    monkeypatch.setattr(Orchestrator, "start", start)
    resolved = replace(fake_pipeline(), files=("my.yaml",), warnings=("my.yaml:1:1: odd",))
    omni = client.AsyncOmni.from_resolved(resolved)

    with caplog.at_level(logging.INFO, "omni_core.client"):
        await omni.start()

    assert [record.getMessage() for record in caplog.records if record.name == "omni_core.client"] == [
        f"pipeline fake on cpu, configuration {resolved.config_hash} (my.yaml)",
        describe_stage(resolved.stages[0]),
        describe_stage(resolved.stages[1]),
        "my.yaml:1:1: odd",
    ]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
