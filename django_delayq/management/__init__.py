"""The commands: `run_delayq` is the worker, `delayq VERB` is everything else.

They parse options, build what is needed and run it; the work itself is in the packages below. Read
commands/delayq.py and one file of verbs/ first.
"""

from __future__ import annotations

__all__ = ["commands", "sql_services"]
