"""Notices changed code in development, so that the worker can drain and start anew."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from django.utils.autoreload import iter_all_python_module_files

from .service import Service

logger = logging.getLogger("delayq.worker")


class Reloader(Service):
    """Compares the modification times of all imported modules once a second."""

    name = "reloader"
    interval = 1.0

    def __init__(self, on_change: Callable[[], None]) -> None:
        super().__init__()
        self._on_change = on_change
        self._seen: dict[Path, float] = {}
        self.run_once()  # what is loaded now; the thread may come too late for a quick change

    def run_once(self) -> float:
        """Call back once when a module has changed and can be compiled."""
        for path in iter_all_python_module_files():
            try:
                changed_at = path.stat().st_mtime
            except OSError:
                continue
            if self._seen.setdefault(path, changed_at) != changed_at:
                self._seen[path] = changed_at
                self._changed(path)
        return self.interval

    def _changed(self, path: Path) -> None:
        try:
            compile(path.read_bytes(), str(path), "exec")
        except (SyntaxError, ValueError) as error:
            logger.error("%s has changed and cannot be compiled; the old code goes on: %s", path, error)
            return
        logger.info("%s has changed: starting anew", path)
        self._on_change()
