"""The present problems, each with its cause: for the pages, for ALERTS and for `delayq check`.

May import what stats may. Start with conditions.py: each condition is defined there, once.
"""

from __future__ import annotations

__all__ = ["conditions", "situation", "concerns"]
