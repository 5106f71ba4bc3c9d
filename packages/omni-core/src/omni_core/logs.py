"""Set-up of the log: one form for every process of Omni, on stderr, so that stdout carries results only."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import TextIO

from omni_core import envs
from omni_core.errors import ConfigError

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_FORMATS = ("text", "json")


class TextFormatter(logging.Formatter):
    """Write `(process pid=N) LEVEL MM-DD hh:mm:ss [file:line] message`, as vLLM does."""

    def __init__(self, process: str) -> None:
        super().__init__(
            f"({process} pid={os.getpid()}) %(levelname)s %(asctime)s [%(filename)s:%(lineno)d] %(message)s",
            datefmt="%m-%d %H:%M:%S",
        )


class JsonFormatter(logging.Formatter):
    """Write one JSON object for each record."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        fields = {
            "time": record.created,
            "level": record.levelname,
            "process": self.process,
            "pid": os.getpid(),
            "logger": record.name,
            "place": f"{record.filename}:{record.lineno}",
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def setup_logging(process: str, *, level: str | None = None, form: str | None = None, stream: TextIO | None = None) -> None:
    """Send the records of every `omni_*` package to stderr. Called once in each process; a second call replaces the first.

    Args:
        process: The name in front of each line, such as `server` or `stage0-talker`.
        level: DEBUG, INFO, WARNING or ERROR; by default OMNI_LOG_LEVEL.
        form: `text` or `json`; by default OMNI_LOG_FORMAT.
        stream: Where to write instead of stderr.

    Raises:
        ConfigError: The level or the form is none of these.
    """
    level = (level or envs.read("OMNI_LOG_LEVEL")).upper()
    form = (form or envs.read("OMNI_LOG_FORMAT")).lower()
    if level not in _LEVELS:
        raise ConfigError(f"{level!r} is no log level", where="OMNI_LOG_LEVEL", hint=f"use one of {', '.join(_LEVELS)}")
    if form not in _FORMATS:
        raise ConfigError(f"{form!r} is no log format", where="OMNI_LOG_FORMAT", hint=f"use one of {', '.join(_FORMATS)}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(process) if form == "json" else TextFormatter(process))
    handler.addFilter(_is_ours)
    root = logging.getLogger()
    for old in [item for item in root.handlers if getattr(item, "omni", False)]:
        root.removeHandler(old)
    handler.omni = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    for package in ("omni_core", "omni_server", "omni_connectors", "omni_duplex"):
        logging.getLogger(package).setLevel(level)
    root.setLevel(min(root.level or logging.WARNING, logging.getLevelName(level)))


def _is_ours(record: logging.LogRecord) -> bool:
    """Keep Omni's own records, and warnings of everybody else; vLLM writes its own lines."""
    return record.name.startswith("omni_") or (record.levelno >= logging.WARNING and not record.name.startswith("vllm"))
