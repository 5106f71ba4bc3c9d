"""The plugin offers its connectors as light records."""

from __future__ import annotations

import subprocess
import sys

from pydantic import BaseModel

from omni_connectors import plugin
from omni_core.connector import Connector
from omni_core.target import load_target


def test_every_connector_is_a_connector_class_of_its_name() -> None:
    entries = list(plugin.omni_connectors())

    assert [entry.name for entry in entries] == ["SharedMemoryConnector", "MooncakeStoreConnector"]
    for entry in entries:
        kind = load_target(entry.target)
        assert isinstance(kind, type)
        assert issubclass(kind, Connector)
        assert kind.__name__ == entry.name
    assert entries[0].options is None
    assert issubclass(load_target(entries[1].options or ""), BaseModel)


def test_the_plugin_imports_nothing_heavy() -> None:
    heavy = ("torch", "vllm", "mooncake", "omni_connectors.shm", "omni_connectors.mooncake")
    code = f"import sys, omni_connectors.plugin; print([m for m in {heavy} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"
