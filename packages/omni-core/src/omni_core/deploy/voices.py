"""The folder of prepared voices (CV-01). What is in it is read by the models that support it."""

from __future__ import annotations

import os
from pathlib import Path

from omni_core.errors import ConfigError


def check_voice_folder(folder: str, *, where: str = "") -> Path:
    """Return the absolute path of `custom_voice_dir`, so that every process finds it.

    Args:
        folder: The value; relative to the working directory, `~` is the user's home.
        where: The value's place.

    Raises:
        ConfigError: There is no such folder, or it cannot be read.
    """
    fault = ""
    try:
        path = Path(folder).expanduser().absolute()
        if not path.exists():
            fault = "does not exist"
        elif not path.is_dir():
            fault = "is no folder"
        elif not os.access(path, os.R_OK | os.X_OK):
            fault = "cannot be read"
    except (OSError, RuntimeError, ValueError) as error:  # too long, no home of that user, a NUL in it
        raise _error(folder, f"is no path: {error}", where) from error
    if fault:
        raise _error(folder, fault, where)
    return path


def _error(folder: str, fault: str, where: str) -> ConfigError:
    return ConfigError(
        f"custom_voice_dir {folder!r} {fault}",
        where=where,
        hint="correct the path, or remove custom_voice_dir",
        param="custom_voice_dir",
    )
