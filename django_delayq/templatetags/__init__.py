"""Template tags and filters of the operators' pages.

May import all but admin and management.
"""

from __future__ import annotations

__all__ = ["delayq"]
