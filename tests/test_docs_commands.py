"""The commands of docs/operate-config.md do what the page says, against a folder with nothing but a config.json.

In a `console` block a line with `$ ` is a command, the lines below it are its output: they must be there in this order, `...`
stands for anything, and runs of spaces count as one. A command ends with 0 unless its comment has another exit code. A `yaml`
block whose first line names a file is that file.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from omni_core import cli

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operate-config.md"
HEAVY = ("torch", "vllm", "transformers", "starlette")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CODES = re.compile(r"# exit code (\d)(?: or (\d))?")


@dataclass
class Command:
    """One command of the page."""

    line: str
    output: list[str] = field(default_factory=list)

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line, comments=True)

    @property
    def codes(self) -> set[int]:
        match = _CODES.search(self.line)
        return {0} if match is None else {int(code) for code in match.groups() if code is not None}


def commands() -> Iterator[Command]:
    """Yield the page's commands in order."""
    for language, text in _BLOCK.findall(PAGE.read_text()):
        if language != "console":
            continue
        command: Command | None = None
        for line in text.splitlines():
            if line.startswith("$ "):
                if command is not None:
                    yield command
                command = Command(line[2:])
            elif command is not None:
                command.output.append(line)
        if command is not None:
            yield command


def files() -> dict[str, str]:
    """Return the files that the page writes down."""
    blocks = [text for language, text in _BLOCK.findall(PAGE.read_text()) if language == "yaml"]
    return {text.splitlines()[0].removeprefix("# "): text for text in blocks}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with the page's files and the checkpoint MODEL, without a weight."""
    (tmp_path / "MODEL").mkdir()
    (tmp_path / "MODEL" / "config.json").write_text('{"model_type": "qwen3_tts"}')
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMNI_PLATFORM", raising=False)
    return tmp_path


def test_page_has_commands_and_every_block_is_understood() -> None:
    languages = [language for language, _ in _BLOCK.findall(PAGE.read_text())]
    actions = {command.words[2] for command in commands() if command.words[1] == "config"}

    assert set(languages) == {"yaml", "console"}
    assert all(name.endswith(".yaml") for name in files())
    assert all(command.words[0] == "omni" for command in commands())
    assert actions == {"show", "explain", "lint", "diff", "freeze", "memory", "schema"}


def test_commands_do_what_the_page_says(desk: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "setup_logging", lambda process: None)
    faults = []
    for command in commands():
        words = command.words
        target = words[words.index(">") + 1] if ">" in words else None

        code = cli.main(words[1 : words.index(">")] if target is not None else words[1:])

        captured = capfd.readouterr()
        if target is not None:
            (desk / target).write_text(captured.out)
        if code not in command.codes:
            faults.append(f"$ {command.line}\nends with {code}, not {command.codes}:\n{captured.out}{captured.err}")
        elif command.output and not _matches(command.output, captured.out + captured.err):
            faults.append(f"$ {command.line}\nsays something else than the page:\n{captured.out}{captured.err}")

    assert faults == []


def _matches(expected: list[str], found: str) -> bool:
    """Return whether text is what the page shows; a line `...` is any number of lines."""
    parts = []
    for line in expected:
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            pattern = re.escape(" ".join(line.split())).replace(re.escape("..."), ".*")
            parts.append(f"{pattern}\n")
    text = "".join(" ".join(line.split()) + "\n" for line in found.splitlines())
    return re.fullmatch("".join(parts), text) is not None


@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        (["a  b", "..."], "a b\nc\nd\n", True),
        (["...", "d"], "a\nd\n", True),
        (["a..."], "a and more\n", True),
        (["a"], "a\nb\n", False),
        (["b", "a"], "a\nb\n", False),
    ],
)
def test_comparison_with_the_page_can_fail(shown: list[str], printed: str, fits: bool) -> None:
    assert _matches(shown, printed) is fits


def test_commands_load_nothing_heavy(desk: Path) -> None:
    lines = [command.words[1:] for command in commands() if ">" not in command.words]
    script = f"""
import sys
from omni_core.cli import main
for words in {lines!r}:
    main(words)
print("HEAVY", *sorted(set({HEAVY!r}) & set(sys.modules)))
"""

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True, cwd=desk)

    assert done.stdout.splitlines()[-1] == "HEAVY"
