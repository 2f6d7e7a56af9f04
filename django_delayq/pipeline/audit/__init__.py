"""The job audit: compares Redis, outbox, archive and lake, and repairs.

Start with audit.py, or doctor.py, which does without Spark and the lake.
"""

from __future__ import annotations

__all__ = [
    "audit", "audit_frames", "audit_lake", "audit_repair", "conclusion", "confirm", "doctor",
    "findings",
]  # fmt: skip
