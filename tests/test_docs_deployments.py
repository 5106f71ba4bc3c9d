"""Every `omni` command that a page shows is one that the program takes, and every deployment that it describes resolves.

The commands of docs/operate-config.md are run with their output by test_docs_commands. Here it is the other pages: a command of
`omni config` is run, what `omni serve` would start is resolved, and the others are parsed, all with a checkpoint that holds
nothing but a config.json. An example's commands are tested by the example.
"""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import cast

import pytest

from omni_core import cli
from omni_core.commands import Command
from omni_core.deploy.flags import typed_flags
from omni_core.deploy.resolve import resolve_deployment
from omni_core.plugins import plugin_manager
from omni_core.target import load_target

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    {*ROOT.glob("docs/*.md"), *ROOT.glob("packages/*/README.md"), ROOT / "README.md"} - {ROOT / "docs/operate-config.md"}
)
_SHELLS = ("", "bash", "console", "sh", "shell")
_FILE = re.compile(r"^```yaml\n# (\S+\.yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[str]:
    """Return the blocks of code of a page: fenced ones in no language or a shell's, and indented ones."""
    found: list[str] = []
    language: str | None = None
    for line in text.splitlines():
        if line.startswith("```"):
            language = line[3:].strip() if language is None else None
            found.append("")
        elif language in _SHELLS or (language is None and line.startswith("    ")):
            found[-1:] = [(found[-1] if found else "") + line.strip() + "\n"]
    return found


def commands() -> list[tuple[str, str]]:
    """Return (page, command) of every `omni` command in a block of code."""
    found = []
    for page in PAGES:
        for block in blocks(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                text = line.removeprefix("$ ")
                if text.startswith("omni ") and not text.startswith("omni ["):
                    found.append((str(page.relative_to(ROOT)), " ".join(text.split())))
    return found


COMMANDS = commands()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with the files that pages write down and the checkpoint MODEL."""
    (tmp_path / "MODEL").mkdir()
    (tmp_path / "MODEL" / "config.json").write_text('{"model_type": "qwen3_tts"}')
    for page in PAGES:
        for name, text in _FILE.findall(page.read_text()):
            (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMNI_PLATFORM", raising=False)
    monkeypatch.setattr(cli, "setup_logging", lambda process: None)
    return tmp_path


def test_pages_have_commands() -> None:
    assert len(COMMANDS) >= 12
    assert {"docs/deploy.md", "docs/quickstart.md", "docs/cli.md", "README.md"} <= {page for page, _ in COMMANDS}


def parse(words: list[str]) -> argparse.Namespace:
    """Return a command's arguments as the program reads them."""
    entries = {entry.name: entry for _, offered in plugin_manager().collect("omni_commands") for entry in offered}
    if " ".join(words[:2]) in entries:
        words = [" ".join(words[:2]), *words[2:]]
    assert words[0] in entries, f"there is no command {words[0]}"
    command = cast("Command", load_target(entries[words[0]].target, where=words[0]))
    parser = cli.CommandParser(prog=f"omni {words[0]}")
    command.configure(parser)
    return parser.parse_args(words[1:])


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[f"{Path(page).stem}: {line[5:60]}" for page, line in COMMANDS])
def test_command_is_taken_and_its_deployment_resolves(
    page: str, line: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in shlex.split(line, comments=True)[1:] if word != "&"]
    if words[0] == "config":
        assert cli.main([*words[:2], *("MODEL" if word.startswith("/tmp/") else word for word in words[2:])]) == 0
        assert capsys.readouterr().out
        return

    args = parse(words)

    if words[0] == "serve":
        if "personaplex" in line:  # its deploy files are for sessions, which the usual stand-in does not have
            (desk / "MODEL" / "config.json").write_text('{"model_type": "personaplex"}')
        flags = typed_flags(args)
        given = {name: flags.pop(name, None) for name in ("deploy_config", "stage_overrides")}
        resolved = resolve_deployment(desk / "MODEL", flags=flags, platform="cuda", **given)
        assert resolved.stages
