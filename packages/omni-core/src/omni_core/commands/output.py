"""How commands write results to stdout: plain aligned text for people, JSON for tools."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any


def write(text: str = "") -> None:
    """Write one line."""
    sys.stdout.write(f"{text}\n")


def write_json(value: Any) -> None:
    """Write a value as indented JSON."""
    write(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def write_table(rows: Sequence[Sequence[str]]) -> None:
    """Write rows with their columns aligned; the last column is as long as it is."""
    if not rows:
        return
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        write("  ".join([*cells, row[-1]]).rstrip())
