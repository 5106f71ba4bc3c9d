"""Targets: `module:attribute`, or a dotted path (rule PC-08)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from omni_core.errors import ConfigError, DependencyError
from omni_core.target import find_module, load_target, split_target


@pytest.mark.parametrize("target", ["os.path:join", "os.path.join"])
def test_pc_08_both_forms_name_the_same_object(target: str) -> None:
    assert split_target(target) == ("os.path", "join")
    assert load_target(target) is __import__("os").path.join


@pytest.mark.parametrize("target", ["", "join", "os.path:", ":join", "os path:join", "os.path:join()", "a:b:c"])
def test_what_has_neither_form_is_refused_with_its_place(target: str) -> None:
    with pytest.raises(ConfigError, match=r"'package\.module:attribute'") as caught:
        split_target(target, where="stage 1")

    assert caught.value.where == "stage 1"


def test_a_missing_module_is_a_missing_dependency() -> None:
    with pytest.raises(DependencyError, match="no_such_module_anywhere"):
        load_target("no_such_module_anywhere:thing")


def test_a_missing_attribute_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="'joinn'"):
        load_target("os.path:joinn")


def test_finding_a_module_does_not_import_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "omni_found_only.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)

    find_module("omni_found_only:thing")

    assert "omni_found_only" not in sys.modules
    with pytest.raises(ConfigError, match="omni_found_nowhere"):
        find_module("omni_found_nowhere:thing")
