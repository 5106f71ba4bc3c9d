"""Who may come back to a session: a secret token for each attachment, of which only a hash is kept."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from omni_duplex.errors import DuplexError


class Lease:
    """The right to be a session's client. It changes hands whenever somebody attaches."""

    def __init__(self) -> None:
        self.generation = 0
        self._digest = b""

    def grant(self) -> str:
        """Begin the next attachment and return its token."""
        token = secrets.token_urlsafe(32)
        self.generation += 1
        self._digest = hashlib.sha256(token.encode()).digest()
        return token

    def check(self, token: str) -> None:
        """Check a token.

        Raises:
            DuplexError: It is not the one of the last attachment.
        """
        if not hmac.compare_digest(hashlib.sha256(token.encode()).digest(), self._digest):
            raise DuplexError(
                "invalid_resume_token",
                "the token does not fit this session",
                "resume_token",
                hint="use the token of the last session.created or session.resumed",
            )
