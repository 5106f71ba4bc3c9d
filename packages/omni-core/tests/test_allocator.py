"""Large buffers go back to the system, whatever was freed before them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from omni_core.allocator import OWN

PROGRAM = """
import ctypes
from omni_core.allocator import return_large_buffers

class Facts(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Facts

def mapped() -> int:
    return libc.mallinfo2().hblks

if WANTED:
    print(return_large_buffers())
del_me = bytearray(20 << 20)
del del_me  # raises the threshold of an allocator that is left to itself
before = mapped()
held = [bytearray(1 << 20) for _ in range(5)]
print(mapped() - before)
"""


def answers(wanted: bool, **environment: str) -> list[str]:
    program = PROGRAM.replace("WANTED", str(wanted))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_buffer_of_audio_has_memory_of_its_own() -> None:
    assert answers(wanted=False) == ["0"], "else there would be nothing to do"
    assert answers(wanted=True) == ["True", "5"]


HOLES = """
import psutil
from omni_core.allocator import return_free_pages

def resident() -> int:
    return psutil.Process().memory_info().rss >> 20

held = [bytearray(60_000) for _ in range(2000)]  # below the size from which a block has pages of its own
before = resident()
del held[::2]
print(before - resident() > 30, return_free_pages(), before - resident() > 30)
"""


def test_pages_between_objects_that_live_go_back() -> None:
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout.split() == ["False", "True", "True"], done.stderr


@pytest.mark.parametrize("name", OWN)
def test_what_an_operator_says_stays(name: str) -> None:
    value = "glibc.malloc.arena_max=4" if name == "GLIBC_TUNABLES" else "33554432"

    assert answers(wanted=True, **{name: value})[0] == "False"
