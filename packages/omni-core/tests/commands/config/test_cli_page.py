"""docs/cli.md knows every action of `omni config` and every option of its own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from omni_core.commands.config import command
from omni_core.deploy.flags import add_deploy_flags

PAGE = Path(__file__).parents[5] / "docs" / "cli.md"

pytestmark = [
    pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is not beside the package"),
    pytest.mark.usefixtures("config"),
]


def actions() -> dict[str, argparse.ArgumentParser]:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    (choice,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(choice.choices)


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings if option.startswith("--")}


def test_every_action_and_option_is_described() -> None:
    text = PAGE.read_text()
    deployment = argparse.ArgumentParser()
    add_deploy_flags(deployment)
    general = text[text.index("## `omni config`\n") :].split("###")[0]

    missing: list[Any] = []
    for name, parser in actions().items():
        heading = f"\n### `omni config {name}"
        section = text[text.index(heading) + 1 :].split("\n## ")[0].split("\n### ")[0] if heading in text else ""
        missing += [] if section else [name]
        missing += [
            (name, option) for option in sorted(options(parser) - options(deployment)) if f"`{option}" not in section + general
        ]

    assert actions()
    assert missing == []


def test_every_action_has_a_description() -> None:
    assert [name for name, parser in actions().items() if not (parser.description or "").endswith(".")] == []
