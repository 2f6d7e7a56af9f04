"""Durable messages: the table that keeps them until they have ended, and what sends them.

May import archive and what archive may import. Start with outbox.py; relay.py and reconciler.py
are the services.
"""

from __future__ import annotations

__all__ = ["outbox", "relay", "reconciler", "postponed", "lookup", "listing", "existing"]
