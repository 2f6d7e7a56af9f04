"""Helpers for tests and demos: a Redis server of one's own.

May import all but admin and management. Start with embedded.py.
"""

from __future__ import annotations

__all__ = ["embedded"]
