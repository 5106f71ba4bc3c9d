"""vLLM's entry point into Omni: makes the plugins' model classes and configurations known. Runs in every process of vLLM."""

from __future__ import annotations

from omni_core.errors import ConfigError
from omni_core.plugins import plugin_manager
from omni_core.target import load_target, split_target

_done: set[str] = set()


def register() -> None:
    """Register every architecture and configuration that plugins offer. Cheap, and a second call does nothing.

    Model classes stay names until vLLM loads one. Configuration classes are imported, because transformers wants classes.
    """
    from omni_core.engine.vllm_bridge import ModelRegistry

    manager = plugin_manager()
    for _, architectures in manager.collect("omni_architectures"):
        for architecture, target in architectures.items():
            if architecture not in _done and architecture not in ModelRegistry.models:
                module, attribute = split_target(target, where=f"architecture {architecture}")
                ModelRegistry.register_model(architecture, f"{module}:{attribute}")
            _done.add(architecture)
    for _, configs in manager.collect("omni_hf_configs"):
        for model_type, target in configs.items():
            if model_type not in _done:
                _register_config(model_type, target)
            _done.add(model_type)


def _register_config(model_type: str, target: str) -> None:
    from transformers import AutoConfig

    config_class = load_target(target, where=f"configuration {model_type}")
    declared = getattr(config_class, "model_type", None)
    if declared != model_type:
        raise ConfigError(
            f"{target!r} has the model_type {declared!r}, not {model_type!r}",
            where="hook omni_hf_configs",
            hint="let the class and the hook name the same model_type",
        )
    AutoConfig.register(model_type, config_class, exist_ok=True)
