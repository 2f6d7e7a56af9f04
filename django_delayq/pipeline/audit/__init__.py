"""The job audit: compares Redis, outbox, archive and lake, and repairs.

Start with audit.py.
"""

from __future__ import annotations

__all__ = [
    "audit", "audit_frames", "audit_lake", "audit_repair", "confirm", "diagnosis", "findings",
    "restore",
]  # fmt: skip
