"""The archive of voices: what it holds, and what an archive that means harm can do, which is nothing."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError, RequestError
from omni_duplex.personaplex import voices
from omni_duplex.personaplex.shape import VOICES, Shape
from omni_duplex.personaplex.voices import read_voice, voice_names

pytestmark = pytest.mark.engine


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.fixture
def packed(tmp_path: Path) -> Callable[..., Path]:
    """Write an archive with files by name, and links; return its folder."""

    def make(files: dict[str, bytes], **links: str) -> Path:
        with tarfile.open(tmp_path / VOICES, "w:gz") as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
            for name, target in links.items():
                member = tarfile.TarInfo(f"voices/{name}.pt")
                member.type, member.linkname = tarfile.SYMTYPE, target
                archive.addfile(member)
        return tmp_path

    return make


def test_the_voices_of_a_checkpoint_have_names(folder: Path) -> None:
    assert voice_names(folder) == ("NATF2", "NATM1")


def test_a_checkpoint_without_the_archive_has_no_voices(tmp_path: Path, shape: Shape) -> None:
    assert voice_names(tmp_path) == ()
    with pytest.raises(RequestError, match="no voice at all"):
        read_voice(tmp_path, "NATF2", shape)


def test_only_plain_files_of_the_folder_count(packed: Callable[..., Path]) -> None:
    names = ("voices/good.pt", "./voices/also.pt", "../voices/up.pt", "/voices/root.pt", "voices/a/b.pt", "voices/x.txt")

    assert voice_names(packed(dict.fromkeys(names, b"x"), link="/etc/passwd")) == ("also", "good")


def test_a_pickle_that_runs_code_does_not(packed: Callable[..., Path], shape: Shape, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    folder = packed({"voices/evil.pt": pickle.dumps(Trap(mark))})

    with pytest.raises(ConfigError, match="cannot be read"):
        read_voice(folder, "evil", shape)

    assert not mark.exists()


@pytest.mark.parametrize(("dim", "streams"), [(32, 17), (64, 9)])
def test_a_voice_of_another_network_is_refused(packed: Callable[..., Path], shape: Shape, dim: int, streams: int) -> None:
    import torch

    buffer = io.BytesIO()
    torch.save({"embeddings": torch.zeros(3, 1, 1, dim), "cache": torch.zeros(1, streams, 4, dtype=torch.int64)}, buffer)

    with pytest.raises(ConfigError, match="not 64"):
        read_voice(packed({"voices/other.pt": buffer.getvalue()}), "other", shape)


def test_a_damaged_archive_is_named(tmp_path: Path, folder: Path) -> None:
    (tmp_path / VOICES).write_bytes((folder / VOICES).read_bytes()[:-2000])

    with pytest.raises(ConfigError, match=VOICES):
        voice_names(tmp_path)


def test_a_voice_that_is_too_long_is_not_read(packed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voices, "MAX_BYTES", 10)

    with pytest.raises(ConfigError, match="more than 10"):
        voice_names(packed({"voices/long.pt": b"x" * 11}))
