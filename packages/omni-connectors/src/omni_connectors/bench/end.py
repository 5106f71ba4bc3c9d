"""One process of a pair: `python -m omni_connectors.bench.end JSON`, which the benchmark starts.

The sender is told on stdin how many payloads of which size it shall send, and answers with what each took. Behind every
payload it waits for the receiver, so that one is under way at a time; with a window it lets so many be under way, and what
counts is what all of them took together. Both read the same clock.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from typing import Any

import numpy as np

from omni_connectors.bench.ways import MEMCPY, Side, Way
from omni_core.connector import Role

_SENT = struct.Struct("=q")
"""When sending began; the handle is behind it."""
_TOOK = struct.Struct("=qq")
"""Nanoseconds until the array could be used, and processor time of the receiver so far."""
FILL = 7
MAX_MESSAGE = 4096


def _cpu_ns() -> int:
    times = os.times()
    return int((times.user + times.system) * 1e9)


def _send(side: Side, link: socket.socket | None, nbytes: int, count: int, window: int) -> dict[str, Any]:
    """Send `count` payloads; return nanoseconds of each, of each put and of all, and the processor time of both processes."""
    source = np.full(nbytes, FILL, np.uint8)
    took, put, began_cpu = [], [], _cpu_ns()
    others = []
    began_all = time.monotonic_ns()
    for number in range(count + window - 1):
        if number < count:
            began = time.monotonic_ns()
            handle = side.send(source)
            put.append(time.monotonic_ns() - began)
            if link is None:
                took.append(put[-1])
                continue
            link.send(_SENT.pack(began) + handle)
        if link is not None and number >= window - 1:
            elapsed, cpu = _TOOK.unpack(_read(link))
            took.append(elapsed)
            others.append(cpu)
    all_ns = time.monotonic_ns() - began_all
    cpu_ns = _cpu_ns() - began_cpu + (others[-1] - others[0] if others else 0)
    return {"took_ns": took, "put_ns": put, "cpu_ns": cpu_ns, "all_ns": all_ns}


def _receive(side: Side, link: socket.socket) -> None:
    """Receive until the sender is gone."""
    while message := link.recv(MAX_MESSAGE):
        (began,) = _SENT.unpack_from(message)
        array = side.receive(message[_SENT.size :])
        elapsed = time.monotonic_ns() - began
        assert array.shape[0] == 0 or (array[0] == FILL and array[-1] == FILL)
        del array
        link.send(_TOOK.pack(elapsed, _cpu_ns()))


def _read(link: socket.socket) -> bytes:
    message = link.recv(MAX_MESSAGE)
    if not message:
        raise ConnectionError("the other process of the pair is gone")
    return message


def _take_core(role: Role) -> None:
    """Give each side a core of its own, as stages have: on one core a message costs a tenth of what it costs between two."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[role is Role.RECEIVER]})


def main(task: dict[str, Any]) -> None:
    """Be one side until told otherwise."""
    way, role = Way(**task["way"]), Role(task["role"])
    _take_core(role)
    link = None if way.name == MEMCPY else socket.socket(fileno=task["fd"])
    side = way.make(role, task["folder"])
    sys.stdout.write("{}\n")
    sys.stdout.flush()
    if role is Role.RECEIVER:
        assert link is not None
        _receive(side, link)
        return
    for line in sys.stdin:
        answer = _send(side, link, **json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
