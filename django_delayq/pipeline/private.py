"""Folders that only this user can enter. They go with their process; after a kill, when the next one begins."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "delayq-job-"
_LOCK = ".lock"
#: Seconds for which a folder without a lock may be one that is just being made.
_YOUNG = 60.0


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new one for this context. What it holds goes even after a kill: it may be a password."""
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # of mode 700
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove what processes of this user left that have ended: nobody holds its lock any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.stat().st_uid == os.getuid() and _is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    if not (folder / _LOCK).exists():
        return time.time() - folder.stat().st_mtime > _YOUNG
    with (folder / _LOCK).open("r") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
