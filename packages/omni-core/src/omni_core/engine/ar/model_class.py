"""An AR stage's model class: its registration with vLLM and what it declares. Used in the stage host and in the engine core."""

from __future__ import annotations

from omni_core.capabilities import ModelCapabilities, read_capabilities
from omni_core.errors import ConfigError
from omni_core.plugins import plugin_manager
from omni_core.stage import ResolvedStage
from omni_core.target import load_target


def capabilities_of(model_class: type) -> ModelCapabilities:
    """Return what a model class can do: what a plugin's hook says, otherwise what the class declares."""
    found = plugin_manager().first("omni_model_capabilities", model_class=model_class)
    if found is not None and isinstance(found[1], ModelCapabilities):
        return found[1]
    return read_capabilities(model_class)


def stage_capabilities(stage: ResolvedStage) -> ModelCapabilities:
    """Return what the model of a stage can do, and register it with vLLM if it is ours.

    Of vLLM's own classes only hidden states for a next stage are asked for; a stage without one has nothing to do with us.

    Raises:
        ConfigError, DependencyError: The class cannot be used.
    """
    if stage.architecture_target is not None:
        return capabilities_of(load_model_class(stage.architecture, stage.architecture_target, where=f"stage {stage.name}"))
    if not stage.outputs:
        return ModelCapabilities()
    from omni_core.engine.vllm_bridge import ModelRegistry

    known = ModelRegistry.models.get(stage.architecture)
    return ModelCapabilities() if known is None else ModelCapabilities(capture=capabilities_of(known.load_model_cls()).capture)


def load_model_class(architecture: str, target: str, *, where: str) -> type:
    """Import a model class and register it with vLLM.

    Registered as a class, not by name: vLLM would start a Python process to look at a class that it may not import.

    Raises:
        ConfigError: The target is no class.
        DependencyError: Its module cannot be imported.
    """
    from omni_core.engine.vllm_bridge import ModelRegistry

    model_class = load_target(target, where=where)
    if not isinstance(model_class, type):
        raise ConfigError(f"{target!r} is not a class", where=where, hint="name the model class")
    ModelRegistry.register_model(architecture, model_class)
    return model_class
