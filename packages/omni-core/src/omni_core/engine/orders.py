"""What operators told a stage that goes on after the call: that it is paused or asleep, and whose weights it has.

The server keeps it for each stage (`control`), and a worker for its own: the head may be another one when it registers again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_core.errors import RequestError

HOLDS = {"pause": True, "sleep": True, "resume": False, "wake_up": False}
"""Calls after which a stage holds its requests back, and calls after which it does not."""
UNNAMED = "?"
"""Weights of a trainer that gave them no name, or has not finished."""
_LASTING = frozenset({"pause", "sleep", "update_weight_version"})
"""Calls that a replica which is started again has to be told as well."""
_ENDS = {"resume": ("pause",), "wake_up": ("pause", "sleep")}
"""Which of them a call ends."""
_TRAINS = frozenset({"start_weight_update", "update_weights", "finish_weight_update"})


class Orders:
    """The calls that a stage still obeys."""

    def __init__(self) -> None:
        self.told: dict[str, dict[str, Any]] = {}
        """The arguments of the lasting calls, in the order in which they were told last."""
        self.weights = ""
        """The name that a trainer gave the stage's weights, or UNNAMED; empty where they are the checkpoint's."""

    @property
    def holds(self) -> bool:
        """Whether the stage holds its requests back."""
        return any(HOLDS.get(method, False) for method in self.told)

    def note(self, method: str, arguments: Mapping[str, Any], error: BaseException | None = None) -> None:
        """Note a call that has ended, with `error` if it failed."""
        # An update that was refused has changed nothing; one that failed may have changed anything.
        if method in _TRAINS and not isinstance(error, RequestError):
            self.weights = UNNAMED
        if error is not None:
            return
        for ended in _ENDS.get(method, ()):
            self.told.pop(ended, None)
        if method in _LASTING:
            self.told.pop(method, None)
            self.told[method] = dict(arguments)
        if method == "reload_weights":
            self.weights = ""
        elif method == "finish_weight_update":
            self.weights = str(arguments.get("weight_version") or UNNAMED)
        elif method == "update_weight_version" and self.weights:
            self.weights = str(arguments["version"])


def way_back(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the call that ends what a stage was told `before` and is not told `now`; empty where there is nothing to end."""
    if "sleep" in before and "sleep" not in now:
        return "wake_up"
    return "resume" if "pause" in before and not {"pause", "sleep"} & now.keys() else ""
