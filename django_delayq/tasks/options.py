"""The options of a task and of a call, checked where they are given."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, NamedTuple, TypedDict, cast, get_args
from uuid import UUID

from ..core.conf import DEFAULT_TOPIC, check_name
from ..core.exceptions import InvalidMessage
from ..core.limits import MAX_CONCURRENCY, LimitRule, names_in, rate_problem
from ..core.message import Priority, check_key, parse_id
from ..core.times import Duration, When, duration_ms, instant_ms
from .backoff import Backoff, exponential, ladder
from .key_maker import KeyMaker
from .recurrence import RecurrenceOptions

OnDuplicate = Literal["raise", "keep", "replace", "extend", "earliest"]

#: Values of on_duplicate with which max_wait goes.
DEBOUNCING = ("replace", "extend")
#: Values of on_duplicate with which window goes.
REFUSING = ("raise", "keep")

#: How long a batch gathers that says nothing of it.
LINGER_MS = 50
MOST_LINGER_MS = 60_000
#: Most messages of one call.
MOST_BATCH = 1_000

NOW, NEVER = When.after(0), When()


class SharedOptions(TypedDict, total=False):
    """What both @delayed_task and using() take."""

    topic: str
    """Named channel; names are [A-Za-z0-9_.-], 1 to 64 characters. Default "default"."""
    delay: Duration
    """How long to wait: timedelta or seconds, 0 to ten years. Default 0."""
    ttr: Duration | None
    """Time to run: length of a lease, 1 s to 24 h. A living worker extends it, so this is the time
    until a dead worker is noticed. Default: that of the topic."""
    max_attempts: int | None
    """Failed attempts after which the message is dead, 1 to 1,000. Default: that of the topic."""
    priority: Priority | Literal["high", "normal", "low"]
    """Messages of a higher priority run first. A waiting message gains priority with time. Default
    `"normal"`."""
    expires: Duration | datetime | None
    """The message is not started later than this: a duration after its due time, or an instant.
    Default: never expires."""
    durable: bool
    """Write the message into the database with the caller's transaction, so that it survives the
    loss of Redis. Default False."""
    on_redis_error: Literal["spill", "raise"]
    """What enqueue does when Redis cannot take the message: `"spill"` keeps it in the database,
    `"raise"` raises. Default: `ON_REDIS_ERROR`."""
    on_duplicate: OnDuplicate
    """What enqueue does when a message with this key is live: `"raise"` (the default) raises
    DuplicateMessage, `"keep"` drops the new message, `"replace"` replaces the waiting one. So do
    `"extend"`, at the later of the two due times, and `"earliest"`, at the earlier one."""
    max_wait: Duration | None
    """With `"replace"` or `"extend"`: a replacement is due so long after the first enqueue at the
    latest; 1 s to ten years. Default: no limit."""
    window: Duration | None
    """With `"raise"` or `"keep"`: for so long after an enqueue the key takes no other message, also
    when the first one has ended; 1 s to a year. A cancel frees the key. Default: only while it is
    live."""


class TaskOptions(SharedOptions, RecurrenceOptions, total=False):
    """What @delayed_task takes. These do not travel with a message: the worker reads them from the
    task."""

    key: str | Callable[..., str | None]
    """Makes the key of each message from its arguments: a template such as `"order:{order_id}"`, or
    a function that is called with the arguments and returns the key, or None for none. Default: no
    key."""
    max_runtime: Duration | None
    """How long a run may take, 1 s to 7 days. After it a coroutine is cancelled, an isolated run is
    killed, and the message of a thread runs again elsewhere. Default: `MAX_RUNTIME`."""
    isolate: bool
    """Run in a child process of the worker, which is killed at `max_runtime`, at `memory_limit`,
    and when the message is cancelled. Not for `async def`, nor with `exactly_once`. Default
    False."""
    memory_limit: int | str | None
    """With `isolate`: how much memory the child process may have, in bytes or as `"512MiB"` or
    `"2GiB"`, 64 MiB to 1 TiB. Measured on Linux only. Default: no limit."""
    backoff: Backoff | Sequence[Duration] | Duration
    """Wait between attempts: a function of the number of failures, a list of waits, or one wait.
    Default: exponential()."""
    retry_for: type[Exception] | Sequence[type[Exception]]
    """Exceptions that are worth another attempt. After any other the message is dead at once.
    Default: every Exception."""
    exactly_once: bool
    """Run in a transaction of `DELAYQ["DATABASE"]` that also records the run, so that its writes
    there happen once. Not for `async def`. Default False."""
    result: bool
    """Keep the return value, as JSON of at most `BODY_LIMIT` bytes, for `handle.wait()`: in Redis
    for `RESULT_TTL`, and in the archive. Default False: it is thrown away."""
    rate: str | None
    """How many messages of the task may start: `"10/s"`, `"100/m"` or `"1000/h"`, in all workers
    together; with `limit_by` for each key. Default: no limit."""
    concurrency: int | None
    """How many messages of the task may run at the same time, 1 to 1,000, in all workers together;
    with `limit_by` for each key. Default: no limit."""
    secret: str | Sequence[str]
    """Arguments that nobody may see: names of parameters, or `address.street` for a part of one.
    Pages, logs, errors and the archive show `[redacted]`. Default: none."""
    limit_by: str | None
    """What `rate` and `concurrency` count by: a template of the arguments, as
    `"customer:{customer_id}"`. Tasks of one topic with the same text share the limit. Default: the
    task."""
    too_late: Duration | None
    """A message that no worker has claimed so long after its due time does not run, 1 second to a
    year. It is archived as expired. Default: that of the topic."""


class BatchSize(TypedDict):
    """What makes a task a batch task."""

    batch: int
    """The function gets up to so many due messages in one call, as a `Batch`; 2 to 1,000. Not with
    `isolate`, `rate`, `concurrency` or `limit_by`, nor for recurring tasks. Default: one message a
    call."""


class BatchOptions(BatchSize, TaskOptions, total=False):
    """What @delayed_task takes for a batch task."""

    linger: Duration | None
    """With `batch`: how long the first message of a batch waits for others, 0 to 60 s. Default
    0.05 s."""


class CallOptions(SharedOptions, total=False):
    """What using() takes."""

    due_at: datetime | None
    """When to run: an aware datetime, instead of a delay."""
    key: str | None
    """Business identity inside the topic, 1 to 256 characters. At most one live message has it.
    It replaces the one that the task's own `key` makes; None is no key."""
    id: str | UUID | None
    """Id of an earlier enqueue whose outcome is unknown. Enqueueing it again stores it once."""
    headers: Mapping[str, str]
    """Small strings for people and tracing. The task reads them with current_message()."""
    database: str | None
    """Alias of the database whose transaction the message waits for."""
    after_commit: bool | None
    """False sends at once, whatever the transaction does. Default: `AFTER_COMMIT`."""


