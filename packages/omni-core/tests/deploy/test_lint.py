"""Checks of `lint` that need another pipeline than the command's tests have."""

from __future__ import annotations

from typing import Any

from omni_core.deploy.lint import Finding, lint_deployment
from omni_core.model_info import ModelInfo
from omni_core.testing.plugins import make_manager, make_plugin


def lint(deployments: Any, model_type: str, text: str) -> list[Finding]:
    manager = make_manager({"acme": make_plugin(**deployments.hooks)})
    info = ModelInfo(model_type, deployments.folder, {"model_type": model_type})
    return lint_deployment(info, manager, deploy_config=[deployments.write("my.yaml", text)], platform="cuda")


def test_deprecated_spelling_is_found_wherever_it_is(deployments: Any) -> None:
    text = """stages: [{stage_id: 1, enable_cpu_offload: true}]
platforms: {npu: {stages: [{stage_id: 1, diffusion_attention_backend: SDPA}]}}
"""

    found = [finding for finding in lint(deployments, "picture", text) if finding.rule == "deprecated"]

    assert [(finding.where.rpartition("/")[2], finding.text) for finding in found] == [
        ("my.yaml:1:24", "enable_cpu_offload is deprecated"),
        ("my.yaml:2:42", "diffusion_attention_backend is deprecated"),
    ]
    assert all("diffusion_" in finding.hint for finding in found)


def test_each_finding_is_said_once(deployments: Any) -> None:
    text = "connectors: {shm: {name: SharedMemoryConnector}}\n"

    found = lint(deployments, "two", text)

    assert len(found) == len(set(found))
    assert [finding.rule for finding in found].count("unused connector") == 1


def test_file_that_cannot_be_read_is_one_error(deployments: Any) -> None:
    (finding,) = lint(deployments, "two", "stages: [")

    assert (finding.level, finding.rule) == ("error", "cannot start")
    assert finding.where.startswith("my.yaml:")
