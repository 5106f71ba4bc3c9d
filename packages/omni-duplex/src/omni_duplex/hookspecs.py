"""The hooks that omni-duplex calls."""

from __future__ import annotations

from collections.abc import Mapping

import pluggy

hookspec = pluggy.HookspecMarker("omni")


@hookspec
def omni_duplex_models() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Map ids of duplex models to targets of `DuplexModel` classes.

    Called once in each frontend process. A pipeline names one of the ids, or a target, in `duplex_plugin`. Two distributions
    that offer one id are an error that names both.
    """
