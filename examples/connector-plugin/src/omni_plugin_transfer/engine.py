"""The TransferEngine of this process: it reads the memory of others, and lets them read what was registered."""

from __future__ import annotations

import os
import threading
from typing import Any

from omni_core.connector import ConnectorError
from omni_core.errors import DependencyError
from omni_plugin_transfer.options import TransferEngineOptions

_lock = threading.Lock()
_engines: dict[tuple[int, str], Any] = {}


def process_engine(options: TransferEngineOptions) -> Any:
    """Return the engine of this process, made when it is first asked for; it ends with the process.

    Raises:
        DependencyError: Mooncake cannot be loaded.
        ConnectorError: The engine cannot be started.
    """
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    try:
        from mooncake.engine import TransferEngine
    except ImportError as error:
        raise DependencyError(
            f"TransferEngineConnector needs Mooncake: {error}", hint="Debian and Ubuntu: apt-get install libibverbs1"
        ) from error
    key = os.getpid(), options.model_dump_json(exclude={"room"})
    with _lock:
        if key not in _engines:
            engine = TransferEngine()
            # Without a metadata server: both sides tell each other where their memory is.
            code = engine.initialize(options.host, "P2PHANDSHAKE", options.protocol, options.device)
            if code != 0:
                raise ConnectorError(f"the TransferEngine of {options.host} does not start (code {code})")
            _engines[key] = engine
        return _engines[key]


def session_name(engine: Any, options: TransferEngineOptions) -> str:
    """Return the name by which other engines reach this one."""
    return f"{options.host}:{engine.get_rpc_port()}"
