"""The flags of uploaded voices, and the environment variables that other servers of the same API read for them (AP-09)."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from omni_core.errors import ConfigError

FOLDER_ENV = "SPEAKER_SAMPLES_DIR"
MOST_ENV = "SPEAKER_MAX_UPLOADED"
POLICY_ENV = "VLLM_OMNI_SPEAKER_REGISTRATION_POLICY"
POLICIES = ("immutable", "overwrite")
_MOST = 1000


def add_voice_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags; each one's default is a variable's value, checked like the flag itself."""
    text = f"the folder of voices that clients upload; default: {FOLDER_ENV}, or omni/voices in the user's data folder"
    group.add_argument("--voices-dir", metavar="DIR", help=text)
    text = f"voices that may be uploaded, 0 takes none; default: {MOST_ENV}, or {_MOST}"
    group.add_argument("--max-voices", type=_count, default=os.environ.get(MOST_ENV) or _MOST, metavar="N", help=text)
    text = f"whether an upload may replace the voice of its name; default: {POLICY_ENV}, or {POLICIES[0]}"
    policy = os.environ.get(POLICY_ENV) or POLICIES[0]
    group.add_argument("--voice-policy", type=_policy, default=policy, metavar="|".join(POLICIES), help=text)


def check_voices_dir(given: str | None, environ: Mapping[str, str] | None = None) -> str:
    """Return the absolute path of the folder of uploaded voices; it need not be there yet.

    Raises:
        ConfigError: There is something else.
    """
    variables = os.environ if environ is None else environ
    named = given or variables.get(FOLDER_ENV)
    where = "--voices-dir" if given else FOLDER_ENV
    try:
        path = Path(named).expanduser() if named else default_folder(variables)
        if "\0" in str(path):
            raise ValueError("it contains a NUL")
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{str(path)!r} is not a folder", where=where, hint="name a folder")
    except (OSError, RuntimeError, ValueError) as error:  # no home, too long, a NUL in it
        raise ConfigError(f"{str(named)[:200]!r} is no path: {error}", where=where, hint="name a folder") from error
    return str(path.absolute())


def default_folder(environ: Mapping[str, str]) -> Path:
    """Return where the user's voices are unless somebody says otherwise."""
    data = environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "omni" / "voices"


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} must be 0 or more")
    return number


def _policy(text: str) -> str:
    if text not in POLICIES:
        raise argparse.ArgumentTypeError(f"{text!r} must be {' or '.join(POLICIES)}")
    return text
