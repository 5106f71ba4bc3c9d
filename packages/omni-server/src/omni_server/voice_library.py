"""The voices that a server can be asked for: the model's own, the operator's and the uploaded ones, in this order."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread

from omni_core.errors import RequestError
from omni_core.speech import SpeechTraits
from omni_server.prepared_voices import read_prepared
from omni_server.reference_cache import ReferenceCache, key_of
from omni_server.voice_file import Voice, VoiceFacts, read_facts
from omni_server.voice_names import fold
from omni_server.voice_store import VoiceConflictError, VoiceStore

_MOST_NAMED = 50


class VoiceLibrary:
    """Find voices by name.

    Args:
        traits: What the model declares; None for a model that does not speak.
        store: The uploaded voices; None if the server keeps none.
        references: Where recordings are kept in memory.
        prepared_folder: The deployment's `custom_voice_dir`.
        model_types: What the folder's manifest may be for.
    """

    def __init__(
        self,
        traits: SpeechTraits | None,
        store: VoiceStore | None,
        references: ReferenceCache,
        prepared_folder: Path | None = None,
        model_types: frozenset[str] = frozenset(),
    ) -> None:
        self.store = store
        self._traits = traits
        self._references = references
        self._own = {fold(name) for name in traits.voices} if traits is not None else set()
        is_used = prepared_folder is not None and self.clones
        self._prepared = read_prepared(prepared_folder, model_types) if is_used and prepared_folder is not None else {}

    @property
    def clones(self) -> bool:
        """Whether voices besides the model's own can be used."""
        return self._traits is not None and self._traits.clones

    def is_own(self, name: str) -> bool:
        """Whether the model has a voice of this name."""
        return fold(name) in self._own

    def check_free(self, name: str) -> None:
        """Refuse a new voice's name that the model or the operator uses.

        Raises:
            VoiceConflictError: They do.
        """
        if self.is_own(name) or fold(name) in self._prepared:
            hint = "choose another name; case does not count"
            raise VoiceConflictError(f"the name {name!r} is reserved: this server has such a voice", param="name", hint=hint)

    async def uploaded(self) -> list[VoiceFacts]:
        """Return what is known of the uploaded voices."""
        return [] if self.store is None else await anyio.to_thread.run_sync(self.store.all)

    async def names(self) -> list[str]:
        """Return every name that a request may use, the model's own first."""
        names = list(self._traits.voices) if self._traits is not None else []
        if not self.clones:
            return names
        names += sorted(voice.name for voice in self._prepared.values())
        taken = {fold(name) for name in names}
        return names + [facts.name for facts in await self.uploaded() if fold(facts.name) not in taken]

    async def find(self, name: str) -> Voice | None:
        """Return the operator's or the uploaded voice with a name, None if there is none.

        Raises:
            VoiceFileError: The voice's file is damaged.
        """
        prepared = self._prepared.get(fold(name))
        if prepared is not None or self.store is None:
            return prepared
        stamp = await anyio.to_thread.run_sync(self.store.stamp, name)
        if stamp is None:
            return None
        key = key_of("voice", *stamp)
        audio = self._references.get(key)
        if audio is not None:
            try:
                facts = await anyio.to_thread.run_sync(read_facts, Path(stamp[0]))
            except FileNotFoundError:  # deleted since
                return None
            if await anyio.to_thread.run_sync(self.store.stamp, name) == stamp:
                return Voice(facts.name, audio, facts.ref_text)
            # Replaced since: the recording and the words must be of one upload.
        voice = await anyio.to_thread.run_sync(self.store.find, name)
        if voice is not None and voice.audio is not None:
            self._references.put(key, voice.audio)
        return voice

    async def unknown(self, name: str) -> RequestError:
        """Return the error for a voice that nobody has."""
        names = await self.names()
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        known = ", ".join(names[:_MOST_NAMED]) + more
        hint = f"use one of {known}" if names else "upload one to POST /v1/audio/voices, or send ref_audio"
        return RequestError(f"the voice `{name[:100]}` is unknown", param="voice", hint=hint)
