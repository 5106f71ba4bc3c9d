"""Names of objects as strings: `"module:attribute"`, checked without importing and loaded where they run."""

from __future__ import annotations

import importlib
import importlib.util
import re

from omni_core.errors import ConfigError, DependencyError

_FORM = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
_DOTTED = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")


def split_target(target: str, *, where: str = "") -> tuple[str, str]:
    """Return (module, attribute) of `module:attribute`, or of a dotted path cut at its last dot (PC-08).

    Raises:
        ConfigError: The string has neither form.
    """
    if _FORM.match(target):
        module, _, attribute = target.partition(":")
        return module, attribute
    if _DOTTED.match(target):
        module, _, attribute = target.rpartition(".")
        return module, attribute
    raise ConfigError(f"{target!r} is not a target", where=where, hint="write it as 'package.module:attribute'")


def load_target(target: str, *, where: str = "") -> object:
    """Import the module of `target` and return its attribute.

    Raises:
        ConfigError: The form is wrong, or the module has no such attribute.
        DependencyError: The module cannot be imported.
    """
    module_name, attribute = split_target(target, where=where)
    try:
        found: object = importlib.import_module(module_name)
    except ImportError as error:
        raise DependencyError(
            f"cannot import {module_name!r} for target {target!r}: {error}",
            where=where,
            hint="install the package that provides it, or correct the name",
        ) from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigError(
                f"module {module_name!r} has no {attribute!r}", where=where, hint=f"correct the target {target!r}"
            ) from None
    return found


def find_module(target: str, *, where: str = "") -> None:
    """Check that the module of `target` can be found, importing at most its parent packages.

    Raises:
        ConfigError: The form is wrong or there is no such module.
    """
    module_name, _ = split_target(target, where=where)
    try:
        found = importlib.util.find_spec(module_name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ConfigError(f"there is no module {module_name!r} for target {target!r}", where=where, hint="correct it")
