"""Compares Redis, the outbox and the archive, and repairs; for the verb doctor in one process, and
for the job audit of the pipeline on Spark.

Start with doctor.py. findings.py has the kinds; second_look.py checks each finding once more,
repairs.py repairs it, and conclusion.py does both and reports.
"""

from __future__ import annotations

__all__ = ["conclusion", "doctor", "findings", "repairs", "second_look"]
