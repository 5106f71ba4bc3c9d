"""The flags of `omni serve` for several server processes on one port."""

from __future__ import annotations

import argparse

FLAG = "--api-server-count"


def add_frontend_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags of several frontends."""
    text = "server processes on the one port, each with its own replica groups of full-duplex sessions; default 1"
    group.add_argument(FLAG, type=int, default=1, metavar="K", help=text)
    text = "how they share the port: a socket each (`reuseport`, the default), or one that all accept from (`shared`)"
    group.add_argument("--accept", choices=["reuseport", "shared"], default="reuseport", help=text)
    group.add_argument("--frontend-index", type=int, help=argparse.SUPPRESS)  # how the parent starts its frontends
    group.add_argument("--frontend-socket", type=int, help=argparse.SUPPRESS)
