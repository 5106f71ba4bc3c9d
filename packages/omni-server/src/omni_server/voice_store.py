"""The folder of uploaded voices: one file for each, named by the hash of its name, so that no name ever becomes a path.

Nothing is kept in memory: what is in the folder is what there is, after a restart and beside other servers that use it too.
A file appears whole or not at all, and of two uploads of one name at once one wins.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from omni_core.errors import NotFoundError, RequestError, ServiceError
from omni_core.speech import ReferenceAudio
from omni_server.voice_file import Voice, VoiceFacts, VoiceFileError, pack_voice, read_facts, read_voice
from omni_server.voice_names import fold

logger = logging.getLogger(__name__)

_SUFFIX = ".safetensors"
_TEMPORARY = ".upload-"
_STALE_S = 3600.0


class VoiceConflictError(RequestError):
    """Report a voice that cannot be kept beside those that there are."""

    http_status = 409
    code = "voice_conflict"


class VoiceNotFoundError(NotFoundError):
    """Report a voice that nobody uploaded."""

    code = "voice_not_found"


class VoiceStore:
    """Keep voices in a folder. Its methods wait for the disk; call them in a thread.

    Args:
        folder: Where; made when the first voice comes.
        most: Voices that may be there.
        overwrites: Whether an upload replaces the voice of the same name; otherwise it is refused.
    """

    def __init__(self, folder: Path, most: int, *, overwrites: bool = False) -> None:
        self.folder = folder
        self._most = most
        self._overwrites = overwrites
        self._counting = threading.Lock()

    def all(self) -> list[VoiceFacts]:
        """Return what is known of each voice, by name; files that hold none are left out with a warning."""
        found = []
        for path in self._paths():
            try:
                found.append(read_facts(path))
            except FileNotFoundError:  # deleted meanwhile
                continue
            except VoiceFileError as error:
                logger.warning("a file in the folder of voices is left out: %s", error)
        return sorted(found, key=lambda facts: fold(facts.name))

    def find(self, name: str) -> Voice | None:
        """Return the voice with a name, None if there is none.

        Raises:
            VoiceFileError: Its file cannot be read.
        """
        try:
            return read_voice(self.path(name))
        except FileNotFoundError:
            return None

    def stamp(self, name: str) -> tuple[str, int, int, int] | None:
        """Return what changes when the voice does, None if there is none."""
        path = self.path(name)
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        return str(path), found.st_ino, found.st_mtime_ns, found.st_size

    def add(self, facts: VoiceFacts, audio: ReferenceAudio | None, embedding: tuple[float, ...] | None) -> None:
        """Keep a voice.

        Raises:
            VoiceConflictError: There is one of this name, or there are too many.
            ServiceError: The folder cannot be written.
        """
        data = pack_voice(facts, audio, embedding)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._forget_stale()
            with self._written(data) as temporary, self._counting:
                self._publish(temporary, facts.name)
        except OSError as error:
            hint = "see --voices-dir"
            raise ServiceError(f"the voice cannot be kept: {error.strerror}", where=str(self.folder), hint=hint) from error

    def remove(self, name: str) -> None:
        """Delete a voice. Requests that have begun with it go on.

        Raises:
            VoiceNotFoundError: There is none.
            ServiceError: The folder cannot be written.
        """
        try:
            self.path(name).unlink()
            self._sync_folder()
        except FileNotFoundError as error:
            hint = "GET /v1/audio/voices lists them"
            raise VoiceNotFoundError(f"there is no uploaded voice {name[:100]!r}", param="name", hint=hint) from error
        except OSError as error:
            raise ServiceError(f"the voice cannot be deleted: {error.strerror}", where=str(self.folder)) from error

    def path(self, name: str) -> Path:
        """Return where a voice is, whether or not there is one."""
        digest = hashlib.sha256(fold(name).encode("utf-8", "surrogatepass")).hexdigest()
        return self.folder / (digest[:40] + _SUFFIX)

    def _paths(self) -> list[Path]:
        try:
            return sorted(path for path in self.folder.iterdir() if path.suffix == _SUFFIX and not path.is_symlink())
        except FileNotFoundError:
            return []

    @contextlib.contextmanager
    def _written(self, data: bytes) -> Iterator[Path]:
        """Write a file beside the voices, give its path, and remove it at the end."""
        descriptor, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=self.folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield Path(name)
        finally:
            with contextlib.suppress(FileNotFoundError):  # it became the voice
                os.unlink(name)

    def _publish(self, temporary: Path, name: str) -> None:
        place = self.path(name)
        is_new = not place.exists()
        if is_new and len(self._paths()) >= self._most:
            hint = "delete one, or raise --max-voices"
            raise VoiceConflictError(f"there are {self._most} voices, which is the limit", param="name", hint=hint)
        if self._overwrites:
            os.replace(temporary, place)
        else:
            try:
                os.link(temporary, place)  # fails where there is one, whoever wrote it
            except FileExistsError as error:
                hint = "choose another name, or delete that voice first"
                raise VoiceConflictError(f"there is a voice {name!r} already", param="name", hint=hint) from error
        self._sync_folder()

    def _sync_folder(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _forget_stale(self) -> None:
        """Remove what an upload left that ended with its process."""
        for path in self.folder.glob(_TEMPORARY + "*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < time.time() - _STALE_S:
                    path.unlink()
