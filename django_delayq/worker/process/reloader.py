"""Notices changed code in development, so that the worker can drain and start anew."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from django.utils.autoreload import iter_all_python_module_files

from ...core.service import Service

logger = logging.getLogger("delayq.worker")

#: The first thing that a new worker does: import the settings, the models and the tasks.
_IMPORTS = "import django; django.setup()"
#: A project that could not be imported is tried again after so many seconds. A missing file may
#: have been added.
TRY_AGAIN = 5.0


class Reloader(Service):
    """Compares the modification times of all imported modules once a second."""

    name = "reloader"
    interval = 1.0

    def __init__(self, on_change: Callable[[], None]) -> None:
        super().__init__()
        self._on_change = on_change
        self._seen: dict[Path, float] = {}
        self._broken_since = 0.0
        self._error = ""
        self._changed()  # what is loaded now; the thread may come too late for a quick change

    def run_once(self) -> float:
        """Call back once when modules have changed and the project can be imported with them."""
        changed = self._changed()
        tries_again = self._broken_since and time.monotonic() - self._broken_since > TRY_AGAIN
        if not changed and not tries_again:
            return self.interval
        names = ", ".join(map(str, changed)) or "code"
        try:
            for path in changed:
                compile(path.read_bytes(), str(path), "exec")
        except (SyntaxError, ValueError, OSError) as broken:
            error = str(broken)
        else:
            error = import_error()
        if not error:
            self._broken_since, self._error = 0.0, ""
            logger.info("%s has changed: starting anew", names)
            self._on_change()
            return self.interval
        if changed or error != self._error:
            logger.error(
                "%s has changed and cannot be imported; the old code goes on: %s", names, error
            )
        self._broken_since, self._error = time.monotonic(), error
        return self.interval

    def _changed(self) -> list[Path]:
        """The modules that have changed."""
        changed = []
        for path in iter_all_python_module_files():
            try:
                changed_at = path.stat().st_mtime
            except OSError:
                continue
            if self._seen.setdefault(path, changed_at) != changed_at:
                self._seen[path] = changed_at
                changed.append(path)
        return changed


def import_error() -> str:
    """Why a new process of this project would end at once; empty if it would not.

    Tried in a process of its own, as this one has the old modules.
    """
    if "DJANGO_SETTINGS_MODULE" not in os.environ:
        return ""
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _IMPORTS],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "the import takes longer than a minute"
    if done.returncode == 0:
        return ""
    return done.stderr.strip() or f"it ends with code {done.returncode}"
