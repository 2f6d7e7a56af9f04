"""The options of each job, and the rules that they obey.

The text under a field is its help on the command line, and its type says what is read there: a
number of seconds is given as `30d`, `Folder` is a path, a mapping is given as NAME=VALUE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from ..core.times import MAX_DELAY_MS
from .errors import Refused
from .params import Params


def _meta(metavar: str, **limits: Any) -> msgspec.Meta:
    return msgspec.Meta(extra={"metavar": metavar}, **limits)


Seconds = Annotated[float, _meta("DURATION", ge=0)]
Milliseconds = Annotated[int, _meta("DURATION", ge=0, le=MAX_DELAY_MS)]
Rate = Annotated[float, _meta("NUMBER", gt=0, lt=10**9)]
Count = Annotated[int, _meta("COUNT", ge=1, le=10**12)]
Splits = Annotated[int, _meta("COUNT", ge=1, le=64)]
Folder = Annotated[str, _meta("FOLDER")]
Column = Annotated[str, _meta("COLUMN")]
Reference = Annotated[str, _meta("REF")]
Condition = Annotated[str, _meta("SQL")]
Columns = Annotated[Mapping[str, str], _meta("PARAMETER=COLUMN")]
Edits = Annotated[Mapping[str, str], _meta("ARGUMENT=EXPRESSION")]


class Options(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base: an option that a job does not know is refused."""

    takes: ClassVar[Sequence[str]] = ("dry_run",)
    """Fields of Params that mean something to the job."""

    def check(self, params: Params) -> None:
        """Raise Refused for parameters that the job cannot do. Needs no Spark."""
        since, until = params.period()
        given = [name for name in ("since", "until", "topic") if getattr(params, name)]
        if wrong := [name for name in given if name not in self.takes]:
            raise Refused(f"This job does not take {' and '.join(wrong)}: leave that out.")
        if since and until and until <= since:
            raise Refused(
                f"until ({params.until}) is not after since ({params.since}): exchange them."
            )
        if self.needs_lake() and not params.lake:
            raise Refused(
                "This job needs a lake, a directory that this machine and all executors see: give "
                "--lake DIRECTORY, or set DELAYQ_LAKE in the environment."
            )

    def needs_lake(self) -> bool:
        """Whether the job reads or writes the lake."""
        return False


class ExportOptions(Options):
    """Copy finished messages from the archive to the lake, once or at an interval.

    It copies all rows that are settled, batch by batch, and verifies each batch. It can also
    compact the lake, and prune the archive.

      python manage.py delayq pipeline export --lake /data/lake --compact --prune 90d
    """

    takes = ("lake", "dry_run")

    batch: Count = 500_000
    """Ids of the archive in one batch of the lake."""
    settle: Seconds = 60.0
    """Rows that the database got more recently than this wait for the next export."""
    prune: Annotated[float, _meta("DURATION", ge=3600)] | None = None
    """Then delete from SQL the rows that are in the lake and finished longer ago than this; at
    least 1h."""
    by: str = ""
    """Who, for the record."""
    compact: bool = False
    """Rewrite the small files of days that are over as one batch."""
    interval: Annotated[float, _meta("DURATION", gt=0)] | None = None
    """Wait this long, then export again, until SIGTERM or Ctrl-C. Without it: export once."""
    grace: Seconds = 86_400.0
    """Keep files that no commit names for this long: somebody may be reading or writing them."""

    def needs_lake(self) -> bool:
        """It writes the lake."""
        return True


class StatsOptions(Options):
    """Compute counts and histograms per hour and day.

    It reads the lake and replaces the figures of hours and days with new rows, those of a period,
    or all.

      python manage.py delayq pipeline stats --lake /data/lake --since 7d
    """

    takes = ("lake", "since", "until", "dry_run")

    source: Literal["lake", "archive"] = "lake"
    """Where to read the finished messages."""
    everything: bool = False
    """Compute all hours and days, not only those with new rows."""
    fewer: bool = False
    """Also replace figures that count more messages than the source has."""

    def needs_lake(self) -> bool:
        """Unless it reads the archive."""
        return self.source == "lake"


