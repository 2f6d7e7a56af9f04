"""The commands, and what they share. A command parses its arguments, builds and runs.

May import everything but admin. Start with commands/run_delayq.py, which starts a worker.
"""

from __future__ import annotations

__all__ = ["commands", "pipeline_arguments", "sql_services"]
