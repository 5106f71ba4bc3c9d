"""Resolve deploy files where there is no checkpoint: the files themselves say which pipeline they are for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath

from omni_core.deploy.files import Bundle, read_deployment
from omni_core.errors import ConfigError
from omni_core.model_info import ModelInfo
from omni_core.plugins import PluginManager
from omni_core.registry import pipelines
from omni_core.suggest import way_out


def is_deploy_file(name: str, manager: PluginManager) -> bool:
    """Return whether a word on the command line names a deploy file, bundled ones included, and not a model."""
    path = Path(name).expanduser()
    if path.is_dir():
        return False
    return path.is_file() or path.suffix in {".yaml", ".yml"} or Bundle(manager).find(name) is not None


def stand_in(names: Sequence[str], manager: PluginManager) -> ModelInfo:
    """Return a model without a checkpoint for the pipeline that deploy files are for.

    That is the one under `pipeline:`, or else the only one whose default deploy file is among these or below them.

    Raises:
        ConfigError: A file cannot be used, or nothing says which pipeline it is for.
    """
    deployment = read_deployment(list(names), Bundle(manager))
    offers = pipelines(manager)
    named = deployment.tree.get("pipeline")
    read = {PurePath(file).name for file in deployment.files}
    keys = [key for key, offer in offers.items() if offer.record.default_deploy_config_name in read]
    if named is not None:
        keys = [str(named.value)]
    if len(keys) != 1:
        raise ConfigError(
            f"nothing says which pipeline {' and '.join(names)} {'is' if len(names) == 1 else 'are'} for",
            hint=f"name a model with --model, or write `pipeline:` ({way_out('', offers, 'pipelines')})",
            param="pipeline",
        )
    config: dict[str, object] = {"model_type": keys[0]}
    if keys[0] in offers:
        config["architectures"] = list(offers[keys[0]].record.hf_architectures)
    return ModelInfo(keys[0], Path(keys[0]), config)
