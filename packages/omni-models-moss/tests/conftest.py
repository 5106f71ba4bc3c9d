"""Resolve deployments of MOSS-TTS checkpoints that have nothing but a config.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import omni_connectors.plugin
import omni_models_moss.plugin
from omni_core.deploy.resolve import resolve_deployment
from omni_core.platforms import CPU, CUDA, Platform
from omni_core.stage import ResolvedPipeline
from omni_core.testing.plugins import make_manager


@pytest.fixture
def resolve(tmp_path: Path) -> Callable[..., ResolvedPipeline]:
    """Resolve a deployment with core, the connectors and this package, whatever else is installed."""
    manager = make_manager({"omni-connectors": omni_connectors.plugin, "omni-models-moss": omni_models_moss.plugin})

    def run(deploy: str | Path | None = None, *, platform: str = "cuda", **config: Any) -> ResolvedPipeline:
        model = tmp_path / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(config or {"model_type": "moss_tts_local"}))
        found = {"cpu": CPU, "cuda": CUDA}.get(platform) or Platform(platform, platform)
        return resolve_deployment(model, deploy_config=deploy, manager=manager, platform=found)

    return run
