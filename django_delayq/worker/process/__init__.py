"""The process around a worker: start, signals, several processes, probes, console, reload.

May import the rest of worker. Start with runner.py.
"""

from __future__ import annotations

__all__ = ["console", "health", "reloader", "runner", "startup", "supervisor"]
