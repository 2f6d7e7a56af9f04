"""The errors of the pipeline, and the exit codes of its jobs."""

from __future__ import annotations

from enum import IntEnum

from ..core.exceptions import DelayQError


class Code(IntEnum):
    """Exit codes of a job."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
    DIFFERENT = 3
    """The audit found differences."""


class Refused(DelayQError):
    """The job refuses its input or its session, and stops. Nothing is half done."""


class SparkMissing(DelayQError):
    """Spark cannot be started here."""


class LakeError(DelayQError):
    """The lake contradicts its commits."""


class LakeConflict(LakeError):
    """Another writer has committed meanwhile. Nothing of this one counts; run it again."""
