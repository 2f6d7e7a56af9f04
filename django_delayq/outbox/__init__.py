"""Durable messages: the table that keeps them until they have ended, and what sends them.

May import archive and what archive may import. Start with outbox.py; relay.py, reconciler.py
and ticker.py (recurring tasks) are the services.
"""

from __future__ import annotations

__all__ = ["outbox", "relay", "reconciler", "ticker", "postponed", "lookup", "listing", "existing"]
