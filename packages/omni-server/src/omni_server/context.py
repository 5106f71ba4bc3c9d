"""What every route is given: the engine, the server's settings, and whether it is going down."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from omni_server.reference_cache import MAX_BYTES, MAX_ENTRIES, ReferenceCache

if TYPE_CHECKING:
    from omni_core.request import LoraAdapter
    from omni_server.engine import Engine


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
    """Hosts that reference audio may be fetched from, in lower case."""
    allowed_local_media_path: str | None = None
    """The folder that reference audio may be read from."""
    allowed_origins: tuple[str, ...] = ()
    """Origins that browsers may call from (CORS); `*` is any."""
    max_body_bytes: int = 40 * 1024 * 1024
    """Bytes of a request's body; more is answered with 413."""
    max_media_bytes: int = 25 * 1024 * 1024
    """Bytes of one reference audio as it is fetched."""
    media_timeout: float = 15.0
    """Seconds that fetching one reference audio may take, redirects included."""
    request_timeout: float = 600.0
    """Seconds until a request fails with 504."""
    reference_cache_entries: int = MAX_ENTRIES
    """Clips of reference audio that are kept for requests to come; 0 keeps none."""
    reference_cache_bytes: int = MAX_BYTES
    """Bytes of the samples of these clips; 0 keeps none."""
    profile_dir: str | None = None
    """The folder for the traces of /start_profile; None leaves it off."""
    enable_control_routes: bool = False
    """Whether the routes answer that pause the engine, put it to sleep and change its weights."""
    lora_modules: tuple[LoraAdapter, ...] = ()
    """LoRA adapters that requests may name as `model`."""


@dataclass
class ServerState:
    """What changes while the server runs."""

    draining: bool = False
    """Whether the server was told to stop: it ends what it has and `/ready` says no."""


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
