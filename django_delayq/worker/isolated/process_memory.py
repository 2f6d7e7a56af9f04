"""How much memory a process and its own children have."""

from __future__ import annotations

import os
import resource
from contextlib import suppress

_PAGE = resource.getpagesize()


def memory_of(pid: int) -> int:
    """Resident memory of the process in bytes. 0 where the system does not say (only Linux does),
    and when the process is gone."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * _PAGE
    return 0


def memory_with_children(pid: int) -> int:
    """Resident memory in bytes of the process and of all that it has started."""
    total = memory_of(pid)
    with suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as children:
                total += sum(memory_with_children(int(child)) for child in children.read().split())
    return total
