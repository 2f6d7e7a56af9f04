"""The lake: Parquet files, the commits that name them, and the ledger in SQL.

Start with lake.py, which needs neither Spark nor Django.
"""

from __future__ import annotations

__all__ = [
    "batches", "compaction", "lake", "ledger", "pruning", "settling", "watermark", "writer",
]  # fmt: skip
