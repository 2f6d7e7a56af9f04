"""What each job can be told beside Params: its options, checked when they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from ..core.times import MAX_DELAY_MS

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Delay = Annotated[int, msgspec.Meta(ge=0, le=MAX_DELAY_MS)]


class Options(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base: an option that a job does not know is refused."""


class ExportOptions(Options):
    """archive -> lake."""

    batch: Annotated[int, msgspec.Meta(ge=1)] = 500_000
    """Ids of the archive in one batch of the lake."""
    settle: NotNegative = 60.0
    """Seconds: rows that the database took later than so long ago wait for the next export."""
    prune: Annotated[float, msgspec.Meta(ge=3600)] | None = None
    """Seconds: delete from SQL what the lake holds and what finished longer ago than this; None
    deletes nothing."""
    by: str = ""
    """Who, for the OperatorAction of the pruning."""
    compact: bool = False
    """Rewrite the small files of days that are over as one batch."""
    interval: Positive | None = None
    """Seconds to wait before the next export, until SIGTERM or Ctrl-C; None: export once."""
    grace: NotNegative = 86_400.0
    """Seconds for which files stay that no commit names (any more): a reader, or a slow writer, may
    be at them."""


class StatsOptions(Options):
    """lake -> TopicHour and TaskDay."""

    source: Literal["lake", "archive"] = "lake"
    everything: bool = False
    """All hours and days, not only those with new rows."""
    fewer: bool = False
    """Also where what is stored counts messages that the lake, or the archive, does not have."""


class ForecastOptions(Options):
    """Redis and outbox -> Forecast."""

    drain_rate: Positive | None = None
    """Messages a second that the workers manage; None: the highest that the samples of the last day
    show."""
    replica: str = ""
    """Reference (`env:NAME`, `file:/path`) to the URL of a replica that is read in place of the
    server itself."""


class AuditOptions(Options):
    """Redis x outbox x archive x lake."""

    pause: NotNegative = 5.0
    """Seconds between the first look and the second one, by id, that a difference must survive."""
    repair: bool = False
    by: str = ""
    """Who, for the OperatorActions of what is repaired."""
    most: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    """Differences of a kind that one run looks at again and repairs; all are counted."""


class ParameterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter of a task's function."""

    name: str
    kind: Literal["positional", "named", "both", "others"]
    """Given by position only, by name only, in either way; or `**kwargs`."""
    annotation: str = ""
    required: bool = True


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A task as a job needs it where the project's code is not."""

    name: str
    topic: str
    ttr_ms: int
    priority: int = 1
    max_attempts: int | None = None
    """None: what the task says when it runs."""
    expires: str = ""
    """Empty: never; `+ms` after the due time; or an instant in ms."""
    parameters: Sequence[ParameterSpec] = ()


class ScheduleOptions(Options):
    """Rows -> messages of a task."""

    job: str
    """Names this load. The same job again adds nothing twice, also after its messages have
    finished."""
    task: TaskSpec
    source: str
    """Path of files, name of a table, or a SELECT; see `format`."""
    format: Literal["parquet", "csv", "json", "table", "query"]
    """`json`: JSON lines. `table` and `query`: of the database of the archive."""
    key: str
    """Column that identifies a row: unique, no nulls."""
    keyed: bool = True
    """Whether the messages get its value as their key; else only their ids are made of it."""
    columns: Mapping[str, str] = {}
    """Parameter -> column; empty: the columns that are named as parameters."""
    due: str = ""
    """Column with the due time; empty: `delay_ms` from the start of the job."""
    delay_ms: Delay = 0
    rejects: str = ""
    """Directory: JSON lines of rows that are refused, with reasons, go to JOB.rejects in it; empty:
    one such row refuses the job."""
    max_per_second: Positive | None = None
    splits: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    """Parts of each partition of the topic that are written side by side. Part of the job: it may
    not change."""


class ReplayOptions(Options):
    """Dead letters -> messages."""

    job: str
    """As in ScheduleOptions."""
    tasks: Sequence[TaskSpec] = ()
    """Of the declared tasks: what is dead of another one is left alone, and counted."""
    source: Literal["archive", "lake"] = "archive"
    where: str = ""
    """Condition in Spark SQL over the columns of the archive, e.g. "error_class = 'Timeout' and
    attempts < 9"."""
    edits: Mapping[str, str] = {}
    """Argument by name -> expression in Spark SQL over the columns; `kwargs` is a VARIANT, `args`
    an array of them."""
    delay_ms: Delay = 0
    reason: str = ""
    by: str = ""
    """Who, for the OperatorAction."""
    max_per_second: Positive | None = None
    splits: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
