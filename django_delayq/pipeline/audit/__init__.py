"""The job audit: compares Redis, outbox, archive and lake, and repairs.

Start with audit.py.
"""

from __future__ import annotations

__all__ = [
    "audit", "audit_frames", "audit_lake", "confirm", "finding_kinds", "audit_repair", "restore",
]  # fmt: skip
