"""Folders that only this user can enter. They go with their process; after a kill, when the next
one begins."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

PREFIX = "delayq-job-"
_LOCK = ".lock"
#: Seconds for which a folder without a lock may be one that is just being made.
_YOUNG = 60.0


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new one for this context. What it holds goes even after a kill: it may be a password."""
    sweep()
    folder, lock = _locked()
    with lock:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove what processes of this user left that have ended: nobody holds its lock any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.stat().st_uid == os.getuid():
                _remove_left(folder)


def _locked() -> tuple[Path, TextIO]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # of mode 700
        lock = (folder / _LOCK).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _LOCK).exists():
            return folder, lock
        lock.close()  # another process swept before the lock was held


def _remove_left(folder: Path) -> None:
    if not (folder / _LOCK).exists():
        if time.time() - folder.stat().st_mtime > _YOUNG:
            shutil.rmtree(folder, ignore_errors=True)
        return
    with (folder / _LOCK).open("r") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an OSError while it is held
        shutil.rmtree(folder, ignore_errors=True)
