"""The parameters of a job: where things are, and the options of each job with their rules.

Parameters refer to secrets and never hold one. The text under a field of an options class is its
help on the command line, and the type of the field says what is read there: a number of seconds is
given as `30d`, `Folder` is a path, a mapping is given as NAME=VALUE.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from ..core.conf import Settings, parse_settings
from ..core.exceptions import ConfigurationError
from ..core.times import MAX_DELAY_MS
from .job_errors import Refused

T = TypeVar("T")

#: Names of settings whose values are secret.
SECRET_NAME = r"(?i)secret|password|passwd|token|access[.]?key|dsn"
#: Names of options of object stores whose values are secret.
STORE_SECRET = r"(?i)secret|password|token|account[_.]?key|storage_key|sas_key|service_account_key"
#: scheme://user:password@host
CREDENTIALS = re.compile(r"://[^/\s]*:[^/\s]*@")


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`env:NAME` or `file:/path`, resolved where it is used: on the driver and on each executor."""

    ref: str = ""

    def __post_init__(self) -> None:
        # The value is not repeated: it may be the secret itself.
        if self.ref and self.ref.partition(":")[0] not in ("env", "file"):
            raise ConfigurationError(
                "A secret is referred to as env:NAME or file:/path, and never given itself."
            )

    def __bool__(self) -> bool:
        return bool(self.ref)

    def resolve(self) -> str:
        """The secret. Raises ConfigurationError that names the reference, never the secret."""
        kind, _, name = self.ref.partition(":")
        if not self.ref:
            return ""
        if kind == "env" and name in os.environ:
            return os.environ[name]
        if kind == "file":
            try:
                return Path(name).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise ConfigurationError(
                    f"The secret {self.ref} cannot be read: {error.strerror}."
                ) from None
        raise ConfigurationError(
            f"The secret {self.ref!r} is not there: use env:NAME (set on every executor) or "
            f"file:/path."
        )


