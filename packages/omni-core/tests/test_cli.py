"""The program as a whole: in this process for what it writes, in a process of its own for what it imports."""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from omni_core import __version__, cli, plugins
from omni_core.commands import CommandEntry
from omni_core.errors import ConfigError, DependencyError, ServiceError
from omni_core.plugins import PluginManager
from omni_core.testing.plugins import make_manager, make_plugin

HEAVY = ("torch", "vllm", "transformers", "starlette", "uvicorn", "pydantic")


class FakeCommand:
    """Raise, or return what the test asks for."""

    behaviour: Callable[[], int]

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--max-num-seqs", type=int)

    def run(self, args: argparse.Namespace) -> int:
        return type(self).behaviour()


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_DISABLE_PLUGINS", "")
    monkeypatch.setattr(cli, "setup_logging", lambda process: None)


def use(monkeypatch: pytest.MonkeyPatch, given: dict[str, object]) -> PluginManager:
    manager = make_manager(given)
    monkeypatch.setattr(plugins, "plugin_manager", lambda: manager)
    return manager


def run_command(monkeypatch: pytest.MonkeyPatch, behaviour: Callable[[], int], *options: str) -> int:
    """Run a command of a fake plugin that behaves so."""
    monkeypatch.setattr(FakeCommand, "behaviour", staticmethod(behaviour), raising=False)
    monkeypatch.setattr("omni_core.tiny.fake_command", FakeCommand(), raising=False)
    entry = CommandEntry("fake", "do something", "omni_core.tiny:fake_command")
    use(monkeypatch, {"acme": make_plugin(omni_commands=[entry])})
    return cli.main(["fake", *options])


def failing(error: BaseException) -> Callable[[], int]:
    def behaviour() -> int:
        raise error

    return behaviour


@pytest.mark.parametrize(
    "command", [["--version"], ["--help"], ["plugins"], ["pipelines"], ["plugins", "--json"], ["tiny", "--help"]]
)
def test_light_commands_import_nothing_heavy(command: list[str]) -> None:
    code = (
        "import sys\nfrom omni_core.cli import main\n"
        f"try: code = main({command!r})\nexcept SystemExit as end: code = end.code\n"
        f"sys.stderr.write(' '.join(name for name in {HEAVY!r} if name in sys.modules))\nsys.exit(code)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0
    assert done.stdout
    assert done.stderr == ""


def test_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])

    assert caught.value.code == 0
    assert capsys.readouterr().out == f"omni {__version__}\n"


@pytest.mark.parametrize("options", [[], ["--help"], ["-h"], ["--debug"]])
def test_help_lists_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    use(monkeypatch, {"acme": make_plugin(omni_commands=[CommandEntry("dance", "dance to music", "no.such:thing")])})

    assert cli.main(options) == 0

    out = capsys.readouterr().out
    assert "dance      dance to music" in out
    assert "plugins    list the plugins" in out


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigError("bad", where="my.yaml:1:2", hint="mend it"), 2, "error: my.yaml:1:2: bad\nhint: mend it\n"),
        (DependencyError("missing"), 3, "error: missing\n"),
        (ServiceError("down"), 1, "error: down\n"),
        (ZeroDivisionError("zero"), 1, "error: ZeroDivisionError: zero\nhint: this is a fault of Omni; --debug shows where\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=["config", "dependency", "service", "fault", "interrupt"],
)
def test_error_is_a_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, text: str
) -> None:
    assert run_command(monkeypatch, failing(error)) == code
    assert capsys.readouterr().err == text


def test_debug_shows_where_a_fault_comes_from(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError):
        run_command(monkeypatch, failing(ZeroDivisionError("zero")), "--debug")

    assert run_command(monkeypatch, failing(ConfigError("bad")), "--debug") == 2
    assert "Traceback" in caplog.text


def test_commands_exit_code_is_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_command(monkeypatch, lambda: 7) == 7


def test_underscores_in_flags_are_dashes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_command(monkeypatch, lambda: 0, "--max_num_seqs", "3") == 0


@pytest.mark.parametrize("flag", ["--max-num-seq", "--max-num-seq=3"])
def test_misspelt_flag_gets_a_suggestion(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        run_command(monkeypatch, lambda: 0, flag)

    assert caught.value.code == 2
    assert "did you mean '--max-num-seqs'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("plugin", "did you mean 'plugins'?"),
        ("serve", "serve is a command of omni-server: pip install omni-server"),
        ("serv", "serve is a command of omni-server: pip install omni-server"),
        ("zzz", "omni --help lists them"),
    ],
)
def test_unknown_command_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, hint: str
) -> None:
    use(monkeypatch, {})

    assert cli.main([name]) == 2
    assert capsys.readouterr().err == f"error: there is no command {name!r}\nhint: {hint}\n"


def test_command_of_a_broken_package_says_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> Any:
        raise ImportError("libfoo")

    use(monkeypatch, {"omni-server": make_plugin(omni_commands=fails)})

    assert cli.main(["serve"]) == 2
    assert "broken: in omni_commands: ImportError: libfoo" in capsys.readouterr().err


def test_a_command_may_have_two_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(FakeCommand, "behaviour", staticmethod(lambda: 7), raising=False)
    monkeypatch.setattr("omni_core.tiny.fake_command", FakeCommand(), raising=False)
    entries = [
        CommandEntry("bench", "measure", "no.such:thing"),
        CommandEntry("bench fake", "more", "omni_core.tiny:fake_command"),
    ]
    use(monkeypatch, {"acme": make_plugin(omni_commands=entries)})

    assert cli.main(["bench", "fake"]) == 7
    assert cli.main(["--help"]) == 0
    assert "bench fake  more" in capsys.readouterr().out


def test_clash_stops_the_command_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    entry = CommandEntry("dance", "dance", "m:c")
    use(monkeypatch, {"acme": make_plugin(omni_commands=[entry]), "bolt": make_plugin(omni_commands=[entry])})

    assert cli.main(["dance"]) == 2
    assert "offered by both bolt and acme" in capsys.readouterr().err
    assert cli.main(["--help"]) == 0


@pytest.mark.parametrize("options", [["--no-plugin", "acme", "--no-plugin=bolt"], ["--debug", "--no-plugin", "acme"]])
def test_no_plugin_is_handed_to_child_processes(monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    use(monkeypatch, {})
    monkeypatch.setenv("OMNI_DISABLE_PLUGINS", "other")

    cli.main([*options, "env"])

    assert os.environ["OMNI_DISABLE_PLUGINS"].split(",")[:2] == ["other", "acme"]


def test_reader_that_goes_away_is_no_error() -> None:
    code = "import sys\nfrom omni_core.cli import main\nsys.exit(main(['env']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()

    assert process.wait(timeout=60) in {0, 120}
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
