"""LoRA adapters that a server offers as models: `--lora-modules NAME=PATH`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from omni_core.deploy.lora import adapter_of
from omni_core.errors import ConfigError, RequestError
from omni_core.request import LoraAdapter
from omni_core.stage import ResolvedPipeline

_FLAG = "--lora-modules"


def parse_lora_modules(items: Iterable[str]) -> tuple[LoraAdapter, ...]:
    """Return the adapters that are written as NAME=PATH.

    Raises:
        ConfigError: An item has another form, a name comes twice, or a folder holds no adapter.
    """
    found: dict[str, LoraAdapter] = {}
    for item in items:
        name, _, path = item.partition("=")
        if not name or not path:
            raise ConfigError(f"{item!r} is no adapter", where=_FLAG, hint="write it as NAME=PATH")
        if name in found:
            raise ConfigError(f"the adapter name {name!r} comes twice", where=_FLAG, hint="give each its own name")
        if not Path(path, "adapter_config.json").is_file():
            raise ConfigError(f"{path!r} holds no adapter", where=_FLAG, hint="name a folder with adapter_config.json")
        found[name] = LoraAdapter(name, str(Path(path).absolute()))
    return tuple(found.values())


def check_adapters(adapters: Iterable[LoraAdapter], pipeline: ResolvedPipeline | None) -> None:
    """Check that a pipeline takes adapters, before it starts.

    Raises:
        ConfigError: It does not.
    """
    for adapter in adapters:
        if pipeline is None:
            raise ConfigError("this engine takes no LoRA adapters", where=_FLAG, hint=f"leave {_FLAG} out")
        try:
            adapter_of(adapter, pipeline)
        except RequestError as error:
            raise ConfigError(error.message, where=_FLAG, hint=error.hint) from error
