"""What the pipeline raises."""

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
    """The input or the session is not what the job needs: it does not begin, or not go on. Nothing
    is half done."""


class SparkMissing(DelayQError):
    """Spark cannot be started here."""


class LakeError(DelayQError):
    """The lake is not as its commits say."""


class LakeConflict(LakeError):
    """Another writer has committed meanwhile. Nothing of this one counts; run it again."""
