"""Where uploaded voices are kept: flags first, then the variables of AP-09, then the user's data folder."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from omni_core.errors import ConfigError
from omni_server.voice_settings import add_voice_flags, check_voices_dir


def parse(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_voice_flags(parser.add_argument_group("voices"))
    return parser.parse_args(line.split())


def test_flags_come_before_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """AP-09."""
    monkeypatch.setenv("SPEAKER_MAX_UPLOADED", "7")
    monkeypatch.setenv("VLLM_OMNI_SPEAKER_REGISTRATION_POLICY", "overwrite")

    assert (parse("").max_voices, parse("").voice_policy) == (7, "overwrite")
    flags = parse("--max-voices 3 --voice-policy immutable")
    assert (flags.max_voices, flags.voice_policy) == (3, "immutable")


def test_nothing_said_is_a_thousand_voices_that_nobody_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPEAKER_MAX_UPLOADED", raising=False)
    monkeypatch.delenv("VLLM_OMNI_SPEAKER_REGISTRATION_POLICY", raising=False)

    assert (parse("").max_voices, parse("").voice_policy, parse("").voices_dir) == (1000, "immutable", None)


@pytest.mark.parametrize(
    ("name", "value"),
    [("SPEAKER_MAX_UPLOADED", "many"), ("SPEAKER_MAX_UPLOADED", "-1"), ("VLLM_OMNI_SPEAKER_REGISTRATION_POLICY", "never")],
)
def test_variable_that_cannot_be_used_is_refused_like_its_flag(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(SystemExit):
        parse("")

    assert value in capsys.readouterr().err


def test_folder_is_the_flags_the_variables_or_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    variables = {"SPEAKER_SAMPLES_DIR": "~/speakers", "XDG_DATA_HOME": str(tmp_path / "data")}

    assert check_voices_dir(str(tmp_path / "mine"), variables) == str(tmp_path / "mine")
    assert check_voices_dir(None, variables) == str(tmp_path / "speakers")
    assert check_voices_dir(None, {"XDG_DATA_HOME": str(tmp_path / "data")}) == str(tmp_path / "data" / "omni" / "voices")
    assert check_voices_dir(None, {}) == str(tmp_path / ".local" / "share" / "omni" / "voices")


@pytest.mark.parametrize("name", ["file", "a\0b", "x" * 5000, "~no-such-user/voices"])
def test_path_that_is_no_folder_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError) as caught:
        check_voices_dir(str(tmp_path / "file") if name == "file" else name, {})

    assert caught.value.where == "--voices-dir"
