"""Reading a checkpoint's JSON files, so that what is missing or of another type is an error that names it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError


@dataclass(frozen=True)
class ConfigReader:
    """One object of a config.json."""

    raw: Mapping[str, Any]
    where: str
    """The file, for messages."""
    model: str
    """What kind of checkpoint it should be of, for hints."""
    prefix: str = ""
    """Where in the file the object is: `talker_config.`."""

    @classmethod
    def of_folder(cls, folder: str | Path, model: str) -> ConfigReader:
        """Return a reader of the config.json in `folder`.

        Raises:
            ConfigError: The file is missing or is not a JSON object.
        """
        path = Path(folder) / "config.json"
        return cls(read_json(path, hint=f"give a {model} checkpoint"), str(path), model)

    def take(self, name: str, kind: type) -> Any:
        """Return a field.

        Raises:
            ConfigError: It is missing or not of type `kind`.
        """
        found = self.raw.get(name)
        if not isinstance(found, kind) or isinstance(found, bool):
            what = "is missing" if found is None else f"must be of type {kind.__name__}, not {found!r}"
            raise self.fault(f"{name} {what}")
        return found

    def optional(self, name: str, kind: type, default: Any) -> Any:
        """Return a field, or `default` where it is missing or null."""
        return default if self.raw.get(name) is None else self.take(name, kind)

    def count(self, name: str, default: int | None = None) -> int:
        """Return a field that is a positive whole number.

        Args:
            name: The field.
            default: What stands for a field that is missing or null; None where it must be there.

        Raises:
            ConfigError: It is missing or something else.
        """
        found = self._given(name, default)
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise self.fault(f"{name} must be a positive whole number, not {found!r}")
        return found

    def positive(self, name: str, default: float | None = None) -> float:
        """Return a field that is a positive number, written as a whole number or as a fraction; see `count`."""
        found = self._given(name, default)
        if not isinstance(found, (int, float)) or isinstance(found, bool) or not 0 < found < math.inf:
            raise self.fault(f"{name} must be a positive number, not {found!r}")
        return float(found)

    def _given(self, name: str, default: Any) -> Any:
        found = default if self.raw.get(name) is None else self.raw[name]
        if found is None:
            raise self.fault(f"{name} is missing")
        return found

    def ids(self, name: str, default: Mapping[str, int] | None = None) -> dict[str, int]:
        """Return a field that gives names ids: `{"ryan": 3061}`.

        Args:
            name: The field.
            default: What stands for a field that is missing or null; None where it must be there.

        Raises:
            ConfigError: It is missing or holds something else.
        """
        found = self.take(name, dict) if default is None else self.optional(name, dict, default)
        ids = ConfigReader(found, self.where, self.model, f"{self.prefix}{name}.")
        return {str(key): ids.take(key, int) for key in found}

    def section(self, name: str) -> ConfigReader:
        """Return a reader of an object inside this one."""
        return ConfigReader(self.take(name, dict), self.where, self.model, f"{self.prefix}{name}.")

    def fault(self, what: str, hint: str = "") -> ConfigError:
        """Return the error for what is wrong with this object.

        Args:
            what: What is wrong. What is about one field begins with its name.
            hint: The way out, where it is another than an unchanged checkpoint.
        """
        return ConfigError(f"{self.prefix}{what}", where=self.where, hint=hint or f"give an unchanged {self.model} checkpoint")


def read_json(path: Path, *, hint: str = "download the whole checkpoint") -> dict[str, Any]:
    """Return the object in a JSON file of a checkpoint.

    Args:
        path: The file.
        hint: What to do where it is missing.

    Raises:
        ConfigError: The file is missing or is not a JSON object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path.name}: {error.strerror}", where=str(path), hint=hint) from error
    except ValueError as error:
        raise ConfigError(f"{path.name} is not JSON: {error}", where=str(path), hint="download it again") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path.name} is not a JSON object", where=str(path), hint="download it again")
    return found
