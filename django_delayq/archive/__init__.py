"""What has ended: the archiver and the rows that it writes; searching, selecting and pruning them.

May import worker, tasks, store, models and core. Start with archiver.py; archive_rows.py has
the columns.
"""

from __future__ import annotations

__all__ = [
    "archiver", "archive_rows", "endings", "closing", "exactly_once", "unarchivable", "selection",
    "search", "dead_letters", "facets", "prune", "retention", "months", "month_maker",
    "partitioning", "argument_match", "erasure",
]  # fmt: skip
