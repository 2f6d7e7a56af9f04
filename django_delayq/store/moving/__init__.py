"""Moves the store to another Redis while everything runs. Nobody loads it before.

freeze.py: the states of a move, in both stores. follow.py: what every process does when Redis
refuses a call because the store moves. mover.py: what `delayq move-store` does.
May import what stands below the client: connection, keys, redis_errors.
"""

from __future__ import annotations

__all__ = ["follow", "freeze", "mover"]