class Database(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The database of the archive, as Django knows it."""

    engine: str
    name: str
    table: str
    """Of the archive."""
    outbox: str = ""
    """Table of the outbox."""
    host: str = ""
    port: str = ""
    user: str = ""
    password: Secret = Secret()
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    zone: str = "UTC"
    """Zone of the times that are stored without one."""

    def resolved(self) -> dict[str, Any]:
        """The entry of DATABASES, with its secret. Raises ConfigurationError."""
        names = ("engine", "name", "user", "host", "port")
        entry = {name.upper(): getattr(self, name) for name in names}
        return {**entry, "PASSWORD": self.password.resolve(), "OPTIONS": dict(self.options)}

    @property
    def vendor(self) -> str:
        """postgresql, mysql, sqlite, or the name of another backend."""
        last = self.engine.rpartition(".")[2]
        of_gis = {"postgis": "postgresql", "spatialite": "sqlite"}
        return of_gis.get(last, last.removesuffix("3"))


class Redis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The server of the queue."""

    url: Secret = Secret()
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """DELAYQ without its secrets: prefix, topics, limits, timeouts; durations in seconds."""
    next: Secret = Secret()
    """The URL to which the store is to move. Empty: it does not move, or the job is not told."""

    def resolved(self) -> dict[str, Any]:
        """DELAYQ with its secrets: never log, pickle or put it into a plan of Spark. Raises
        ConfigurationError."""
        secrets = {"REDIS": self.url.resolve(), "REDIS_NEXT": self.next.resolve()}
        return {**self.options, **secrets}

    def settings(self) -> Settings:
        """The settings for a RedisStore, as secret as resolved(). Raises ConfigurationError."""
        return parse_settings(self.resolved())


class Storage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a lake is: the URI of its table, and what its store needs to be opened."""

    uri: str = ""
    """s3://bucket/path, gs://..., abfss://..., or a path that all machines see. Empty: none."""
    options: Mapping[str, str] = {}
    """Options of the store by the names that every reader of Delta knows, such as
    AWS_ENDPOINT_URL."""
    secrets: Mapping[str, Secret] = {}
    """Options whose values are secret, such as AWS_SECRET_ACCESS_KEY."""

    def __post_init__(self) -> None:
        # The value is not repeated: it may be the secret itself.
        if found := next((name for name in self.options if re.search(STORE_SECRET, name)), None):
            raise ConfigurationError(
                f"The option {found} of the lake looks like a secret: give a reference, "
                f"{found}=env:NAME or {found}=file:/path, by --lake-secret."
            )
        if CREDENTIALS.search(self.uri):
            raise ConfigurationError(
                "The URI of the lake has a password in it: give it by --lake-secret."
            )

    def __bool__(self) -> bool:
        return bool(self.uri)

    @property
    def is_local(self) -> bool:
        """Whether it is a path of a file system."""
        return "://" not in self.uri

    def resolved(self) -> dict[str, str]:
        """All options with their secrets: never log, pickle or put them into a plan of Spark. A
        commit is conditional where the store can do it. Raises ConfigurationError."""
        secrets = {name: secret.resolve() for name, secret in self.secrets.items()}
        conditional = {"aws_conditional_put": "etag"} if self.uri.startswith("s3") else {}
        return {**conditional, **self.options, **secrets}


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of one job, as JSON in a file for `python -m django_delayq.pipeline JOB
    --params FILE`."""

    database: Database
    redis: Redis = Redis()
    lake: Storage = Storage()
    since: str = ""
    """ISO 8601, UTC."""
    until: str = ""
    topic: str = ""
    """Only this topic; empty: all topics."""
    encrypted: bool = False
    """Whether the project encrypts the bodies of messages. The keys are not among the
    parameters."""
    dry_run: bool = False
    """Report what the job would do, and change nothing."""
    job: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The options of this job: one of the JobOptions below."""

    def options(self, kind: type[T]) -> T:
        """The options of a job. Raises Refused."""
        try:
            return msgspec.convert(self.job, kind)
        except msgspec.ValidationError as error:
            raise Refused(f"The options of the job are not what it takes: {error}") from error

    def period(self) -> tuple[datetime | None, datetime | None]:
        """`since` and `until`, aware. Raises Refused for a naive time and for any other text."""
        return _instant("since", self.since), _instant("until", self.until)

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def decode(cls, raw: bytes) -> Params:
        """From encode(). Raises ConfigurationError."""
        try:
            return msgspec.json.decode(raw, type=cls)
        except msgspec.MsgspecError as error:
            raise ConfigurationError(f"The parameters cannot be read: {error}") from error


def _instant(name: str, text: str) -> datetime | None:
    if not text:
        return None
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise Refused(
            f"{name} is {text!r}: use ISO 8601 with an offset, such as 2026-01-31T09:00:00Z."
        ) from None
    if when.tzinfo is None:
        raise Refused(
            f"{name} is {text!r}, which may be any of 24 instants: add its offset, such as Z or "
            f"+01:00."
        )
    return when.astimezone(timezone.utc)


# The options of each job


def _meta(metavar: str, **limits: Any) -> msgspec.Meta:
    return msgspec.Meta(extra={"metavar": metavar}, **limits)


Seconds = Annotated[float, _meta("DURATION", ge=0)]
Milliseconds = Annotated[int, _meta("DURATION", ge=0, le=MAX_DELAY_MS)]
Rate = Annotated[float, _meta("NUMBER", gt=0, lt=10**9)]
Share = Annotated[float, _meta("PERCENT", ge=0, le=1)]
Count = Annotated[int, _meta("COUNT", ge=1, le=10**12)]
Splits = Annotated[int, _meta("COUNT", ge=1, le=64)]
Folder = Annotated[str, _meta("FOLDER")]
Column = Annotated[str, _meta("COLUMN")]
Reference = Annotated[str, _meta("REF")]
Condition = Annotated[str, _meta("SQL")]
Columns = Annotated[Mapping[str, str], _meta("PARAMETER=COLUMN")]
Edits = Annotated[Mapping[str, str], _meta("ARGUMENT=EXPRESSION")]


class JobOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The base class. An option that a job does not know is refused."""

    takes: ClassVar[Sequence[str]] = ("dry_run",)
    """The fields of Params that the job uses."""
    interrupted: ClassVar[str] = "nothing is half done; run it again to go on."
    """What an interrupted job has left."""

    def check(self, params: Params) -> None:
        """Raise Refused when the job cannot run with these parameters. Needs no Spark."""
        since, until = params.period()
        given = [name for name in ("since", "until", "topic") if getattr(params, name)]
        if wrong := [name for name in given if name not in self.takes]:
            raise Refused(f"This job does not take {' and '.join(wrong)}: leave that out.")
        if since and until and until <= since:
            raise Refused(
                f"until ({params.until}) is not after since ({params.since}): exchange them."
            )
        if "lake" in self.needs() and not params.lake:
            raise Refused(
                "This job needs a lake: give --lake URI (s3://bucket/path, gs://, abfss://, or a "
                "path that all machines see), or set DELAYQ_LAKE in the environment."
            )

    def needs(self) -> Collection[str]:
        """Which of `lake`, `redis` and `spark` the job needs with these options. Without `redis`,
        other machines need no reference to its URL; without `spark`, the job gets no session."""
        return ("redis", "spark")


class ExportOptions(JobOptions):
    """Copy finished messages from the archive to the lake, once or at an interval.

    It copies all rows that are settled, batch by batch, and compares each file with SQL before it
    commits the batch. Then it puts the small files of past days together. It can also drop old days
    from the lake, and prune the archive.

      python manage.py delayq pipeline export --lake s3://shop/lake --retain 400d --prune 90d
    """

    takes = ("lake", "dry_run")

    batch: Count | None = None
    """Rows of one batch, which is one commit. Without it: 500,000 for each task that runs at a
    time."""
    settle: Seconds = 60.0
    """Rows that the database got more recently than this wait for the next export."""
    prune: Annotated[float, _meta("DURATION", ge=3600)] | None = None
    """Then delete from SQL the rows that are in the lake and finished longer ago than this; at
    least 1h."""
    by: str = ""
    """Who runs the job, for the record."""
    compact: bool = True
    """Leave the small files of days that are over as they are."""
    retain: Annotated[float, _meta("DURATION", ge=86_400)] | None = None
    """Then drop from the lake the days (UTC) that ended longer ago than this; at least 1d."""
    interval: Annotated[float, _meta("DURATION", gt=0)] | None = None
    """Wait this long, then export again, until SIGTERM or Ctrl-C. Without it: export once."""
    grace: Seconds = 86_400.0
    """Keep files that the lake does not have any more, or not yet, for this long: another process
    may read or write them."""

    def needs(self) -> Collection[str]:
        """Redis only to prune: rows of exactly_once tasks stay while Redis has their messages."""
        return ("lake", "spark") if self.prune is None else ("lake", "redis", "spark")


class StatsOptions(JobOptions):
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
    spark: bool = True
    """Count in this process, one file after the other, without Spark and Java."""

    def needs(self) -> Collection[str]:
        """The lake, unless it reads the archive; Spark, as the user says."""
        lake = ["lake"] if self.source == "lake" else []
        return [*lake, "spark"] if self.spark else lake


class CheckOptions(JobOptions):
    """Compare figures of past hours with limits.

    It looks at the figures that `stats` or run_delayq have computed, by topic: those of the last 24
    hours, or of a period. The exit code is 3 when a limit is broken, and 2 when there are no
    figures. It needs no Spark.

      python manage.py delayq pipeline check --since 24h --late-p99 5s --dead 1%
    """

    takes = ("since", "until", "topic", "dry_run")

    late_p50: Seconds | None = None
    """Most lateness that half of the messages may have."""
    late_p99: Seconds | None = None
    """Most lateness that 99 of 100 messages may have."""
    run_p99: Seconds | None = None
    """Longest run that 99 of 100 messages may have."""
    dead: Share | None = None
    """Most of the messages that may be dead."""
    expired: Share | None = None
    """Most of the messages that may have expired."""
    retried: Share | None = None
    """Most of the messages that may have needed more than one attempt."""
    messages: Count | None = None
    """So many messages of each topic have to have ended."""

    def needs(self) -> Collection[str]:
        """Neither Redis nor Spark: the figures are in SQL."""
        return ()

    def check(self, params: Params) -> None:
        """There is a limit."""
        super().check(params)
        if all(getattr(self, name) is None for name in self.__struct_fields__):
            raise Refused("Nothing is compared: give a limit, such as --late-p99 5s or --dead 1%.")


class ForecastOptions(JobOptions):
    """Count what will be due, from Redis and the outbox.

    The overview of the admin shows the result. With --topic or --dry-run nothing is written. It
    needs no Spark.

      python manage.py delayq pipeline forecast
    """

    takes = ("topic", "dry_run")

    drain_rate: Rate | None = None
    """Messages per second that the workers manage. Without it: the highest rate of the last day."""
    replica: Reference = ""
    """Read a replica of Redis; this is a reference to its URL: env:NAME or file:/path."""

    def needs(self) -> Collection[str]:
        """No Spark."""
        return ("redis",)


class AuditOptions(JobOptions):
    """Compare Redis, outbox, archive and lake; repair what differs.

    The exit code is 3 when there are differences, also when all of them are repaired. With --since
    or --until it compares only the archive with the lake, of that period.

      python manage.py delayq pipeline audit --lake /data/lake --repair
    """

    takes = ("lake", "since", "until", "topic", "dry_run")

    pause: Seconds = 5.0
    """Time between the two comparisons. Only a difference that both find counts."""
    repair: bool = False
    """Repair each difference and record an operator action. Without it nothing is changed."""
    by: str = ""
    """Who runs the job, for the record."""
    most: Count = 10_000
    """Differences of a kind that are compared again and repaired; all are counted."""

    def check(self, params: Params) -> None:
        """A repair changes something."""
        super().check(params)
        if (params.since or params.until) and not params.lake:
            raise Refused("--since and --until are about a lake: give --lake URI.")
        if (params.since or params.until) and params.topic:
            raise Refused("A period is compared for all topics: leave --topic out.")
        if self.repair and params.dry_run:
            raise Refused(
                "--repair and --dry-run contradict each other. Leave --repair out: then the audit "
                "changes nothing."
            )


class ParameterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter of a task's function."""

    name: str
    kind: Literal["positional", "named", "both", "rest", "others"]
    """Given by position only, by name only, in both ways; rest: `*args`, others: `**kwargs`."""
    annotation: str = ""
    required: bool = True


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A task as a job needs it where the project's code is not."""

    name: str
    topic: str
    ttr_ms: int
    priority: int = 1
    max_attempts: int | None = None
    """None: the task says it when it runs."""
    expires: str = ""
    """Empty: never; `+ms` after the due time; or an instant in ms."""
    parameters: Sequence[ParameterSpec] = ()
    limit: bytes = b""
    """Stands for the limit of its messages in their records; empty without one."""


class SendingOptions(JobOptions, kw_only=True):
    """The base class for jobs that make messages."""

    interrupted = "what was sent stays; the same job again sends the rest."

    job: str
    """Names this load. The same job again makes no message twice, also after its messages have
    finished."""
    delay_ms: Milliseconds = 0
    """Messages are due this long after the start of the job."""
    max_per_second: Rate | None = None
    """At most this many messages per second, so that the workers keep up."""
    splits: Splits = 4
    """Parts of each partition that are written side by side. Keep it when you repeat a job."""

    def check(self, params: Params) -> None:
        """Bodies may be written in plain text."""
        super().check(params)
        check_plain("The job", params.encrypted or "ENCRYPTION_KEYS" in params.redis.options)


def check_plain(what: str, encrypted: bool) -> None:
    """Raise Refused for what makes messages in bulk, where bodies have to be encrypted."""
    if encrypted:
        raise Refused(
            f'{what} writes the bodies of messages in plain text, and DELAYQ["ENCRYPTION_KEYS"] is '
            "set. Use enqueue_many() and the replay of the pages or of code: these encrypt."
        )


class ScheduleOptions(SendingOptions):
    """Enqueue a message per row of a file, a table or a query.

    The same job again adds nothing twice.

      python manage.py delayq pipeline schedule --job spring --task shop.tasks.remind
          --source coupons.csv --format csv --key id --due expires_at
    """

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
    rejects: Folder = ""
    """Write refused rows here, with reasons, to JOB.rejects. Without it one refused row refuses
    the job."""

    def check(self, params: Params) -> None:
        """There is one due time."""
        super().check(params)
        if self.due and self.delay_ms:
            raise Refused(
                "--due and --delay contradict each other: a message is due at the time of its row, "
                "or after the delay. Give one of them."
            )


class ReplayOptions(SendingOptions):
    """Enqueue dead letters again, each of them once.

    Use it for very many dead letters; `delayq replay` does the same without Spark.

      python manage.py delayq pipeline replay --job march-7 --where "error_class = 'Timeout'"
    """

    takes = ("lake", "since", "until", "topic", "dry_run")

    tasks: Sequence[TaskSpec] = ()
    """The declared tasks: a dead letter of another task is left alone, and counted."""
    source: Literal["archive", "lake"] = "archive"
    """Where to read the dead letters."""
    where: Condition = ""
    """Condition over the columns of the archive, such as "error_class = 'Timeout' and attempts <
    9"."""
    edits: Edits = {}
    """The argument gets the value of the expression, in SQL over the same columns."""
    reason: str = ""
    """Why the job runs, for the record."""
    by: str = ""
    """Who runs the job, for the record."""

    def needs(self) -> Collection[str]:
        """The lake, unless it reads the archive."""
        return (*super().needs(), "lake") if self.source == "lake" else super().needs()
