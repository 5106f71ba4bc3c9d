"""What every route is given: the engine, the server's settings, and whether it is going down."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from omni_server.reference_cache import MAX_BYTES, MAX_ENTRIES, ReferenceCache

if TYPE_CHECKING:
    from omni_core.request import LoraAdapter
    from omni_duplex.manager import SessionManager
    from omni_server.engine import Engine
    from omni_server.voice_library import VoiceLibrary


@dataclass(frozen=True)
class ServerSettings:
    """How the server answers. Each field is a flag of `omni serve` with the same name."""

    model: str
    """The model, as the operator named it."""
    served_model_name: tuple[str, ...] = ()
    """Names that requests may use as `model`; empty takes the model's path or id, and its last part."""
    api_key: tuple[str, ...] = ()
    """Keys that open the API; empty leaves it open."""
    allowed_media_domains: frozenset[str] = frozenset()
    """Hosts that audio, images and video may be fetched from, in lower case."""
    allowed_local_media_path: str | None = None
    """The folder that audio, images and video may be read from."""
    allowed_origins: tuple[str, ...] = ()
    """Origins that browsers may call from (CORS); `*` is any."""
    max_body_bytes: int = 40 * 1024 * 1024
    """Bytes of a request's body; more is answered with 413."""
    max_media_bytes: int = 25 * 1024 * 1024
    """Bytes of one file as it is fetched."""
    media_timeout: float = 15.0
    """Seconds that fetching one file may take, redirects included."""
    request_timeout: float = 600.0
    """Seconds until a request fails with 504."""
    reference_cache_entries: int = MAX_ENTRIES
    """Clips of reference audio that are kept for requests to come; 0 keeps none."""
    reference_cache_bytes: int = MAX_BYTES
    """Bytes of the samples of these clips; 0 keeps none."""
    voices_dir: str | None = None
    """The folder of uploaded voices; None keeps none."""
    max_voices: int = 1000
    """Voices that may be uploaded."""
    voice_policy: str = "immutable"
    """Whether the upload of a voice that is there is refused (`immutable`) or replaces it (`overwrite`)."""
    profile_dir: str | None = None
    """The folder for the traces of /start_profile; None leaves it off."""
    enable_control_routes: bool = False
    """Whether the routes answer that pause the engine, put it to sleep and change its weights."""
    lora_modules: tuple[LoraAdapter, ...] = ()
    """LoRA adapters that requests may name as `model`."""


@dataclass
class ServerState:
    """What changes while the server runs."""

    sessions: SessionManager | None = None
    """The duplex sessions of this process; None where the deployment has none."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server is told to stop."""

    @property
    def draining(self) -> bool:
        """Whether the server was told to stop: it ends what it has and `/ready` says no."""
        return self.stopping.is_set()


@dataclass(frozen=True)
class ServerContext:
    """The argument of the hook `omni_routes`."""

    engine: Engine
    settings: ServerSettings
    state: ServerState = field(default_factory=ServerState)

    @cached_property
    def references(self) -> ReferenceCache:
        """The reference audio that was loaded last."""
        return ReferenceCache(self.settings.reference_cache_entries, self.settings.reference_cache_bytes)

    @cached_property
    def voices(self) -> VoiceLibrary:
        """Every voice that a request may name."""
        from omni_server.voice_library import VoiceLibrary  # these import numpy, which the command does without
        from omni_server.voice_store import VoiceStore

        settings, pipeline, speech = self.settings, self.engine.pipeline, self.engine.speech
        store = None
        if settings.voices_dir is not None:
            overwrites = settings.voice_policy == "overwrite"
            store = VoiceStore(Path(settings.voices_dir), settings.max_voices, overwrites=overwrites)
        prepared = None if pipeline is None else pipeline.values.get("custom_voice_dir")
        model = getattr(speech, "model", None)
        names = [pipeline and pipeline.config.model_type, model and model.model_type]
        return VoiceLibrary(
            speech.traits if speech else None,
            store,
            self.references,
            None if prepared is None else Path(prepared),
            frozenset(name for name in names if isinstance(name, str)),
        )

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names that a request may use, the first one being the model's own."""
        if self.settings.served_model_name:
            return self.settings.served_model_name
        name = self.settings.model
        return tuple(dict.fromkeys((name, name.rstrip("/").rpartition("/")[2] or name)))

    def adapter(self, name: str | None) -> LoraAdapter | None:
        """Return the LoRA adapter that a request means by `model`; None for the model itself."""
        return next((adapter for adapter in self.settings.lora_modules if adapter.name == name), None)
