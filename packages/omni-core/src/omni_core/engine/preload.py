"""What the fork server imports: one module that loads the heavy ones under a watch and leaves a heap that forks cheaply.

Importing it has these effects, and only the fork server does so. Its parent says through the environment whom to watch and what
to load (`fork_server.begin`).
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import os
import select
import sys

from omni_core.engine.run_dir import remove_run_dirs
from omni_core.engine.watch import Watch, Watched, parse_watched

MODULES_ENV = "OMNI_PRELOAD"
SERVER_ENV = "OMNI_PRELOAD_SERVER"


def load(server: Watched, modules: list[str]) -> None:
    """Import `modules`, ending at once if the server goes away meanwhile, and arrange what happens at the end."""
    atexit.register(_end, server)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    watch = Watch([server], functools.partial(remove_run_dirs, server))
    # Nothing of what an import makes is garbage, and looking for it again and again is a quarter of the time.
    gc.disable()
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the stage that needs the module reports it properly
            sys.stderr.write(f"preloading {module} failed: {type(error).__name__}: {error}\n")
    # A fork copies a page that the collector touches; what is loaded by now stays for good.
    gc.collect()
    gc.freeze()
    gc.enable()
    # The server of forks must have one thread only. From here on its own loop notices the end of its clients.
    watch.stop()


def _end(server: Watched) -> None:
    # The fork server ends when its last client has ended, so it is the one process that surely sees a killed server's end.
    if _is_gone(server):
        remove_run_dirs(server)
    # Registered first and so called last. What follows would be the interpreter's own teardown, in which libraries that are
    # loaded but were never used print pages about leaks.
    sys.stderr.flush()
    os._exit(0)


def _is_gone(server: Watched) -> bool:
    fd = server.open()
    if fd is None:
        return True
    try:
        return bool(select.select([fd], [], [], 0)[0])
    finally:
        os.close(fd)


if SERVER_ENV in os.environ:
    load(parse_watched(os.environ.pop(SERVER_ENV))[0], os.environ.pop(MODULES_ENV, "").split())
