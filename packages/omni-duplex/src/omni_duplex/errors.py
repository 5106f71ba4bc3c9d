"""What can be wrong with a client's event or a session, with the code that clients look at."""

from __future__ import annotations

from omni_core.errors import OmniError

INVALID = "invalid_request_error"
SERVER = "server_error"
LIMIT = "rate_limit_error"
MAX_MESSAGE_CHARS = 1000
"""Characters of an error that clients are told: most of them name what a client sent, which may be megabytes."""


class DuplexError(OmniError):
    """Carry an error event: its type, its code, and whether trying again can help.

    Args:
        code: What programs look at, such as `input_audio_buffer_commit_empty`.
        message: One sentence that names the thing.
        param: The field at fault, dotted.
        kind: `invalid_request_error`, `server_error` or `rate_limit_error`.
        retryable: Whether the same may work later.
        hint: The way out.
    """

    http_status = 400

    def __init__(
        self,
        code: str,
        message: str,
        param: str | None = None,
        *,
        kind: str = INVALID,
        retryable: bool = False,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint, param=param)
        self.code = code
        self.kind = kind
        self.retryable = retryable

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.code, self.message, self.param, self.kind, self.retryable, self.hint)

    def body(self, event_id: str | None = None) -> dict[str, object]:
        """Return the `error` object of an error event.

        Args:
            event_id: Id of the client's event that is at fault.
        """
        said = self.message if len(self.message) <= MAX_MESSAGE_CHARS else self.message[:MAX_MESSAGE_CHARS] + "..."
        message = f"{said} ({self.hint})" if self.hint else said
        body: dict[str, object] = {"type": self.kind, "code": self.code, "message": message, "param": self.param}
        return {**body, "event_id": event_id} if event_id is not None else body


def _rebuild(
    kind: type[DuplexError], code: str, message: str, param: str | None, type_: str, retryable: bool, hint: str
) -> DuplexError:
    return kind(code, message, param, kind=type_, retryable=retryable, hint=hint)


class CapacityError(DuplexError):
    """Report that no session can be opened now (DX-04, DP-07, FE-08)."""

    http_status = 429

    def __init__(self, message: str) -> None:
        super().__init__(
            "resource_exhausted",
            message,
            kind=LIMIT,
            retryable=True,
            hint="wait a moment and open a new connection",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message,)
