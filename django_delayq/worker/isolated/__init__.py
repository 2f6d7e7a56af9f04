"""Runs tasks with isolate=True in child processes of the worker, which can be killed.

May import the rest of worker; is loaded with the first message of such a task. Start with
isolation.py, then child.py: that is the program of a child process.
"""

from __future__ import annotations

__all__ = ["child", "child_process", "frames", "isolation", "process_memory"]
