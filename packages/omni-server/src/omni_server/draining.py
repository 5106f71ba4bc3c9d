"""WebSockets that end by themselves when the server stops.

uvicorn gives HTTP requests time to end, and closes every WebSocket at once. A route whose connections hear of the stop
(`ServerState.stopping`) and close when what they do is done says so; they then have the same time as HTTP requests, and what
is left at its end is cancelled.
"""

from __future__ import annotations

from typing import Any

_KEY = "omni_ends_by_itself"


def end_by_itself(scope: Any) -> None:
    """Leave the end of a connection to its route when the server stops."""
    scope.setdefault("state", {})[_KEY] = True


def socket_protocol() -> type:
    """Return uvicorn's class for WebSockets, with an open end for those that end by themselves.

    `shutdown` is overridden: uvicorn calls it on every connection when the server stops, and has no setting for WebSockets.
    What would break it is another name of that method or of `scope`; `tests/test_serve.py` would show it.
    """
    from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

    class Protocol(AutoWebSocketsProtocol):  # type: ignore[misc, valid-type]
        """A connection that is closed at once when the server stops, unless its route ends it."""

        def shutdown(self) -> None:
            scope = getattr(self, "scope", {})  # there is none before the handshake
            if not scope.get("state", {}).get(_KEY):
                super().shutdown()

    return Protocol
