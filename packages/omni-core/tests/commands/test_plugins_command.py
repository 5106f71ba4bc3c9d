import json
from typing import Any

import pytest

from omni_core import cli
from omni_core.commands import plugins as module
from omni_core.testing.plugins import make_manager, make_plugin


def fails() -> Any:
    raise ImportError("libfoo")


@pytest.fixture(autouse=True)
def _plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make_manager({"acme": make_plugin(omni_tiny_models=[]), "omni-bad": make_plugin(omni_architectures=fails)})
    monkeypatch.setattr(module, "plugin_manager", lambda: manager)
    monkeypatch.setattr(cli, "setup_logging", lambda process: None)


def test_table_has_a_row_for_each_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plugins"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["acme", "0", "ok", "omni_tiny_models"]
    assert [line.split()[0] for line in lines] == ["acme", "omni-bad", "omni-core"]


def test_strict_calls_hooks_and_fails_for_a_broken_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plugins", "--strict"]) == 1

    assert "broken  in omni_architectures: ImportError: libfoo" in capsys.readouterr().out


def test_strict_passes_where_every_plugin_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "plugin_manager", lambda: make_manager({"acme": make_plugin(omni_tiny_models=[])}))

    assert cli.main(["plugins", "--strict"]) == 0


def test_hook_filters_and_json_has_all_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plugins", "--hook", "omni_tiny_models", "--json"]) == 0

    assert json.loads(capsys.readouterr().out) == [
        {"name": "acme", "version": "0", "status": "ok", "reason": "", "hooks": ["omni_tiny_models"]}
    ]


def test_hook_without_a_plugin_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plugins", "--hook", "omni_deploy_dirs"]) == 0
    assert capsys.readouterr().out == "no plugin has this hook\n"


def test_unknown_hook_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plugins", "--hook", "omni_piplines"]) == 2
    assert "did you mean 'omni_pipelines'?" in capsys.readouterr().err
