"""Lay the running platform's section, and what plugins say about the platform, on top of the deploy files."""

from __future__ import annotations

from omni_core.deploy.check import check_types
from omni_core.deploy.keys import check_document_keys, normalise
from omni_core.deploy.merge import merge, settle
from omni_core.deploy.notes import warn
from omni_core.deploy.schema import PlatformSection
from omni_core.deploy.tree import Node, from_plain
from omni_core.pipeline import PipelineConfig
from omni_core.platforms import Platform
from omni_core.plugins import PluginManager
from omni_core.stage import Source
from omni_core.suggest import did_you_mean

KNOWN = ("cpu", "cuda", "npu", "rocm", "xpu", "musa")
"""Platforms that deploy files may name although no plugin here offers them."""


def apply_platform(deploy: Node, platform: Platform, pipeline: PipelineConfig, manager: PluginManager) -> Node:
    """Return the files' tree with the section of `platform` on top, and then what plugins offer for it (PL-03, PL-05).

    Raises:
        ConfigError: A plugin offers something that is no platform section.
    """
    sections = deploy.get("platforms")
    tree = deploy.with_items({key: node for key, node in deploy.items() if key != "platforms"})
    offered = {entry.name for _, entries in manager.collect("omni_platforms") for entry in entries}
    known = sorted({*KNOWN, *offered, platform.name})
    for name, section in sections.items() if sections is not None else ():
        if str(name) not in known:
            guess = did_you_mean(name, known)
            warn(f"{section.key_place}: no platform here is called {name}" + (f" ({guess})" if guess else ""))
        if name == platform.name and section.is_mapping:
            tree = merge(tree, section.with_layer("platform"))
    offers = manager.collect("omni_platform_overrides", platform=platform, pipeline=pipeline)
    for distribution, fragment in reversed(offers):
        added = check_document_keys(from_plain(fragment, Source("platform", f"plugin {distribution}")))
        check_types(PlatformSection, added)
        tree = merge(tree, normalise(added))
    return settle(tree)
