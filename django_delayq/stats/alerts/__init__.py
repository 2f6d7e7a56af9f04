"""Tells people when something is wrong, and when it is over, by the rules of ALERTS.

May import what stats may. Start with alerter.py.
"""

from __future__ import annotations

__all__ = ["alerter", "delivery"]