_OF_TASK = frozenset(BatchOptions.__annotations__)
_OF_CALL = frozenset(CallOptions.__annotations__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Checked options of a task or of one call. Times are milliseconds."""

    topic: str = DEFAULT_TOPIC
    when: When = NOW
    ttr_ms: int | None = None
    max_runtime_ms: int | None = None
    max_attempts: int | None = None
    backoff: Backoff = field(default_factory=exponential)
    retry_for: tuple[type[BaseException], ...] = (Exception,)
    priority: Priority = Priority.NORMAL
    expires: When = NEVER
    on_duplicate: OnDuplicate = "raise"
    max_wait_ms: int | None = None
    window_ms: int | None = None
    key: str | None = None
    key_maker: KeyMaker | None = None
    id: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    database: str | None = None
    after_commit: bool | None = None
    durable: bool = False
    on_redis_error: Literal["spill", "raise"] | None = None
    exactly_once: bool = False
    result: bool = False
    isolate: bool = False
    memory_limit: int | None = None
    rate: str | None = None
    concurrency: int | None = None
    limit_by: str | None = None
    too_late_ms: int | None = None
    batch: int | None = None
    linger_ms: int | None = None
    secret: tuple[str, ...] = ()
    replay_of: int | None = None
    """Id of the archived message that is replayed. Only a replay sets it."""

    @classmethod
    def declared(cls, options: Mapping[str, Any]) -> Options:
        """What @delayed_task was given, without its recurrence. Raises InvalidMessage and its
        subclasses."""
        key, elsewhere = options.get("key"), {"key", *RecurrenceOptions.__annotations__}
        given = {name: value for name, value in options.items() if name not in elsewhere}
        declared = cls()._with(given, _OF_TASK)
        declared._check_isolation()
        declared._check_batch()
        if declared.limit_by is not None and not declared.rule.holds_back:
            raise InvalidMessage("limit_by says what a limit counts by: give rate or concurrency.")
        return declared if key is None else replace(declared, key_maker=KeyMaker(key))

    def _check_isolation(self) -> None:
        if self.memory_limit is not None and not self.isolate:
            raise InvalidMessage("memory_limit is of a child process: give isolate=True too.")
        if self.isolate and self.exactly_once:
            raise InvalidMessage(
                "isolate does not go with exactly_once: the transaction is one of the worker's "
                "process."
            )

    def _check_batch(self) -> None:
        if self.batch is None:
            if self.linger_ms is not None:
                raise InvalidMessage("linger says how long a batch gathers: give batch too.")
            return
        if self.isolate:
            raise InvalidMessage(
                "batch does not go with isolate: a child process runs one message."
            )
        if self.rule.holds_back or self.limit_by is not None:
            raise InvalidMessage(
                "batch does not go with rate, concurrency or limit_by: these count single "
                "messages. A limit of the topic does (DELAYQ['TOPICS'])."
            )

    @property
    def linger_s(self) -> float:
        """How long a batch gathers, in seconds."""
        return (LINGER_MS if self.linger_ms is None else self.linger_ms) / 1000

    @property
    def rule(self) -> LimitRule:
        """The limits of the task."""
        return LimitRule(self.rate, self.concurrency, self.too_late_ms)

    def changed(self, changes: CallOptions) -> Options:
        """A copy with what using() was given. Raises InvalidMessage and its subclasses."""
        return self._with(changes, _OF_CALL)

    @property
    def mode(self) -> str:
        """on_duplicate, with max_wait or window where that counts. Raises InvalidMessage when the
        delay is longer than max_wait."""
        if self.window_ms is not None and self.on_duplicate in REFUSING:
            return f"{self.on_duplicate}/{self.window_ms}"
        if self.max_wait_ms is None or self.on_duplicate not in DEBOUNCING:
            return self.on_duplicate
        if self.when.is_delay and self.when.ms > self.max_wait_ms:
            raise InvalidMessage("The delay is longer than max_wait. Make one of both fit.")
        return f"{self.on_duplicate}:{self.max_wait_ms}"

    def _with(self, changes: Mapping[str, Any], known: frozenset[str]) -> Options:
        if "delay" in changes and changes.get("due_at") is not None and "due_at" in known:
            raise InvalidMessage("Give delay or due_at, not both.")
        values: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in known:
                raise InvalidMessage(_refusal(name, known))
            if value is not None or name in ("key", "expires"):
                target, check = _CHECKS[name]
                values[target] = check(value)
        if "key" in values:
            values["key_maker"] = None
        options = replace(self, **values)
        if "max_wait_ms" in values and options.on_duplicate not in DEBOUNCING:
            raise InvalidMessage('max_wait goes with on_duplicate="replace" or "extend".')
        if "window_ms" in values and options.on_duplicate not in REFUSING:
            raise InvalidMessage('window goes with on_duplicate="keep" or "raise".')
        return options


#: Names that other queues have for these options.
_ELSEWHERE = {
    "countdown": "delay (a timedelta or seconds)",
    "defer_by": "delay (a timedelta or seconds)",
    "crontab": "cron (a line of five fields), or every (a timedelta)",
    "interval": "every (a timedelta or seconds)",
    "schedule": "cron (a line of five fields), or every (a timedelta)",
    "timezone": "time_zone (a name such as Europe/Berlin)",
    "eta": "due_at (an aware datetime)",
    "run_after": "due_at (an aware datetime)",
    "run_at": "due_at (an aware datetime)",
    "scheduled_for": "due_at (an aware datetime)",
    "queue": "topic",
    "queue_name": "topic",
    "retries": "max_attempts, which counts the first run too (retries=3 is max_attempts=4)",
    "max_retries": "max_attempts, which counts the first run too (max_retries=3 is max_attempts=4)",
    "retry_backoff": "backoff",
    "retry_delay": "backoff",
    "default_retry_delay": "backoff",
    "rate_limit": "rate",
    "max_concurrency": "concurrency",
    "concurrency_key": "limit_by",
    "autoretry_for": "retry_for",
    "timeout": "max_runtime",
    "time_limit": "max_runtime",
    "soft_time_limit": "max_runtime",
    "batch_size": "batch",
    "flush_every": "batch",
    "flush_interval": "linger",
    "max_memory": "memory_limit",
    "visibility_timeout": "ttr",
    "unique_key": "key",
    "task_id": "key, or id",
    "job_id": "key, or id",
}


def _refusal(name: str, known: frozenset[str]) -> str:
    """Why this option cannot be given there, and which one may have been meant."""
    if known is _OF_TASK and name in _OF_CALL:
        return f"{name} is of one message, not of every one: give it to using()."
    if known is _OF_CALL and name in (*_OF_TASK, "name"):
        return (
            f"{name} is of the task, it does not travel with a message: give it to @delayed_task."
        )
    here, there = (
        ("@delayed_task", "using()") if known is _OF_TASK else ("using()", "@delayed_task")
    )
    if name in _ELSEWHERE:
        word = _ELSEWHERE[name]
        where = "" if re.split(r"\W", word)[0] in known else f" of {there}"
        return f"{here} has no option {name!r}: here it is {word}{where}."
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return f"{here} has no option {name!r}. {hint}Its options are: {', '.join(sorted(known))}."


def _whole(name: str, high: int, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        raise InvalidMessage(
            f"{name} must be a whole number from 1 to {high:,}, not {value!r:.80}."
        )
    return value


def _duration(name: str, high_s: int, value: Any) -> int:
    milliseconds = duration_ms(value, name)
    if not 1000 <= milliseconds <= high_s * 1000:
        raise InvalidMessage(f"{name} must be from 1 to {high_s:,} seconds, not {value!r}.")
    return milliseconds


def _batch(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= MOST_BATCH:
        raise InvalidMessage(
            f"batch must be a whole number from 2 to {MOST_BATCH:,}, not {value!r:.80}."
        )
    return value


def _linger(value: Any) -> int:
    milliseconds = duration_ms(value, "linger")
    if not 0 <= milliseconds <= MOST_LINGER_MS:
        raise InvalidMessage(f"linger must be from 0 to 60 seconds, not {value!r:.80}.")
    return milliseconds


def _memory_limit(value: Any) -> int:
    limit = value
    if isinstance(value, str) and (match := re.fullmatch(r"(\d{1,7}) ?(MiB|GiB)", value)):
        limit = int(match[1]) << (20 if match[2] == "MiB" else 30)
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 << 26 <= limit <= 1 << 40:
        raise InvalidMessage(
            'memory_limit is a number of bytes, or text such as "512MiB" or "2GiB", from 64 MiB to '
            f"1 TiB, not {value!r:.80}."
        )
    return limit


def _rate(value: Any) -> str:
    if problem := rate_problem(value):
        raise InvalidMessage(f"rate {problem}")
    return value


def _limit_by(value: Any) -> str:
    try:
        is_template = isinstance(value, str) and all(names_in(value)) and 1 <= len(value) <= 256
    except ValueError:
        is_template = False
    if not is_template:
        raise InvalidMessage(
            'limit_by is a template with the names of arguments, as "customer:{customer_id}", not '
            f"{value!r:.80}."
        )
    return value


def _secret(value: Any) -> tuple[str, ...]:
    paths = (value,) if isinstance(value, str) else value
    if not isinstance(paths, list | tuple) or not all(
        isinstance(path, str) and all(path.split(".")) for path in paths
    ):
        raise InvalidMessage(
            'secret is a list of names of arguments, as ("card", "address.street"), not '
            f"{value!r:.80}."
        )
    return tuple(paths)


def _expires(value: Any) -> When:
    if value is None:
        return NEVER
    if isinstance(value, datetime):
        return When.at(instant_ms(value, "expires"))
    return When.after(duration_ms(value, "expires"))


def _choice(name: str, choices: Sequence[str], value: Any) -> Any:
    if value not in choices:
        *first, last = [f'"{choice}"' for choice in choices]
        raise InvalidMessage(f"{name} is {value!r}: use {', '.join(first)} or {last}.")
    return value


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidMessage(f"{name} is True or False, not {value!r:.80}.")
    return value


def _retry_for(value: Any) -> tuple[type[BaseException], ...]:
    kinds = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise InvalidMessage(f"retry_for is a tuple of exception classes, not {value!r:.80}.")
    return kinds


def _backoff(value: Any) -> Backoff:
    if callable(value):
        return cast(Backoff, value)
    steps = [value] if isinstance(value, timedelta | int | float) else value
    if not isinstance(steps, list | tuple) or not steps:
        raise InvalidMessage(
            f"backoff is {value!r:.80}: use a function of the failure number, seconds, or a list "
            "of seconds."
        )
    for step in steps:
        duration_ms(step, "backoff")
    return ladder(steps)


def check_headers(value: Any) -> dict[str, str]:
    """A copy of the headers. Raises InvalidMessage unless they are a mapping of str to str."""
    if not isinstance(value, Mapping) or not all(
        isinstance(x, str) for pair in value.items() for x in pair
    ):
        raise InvalidMessage("headers is a mapping of str to str.")
    return dict(value)


_CHECKS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "topic": ("topic", lambda value: check_name(value, "a topic")),
    "delay": ("when", lambda value: When.after(duration_ms(value))),
    "due_at": ("when", lambda value: When.at(instant_ms(value))),
    "ttr": ("ttr_ms", partial(_duration, "ttr", 86_400)),
    "max_runtime": ("max_runtime_ms", partial(_duration, "max_runtime", 7 * 86_400)),
    "max_attempts": ("max_attempts", partial(_whole, "max_attempts", 1000)),
    "backoff": ("backoff", _backoff),
    "retry_for": ("retry_for", _retry_for),
    "priority": ("priority", Priority.parse),
    "expires": ("expires", _expires),
    "on_duplicate": (
        "on_duplicate",
        partial(_choice, "on_duplicate", get_args(OnDuplicate)),
    ),
    "max_wait": ("max_wait_ms", partial(_duration, "max_wait", 3650 * 86_400)),
    "window": ("window_ms", partial(_duration, "window", 366 * 86_400)),
    "key": ("key", check_key),
    "id": ("id", parse_id),
    "headers": ("headers", check_headers),
    "database": ("database", str),
    "after_commit": ("after_commit", partial(_boolean, "after_commit")),
    "durable": ("durable", partial(_boolean, "durable")),
    "on_redis_error": ("on_redis_error", partial(_choice, "on_redis_error", ("spill", "raise"))),
    "exactly_once": ("exactly_once", partial(_boolean, "exactly_once")),
    "result": ("result", partial(_boolean, "result")),
    "isolate": ("isolate", partial(_boolean, "isolate")),
    "memory_limit": ("memory_limit", _memory_limit),
    "batch": ("batch", _batch),
    "linger": ("linger_ms", _linger),
    "rate": ("rate", _rate),
    "concurrency": ("concurrency", partial(_whole, "concurrency", MAX_CONCURRENCY)),
    "limit_by": ("limit_by", _limit_by),
    "secret": ("secret", _secret),
    "too_late": ("too_late_ms", partial(_duration, "too_late", 366 * 86_400)),
}


class ChangeOptions(NamedTuple):
    """How a message is cancelled or rescheduled. None: what DELAYQ says."""

    missing_ok: bool = False
    """Return False or None, instead of raising, when nothing waits."""
    after_commit: bool | None = None
    """False acts at once, whatever the open transaction does."""
    database: str | None = None
    """Alias of the transaction to wait for."""
    on_redis_error: str | None = None
    """spill: the outbox keeps what Redis cannot take. raise: it is an error."""
    running: bool = False
    """Of a cancel: end also a message that runs, at once. The other three do not matter then."""
