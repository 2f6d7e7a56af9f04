"""The job audit: compares Redis, outbox, archive and lake, and repairs.

The kinds, their second look and their repair are those of operators/doctor. Start with audit.py.
"""

from __future__ import annotations

__all__ = ["audit", "audit_frames", "audit_lake"]
