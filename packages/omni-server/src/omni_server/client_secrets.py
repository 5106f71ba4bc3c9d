"""Short-lived keys for realtime sockets, so that a browser need not hold the server's key: made here and read here.

A secret says itself until when it holds and what its sessions begin with, and is signed with a digest of the server's keys. So
nothing is kept, however many are made, and one that a frontend made opens the sockets of the others, too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

PREFIX = "ek_"
PATHS = frozenset({"/v1/realtime", "/v1/duplex", "/v1/live/sessions"})
"""What a secret opens: WebSockets at these paths and nothing else."""
MAX_SESSION_BYTES = 2048
"""Bytes of the settings in one secret, as JSON: it travels in a header."""
SETTINGS_KEY = "client_secret_session"
"""Where the settings of a socket's secret are in its scope's `state`."""


class ClientSecrets:
    """Make secrets and know them again.

    Args:
        keys: The server's keys; the secrets end with them.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        digests = sorted(hashlib.sha256(key.encode()).digest() for key in keys)
        self._key = hashlib.sha256(b"omni client secret" + b"".join(digests)).digest()

    def make(self, expires_at: int, session: Mapping[str, Any]) -> str:
        """Return a secret that holds until `expires_at`, in seconds since 1970, and begins sessions with these settings."""
        facts = {"exp": expires_at, "id": secrets.token_hex(8), "session": session}
        body = _encode(json.dumps(facts, separators=(",", ":")).encode())
        return f"{PREFIX}{body}.{_encode(self._sign(body))}"

    def read(self, value: str, now: float) -> Mapping[str, Any] | None:
        """Return the settings of a secret; None if it is not ours, or does not hold any more."""
        body, _, signature = value.removeprefix(PREFIX).partition(".")
        if not value.startswith(PREFIX) or not hmac.compare_digest(_encode(self._sign(body)).encode(), _bytes(signature)):
            return None
        try:
            facts = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        except (ValueError, binascii.Error):
            return None  # signed by us it cannot be; whoever has the key may still send it
        session: Mapping[str, Any] = facts["session"]
        return session if now < facts["exp"] else None

    def _sign(self, body: str) -> bytes:
        return hmac.new(self._key, _bytes(body), hashlib.sha256).digest()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
