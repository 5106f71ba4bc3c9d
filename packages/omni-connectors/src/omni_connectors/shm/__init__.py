"""The shared-memory connector: payloads in anonymous memory, passed between processes over a socket in the run directory.

    sender    put  --> slot in the arena (a memfd of the edge), or a memfd of its own for a large payload
    receiver  get  --> connects to the sender's socket once and gets the arena, copies the slot out and marks it consumed;
                       or asks for the payload's own memfd and maps it, without a copy

Nothing has a name in /dev/shm, so the kernel frees every byte when the processes are gone, however they ended.
"""

from omni_connectors.shm.connector import SharedMemoryConnector

__all__ = ["SharedMemoryConnector"]
