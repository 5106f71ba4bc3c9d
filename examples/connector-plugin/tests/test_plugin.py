"""Omni finds the plugin, and the plugin imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest
from omni_plugin_transfer import plugin
from omni_plugin_transfer.options import TransferEngineOptions
from pydantic import ValidationError


def test_the_plugin_is_read_without_mooncake() -> None:
    code = "import sys, omni_plugin_transfer.plugin; print([m for m in ('mooncake', 'numpy') if m in sys.modules])"

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )

    assert done.stdout.strip() == "[]"


def test_omni_finds_the_plugin() -> None:
    try:
        metadata.distribution("omni-plugin-transfer")
    except metadata.PackageNotFoundError:
        pytest.skip("install the plugin first: pip install -e .")

    done = subprocess.run(
        [sys.executable, "-m", "omni_core", "plugins", "--strict", "--hook", "omni_connectors"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert "omni-plugin-transfer" in done.stdout
    assert [entry.name for entry in plugin.omni_connectors()] == ["TransferEngineConnector"]


@pytest.mark.parametrize("values", [{"room": 1}, {"protocol": "udp"}, {"host": ""}, {"rom": 2**30}], ids=str)
def test_wrong_options_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TransferEngineOptions.model_validate(values)
