"""The job export: copies the archive to the lake.

Start with export.py.
"""

from __future__ import annotations

__all__ = ["checkpoint", "export", "stream"]
