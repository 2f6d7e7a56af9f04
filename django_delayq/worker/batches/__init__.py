"""Tasks whose function gets many messages in one call.

A worker that has none of them imports nothing of this. Start with gatherer.py, then
batch_executor.py.
"""

from __future__ import annotations

__all__ = ["batch_executor", "calls", "gatherer"]
