"""Write plain data as YAML that `reader` reads back as the same data."""

from __future__ import annotations

import re
from typing import Any

import yaml

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
"""Words that some YAML reader takes for something else than a string."""


class _Dumper(yaml.SafeDumper):
    """Write strings so that no version of YAML takes them for something else, and nested lists indented."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _string(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    bare = _BARE.fullmatch(text) is not None and text.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if bare else '"')


_Dumper.add_representer(str, _string)


def to_yaml(value: Any) -> str:
    """Return data as YAML text; `${` in a value is escaped, so that it stays as it is (DY-09)."""
    return yaml.dump(_escaped(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False)


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, (list, tuple)) else value
