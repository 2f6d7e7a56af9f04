"""The lake: one open Delta table of messages that have ended.

Stands on sources/. Start with lake.py: it alone knows the package deltalake. files.py, batches.py
and lake_source.py run on executors; ledger.py keeps in SQL what the table's log forgets;
figure_tables.py copies the figures of hours and days from SQL.
"""

from __future__ import annotations

__all__ = [
    "batches", "compaction", "differences", "figure_tables", "files", "lake", "lake_erasure",
    "lake_source", "ledger", "pruning", "watermark",
]  # fmt: skip
