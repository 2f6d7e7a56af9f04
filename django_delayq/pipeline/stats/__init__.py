"""The job stats: figures of past hours and days from the lake.

Start with stats.py.
"""

from __future__ import annotations

__all__ = ["aggregates", "stats", "write_back"]
