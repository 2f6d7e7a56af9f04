"""The ground that everything stands on: settings, errors, signals, the message and its wire
format, ids, times.

Imports nothing else of django_delayq. Start with message.py (states and the record), then
conf.py.
"""

from __future__ import annotations

__all__ = [
    "conf", "exceptions", "signals", "message", "times", "service", "connections", "database",
    "log", "present", "job_report", "version", "chunks", "cursors",
]  # fmt: skip