class ForecastOptions(Options):
    """Count what will be due, from Redis and the outbox.

    The overview of the admin shows the result. With --topic or --dry-run nothing is written.

      python manage.py delayq pipeline forecast
    """

    takes = ("topic", "dry_run")

    drain_rate: Rate | None = None
    """Messages per second that the workers manage. Without it: the highest rate of the last day."""
    replica: Reference = ""
    """Read a replica of Redis; this is a reference to its URL: env:NAME or file:/path."""


class AuditOptions(Options):
    """Compare Redis, outbox, archive and lake; repair what differs.

    The exit code is 3 when there are differences, also when all of them are repaired.

      python manage.py delayq pipeline audit --lake /data/lake --repair
    """

    takes = ("lake", "topic", "dry_run")

    pause: Seconds = 5.0
    """Time between the two comparisons. Only a difference that both find counts."""
    repair: bool = False
    """AuditRepair what differs, each with an operator action. Without it nothing is changed."""
    by: str = ""
    """Who, for the record."""
    most: Count = 10_000
    """Differences of a kind that are compared again and repaired; all are counted."""

    def check(self, params: Params) -> None:
        """A repair changes something."""
        super().check(params)
        if self.repair and params.dry_run:
            raise Refused(
                "--repair and --dry-run contradict each other. Leave --repair out: then the audit "
                "changes nothing."
            )


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
    """Enqueue a message per row of a file, a table or a query.

    The same job again adds nothing twice.

      python manage.py delayq pipeline schedule --job spring --task shop.tasks.remind
          --source coupons.csv --format csv --key id --due expires_at
    """

    job: str
    """Names this load. The same job again adds nothing twice, also after its messages have
    finished."""
    task: TaskSpec
    """Name of the task."""
    source: str
    """Path of files, name of a table, or a SELECT; see --format."""
    format: Literal["parquet", "csv", "json", "table", "query"]
    """What the source is. json: a document per line. table and query: of the archive's database."""
    key: Column
    """Identifies a row: unique, no nulls."""
    keyed: bool = True
    """The column makes the ids of the messages, but is not their key."""
    columns: Columns = {}
    """The parameter gets its value from the column. Without it: columns named as parameters."""
    due: Column = ""
    """Has the due time. Without it: see --delay."""
    delay_ms: Milliseconds = 0
    """Messages are due this long after the start of the job."""
    rejects: Folder = ""
    """Write refused rows here, with reasons, to JOB.rejects. Without it one refused row refuses
    the job."""
    max_per_second: Rate | None = None
    """At most this many messages per second, so that the workers keep up."""
    splits: Splits = 4
    """Parts of each partition that are written side by side. Keep it when you repeat a job."""

    def check(self, params: Params) -> None:
        """There is one due time."""
        super().check(params)
        if self.due and self.delay_ms:
            raise Refused(
                "--due and --delay contradict each other: a message is due at the time of its row, "
                "or after the delay. Give one of them."
            )


class ReplayOptions(Options):
    """Enqueue dead letters again, each of them once.

    Use it for very many dead letters; `delayq replay` does the same without Spark.

      python manage.py delayq pipeline replay --job march-7 --where "error_class = 'Timeout'"
    """

    takes = ("lake", "since", "until", "topic", "dry_run")

    job: str
    """Names this load. The same job again replays nothing twice."""
    tasks: Sequence[TaskSpec] = ()
    """The declared tasks: a dead letter of another task is left alone, and counted."""
    source: Literal["archive", "lake"] = "archive"
    """Where to read the dead letters."""
    where: Condition = ""
    """Condition over the columns of the archive, such as "error_class = 'Timeout' and attempts <
    9"."""
    edits: Edits = {}
    """The argument gets the value of the expression, in SQL over the same columns."""
    delay_ms: Milliseconds = 0
    """Messages are due this long after the start of the job."""
    reason: str = ""
    """Why, for the record."""
    by: str = ""
    """Who, for the record."""
    max_per_second: Rate | None = None
    """At most this many messages per second, so that the workers keep up."""
    splits: Splits = 4
    """Parts of each partition that are written side by side. Keep it when you repeat a job."""

    def needs_lake(self) -> bool:
        """Unless it reads the archive."""
        return self.source == "lake"
