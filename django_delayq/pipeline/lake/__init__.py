"""The lake: Parquet files, and the commits that say which of them count.

Stands on sources/ and sinks/. Start with lake.py, which needs no Spark; ledger.py keeps the same
batches in SQL.
"""

from __future__ import annotations

__all__ = [
    "batches", "compaction", "lake", "lake_erasure", "ledger", "pruning", "reader", "row_hash",
    "watermark",
]  # fmt: skip
