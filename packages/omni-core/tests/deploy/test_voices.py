import os
from pathlib import Path

import pytest

from omni_core.deploy.voices import check_voice_folder
from omni_core.errors import ConfigError


def test_folder_is_returned_as_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CV-01."""
    (tmp_path / "voices").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert check_voice_folder("voices") == check_voice_folder("~/voices") == tmp_path / "voices"


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    """CV-01: a missing directory ends the start."""
    with pytest.raises(ConfigError, match=r"custom_voice_dir '.*gone' does not exist") as caught:
        check_voice_folder(str(tmp_path / "gone"), where="my.yaml:1:19")
    assert caught.value.where == "my.yaml:1:19"
    assert caught.value.param == "custom_voice_dir"


def test_file_is_no_folder(tmp_path: Path) -> None:
    """CV-01."""
    (tmp_path / "voices").write_text("")

    with pytest.raises(ConfigError, match="is no folder"):
        check_voice_folder(str(tmp_path / "voices"))


def test_folder_must_be_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CV-01. Tests may run as root, who can read everything."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    with pytest.raises(ConfigError, match="cannot be read"):
        check_voice_folder(str(tmp_path))


@pytest.mark.parametrize("folder", ["a\0b", "x" * 5000, "~no-such-user/voices"])
def test_text_that_is_no_path_is_refused(folder: str) -> None:
    """CV-01: nothing but ConfigError."""
    with pytest.raises(ConfigError, match="custom_voice_dir"):
        check_voice_folder(folder)
