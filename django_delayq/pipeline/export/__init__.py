"""The job export: archive -> lake, once or at an interval. Stands on lake/; read export.py."""

from __future__ import annotations

__all__ = ["export"]
