"""The one file to which all worker processes append: a line in one write() is whole, or not
there."""

from __future__ import annotations

import os
from functools import cache

VARIABLE = "DELAYQ_CHAOS_HISTORY"


@cache
def _file() -> int:
    return os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def write(message: str, attempt: int, at: float, what: str) -> None:
    """As tests/acceptance/harness.py reads it."""
    os.write(_file(), f"{message} {attempt} {at:.6f} {os.getpid()} {what}\n".encode())
