"""The DELAYQ setting: one dict in, one frozen dataclass out."""

from __future__ import annotations

import base64
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.dispatch import receiver

from .alert_rules import AlertRule, checked_alerts, is_url
from .exceptions import ConfigurationError, InvalidDelay, InvalidName
from .limits import LimitRule, rate_problem
from .times import duration_ms
from .topic_patterns import check_patterns, is_matched

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
DEFAULT_TOPIC = "default"
#: Entries that stand before those of the settings file. Only the test kit writes here.
overrides: dict[str, Any] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicSettings:
    """One entry of DELAYQ["TOPICS"]. None means the value of DELAYQ."""

    partitions: int = 1
    """Number of partitions; each lies in one cluster slot. You may raise it while workers run, and
    never lower it."""
    weight: int = 1
    """Share of the claims while several topics are due."""
    ttr: float | None = None
    """Length of a lease for tasks of this topic that name none. Default: `TTR`."""
    max_attempts: int | None = None
    """Failed attempts for tasks of this topic that name none. Default: `MAX_ATTEMPTS`."""
    archive: str | None = None
    """Which ended messages of this topic become rows of the archive. Default: `ARCHIVE`."""
    rate: str | None = None
    """How many messages of this topic may start: `"10/s"`, `"100/m"` or `"1000/h"`. It holds for
    all workers together, and needs a topic with one partition. Default: no limit."""
    concurrency: int | None = None
    """How many messages of this topic may run at the same time, in all workers together. It needs a
    topic with one partition. Default: no limit."""
    release_rate: str | None = None
    """How many of the messages that are more than 5 s late may start: those that have piled up
    while Redis, the workers or the topic stood still. It needs a topic with one partition. Default:
    no limit."""
    too_late: float | None = None
    """A message that no worker has claimed so long after its due time does not run. It is archived
    as expired. Default: none is too late."""

    @property
    def rule(self) -> LimitRule:
        """The limits of the topic itself."""
        too_late_ms = None if self.too_late is None else int(self.too_late * 1000)
        return LimitRule(self.rate, self.concurrency, too_late_ms)

    @property
    def holds_back(self) -> bool:
        """Whether due messages may have to wait."""
        return self.rule.holds_back or self.release_rate is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The entries of DELAYQ; upper-case in the settings file. Durations are seconds or
    timedelta.

    An entry that may hold a secret is left out of the repr, and of the parameters of a job.
    """

    redis: str = field(default="", repr=False)
    """Required. A URL (`redis://`, `rediss://`, `unix://`, `redis+sentinel://`, `redis+cluster://`),
    or a `CACHES` alias of django-redis."""
    redis_next: str = field(default="", repr=False)
    """URL of the Redis to which `delayq move-store` is to move the store. Processes change over by
    themselves."""
    prefix: str = "delayq"
    """First part of every Redis key. Give each project that shares a Redis its own."""
    topics: Mapping[str, TopicSettings] = field(default_factory=dict)
    """Options by name of the topic. A topic without options needs no entry."""
    database: str = "default"
    """Alias of the database with the archive and the outbox. When several transactions are open, a
    message waits for the one of this database."""
    after_commit: bool = True
    """Enqueue, cancel and reschedule take effect when the surrounding transaction commits; with
    `False` at once."""
    ttr: float = 60.0
    """Length of a lease. A living worker extends it, so this is the time until a dead worker is
    noticed."""
    max_runtime: float = 3600.0
    """How long a task may run. After this time its lease is not extended any more, and another
    worker runs the message again."""
    max_attempts: int = 5
    """Failed attempts after which a message is dead."""
    poison_limit: int = 3
    """Crashes (leases that ended without an answer of the worker) after which a message is dead."""
    unknown_task_grace: float = 600.0
    """How long a message that a worker's code cannot run waits for a worker that can. This is what
    makes rolling deploys safe."""
    body_limit: int = 64 * 1024
    """Largest size of the arguments of a message, and of a result, in bytes of JSON."""
    compress_above: int = 1024
    """Arguments of more bytes than this are compressed, when that makes them smaller."""
    archive: str = "all"
    """Which ended messages become rows of the archive; `"dead"` means dead letters only."""
    redact: str = ""
    """Dotted path of a function `redact(topic, task, args, kwargs)`. It returns `(args, kwargs)` as
    people may see them, and the archive may keep them. For a result it is called with `args=[]` and
    `kwargs={"result": value}`."""
    encryption_keys: Sequence[str] = field(default=(), repr=False)
    """Keys that encrypt the bodies of messages: 32 random bytes each, in base64 as
    `secrets.token_urlsafe(32)` writes them. The first one encrypts, all of them decrypt. Default:
    bodies are not encrypted."""
    result_ttl: float = 3600.0
    """How long Redis keeps the result of a task with `result=True`. The archive keeps it longer."""
    archive_retention: Mapping[str, float] = field(default_factory=dict)
    """How long the archive keeps rows, by state. Without an entry they stay until somebody prunes
    them."""
    middleware: Sequence[str] = ()
    """Dotted paths of the middleware around each run of a task, the outermost first."""
    enqueue_hooks: Sequence[str] = ()
    """Dotted paths of functions `hook(topic, task)`. Each returns headers for a new message."""
    finished_limit: int = 200_000
    """How many ended messages of a partition may wait for the archiver. With more of them, workers
    claim nothing there."""
    horizon: float = 3600.0
    """How long before its due time the relay sends a durable message to Redis."""
    on_redis_error: str = "spill"
    """What happens when Redis cannot take a message, a cancel or a new due time: `"spill"` keeps it
    in the outbox, `"raise"` raises."""
    wait_replicas: int = 0
    """How many replicas must have a message before `enqueue` returns. With fewer of them the outbox
    keeps it as well."""
    reconcile_after: float = 10.0
    """How long after sending a durable message the reconciler first checks that Redis still has
    it."""
    metrics: bool = False
    """Workers count runs, and answer `/metrics` on their health port, in the format of
    Prometheus."""
    metrics_max_topics: int = 200
    """How many topics metrics name, and how many pairs of topic and task. All others count as
    `other`."""
    metrics_token: str = field(default="", repr=False)
    """The view of the metrics answers who sends this as bearer token. Without a token it answers
    users who may see the overview."""
    event_stream: int = 0
    """What happens to messages is written to a Redis stream, of which about so many entries are
    kept. 0: nothing is written."""
    alerts: Sequence[AlertRule] = field(default=(), repr=False)
    """The rules of alerts: a list of dicts."""
    alert_secret: str = field(default="", repr=False)
    """Signs the alerts that go to URLs, which need it."""
    priority_ageing: float = 60.0
    """How long a message has to wait to gain one step of priority, so that a low one never
    starves."""
    sweep_interval: float = 1.0
    """How often a worker checks an idle partition. A hint usually wakes it earlier; without hints
    this is the longest delay."""
    topic_permission: str = ""
    """Dotted path of a function `(user, topic, action) -> bool`. The operators' pages ask it which
    topics a user may see and change."""
    api_topics: Sequence[str] = ()
    """Names of topics that are consumed over HTTP; `*` matches any characters. They need neither
    a task nor an entry of `TOPICS`, and no worker serves them."""
    connect_timeout: float = 2.0
    """How long to wait for a connection to Redis."""
    socket_timeout: float = 5.0
    """How long to wait for an answer of Redis."""

    def is_for_api(self, topic: str) -> bool:
        """Whether messages of the topic are consumed over HTTP, so that no worker serves it."""
        return bool(self.api_topics) and is_matched(tuple(self.api_topics), topic)

    def archive_of(self, topic: str) -> str:
        """Which finished messages of the topic are archived: all, dead or none."""
        options = self.topics.get(topic)
        return (options.archive if options else None) or self.archive


_RANGES: dict[str, tuple[float, float]] = {
    "ttr": (1, 86_400),
    "max_runtime": (1, 7 * 86_400),
    "max_attempts": (1, 1000),
    "poison_limit": (1, 100),
    "unknown_task_grace": (0, 7 * 86_400),
    "body_limit": (1, 1024 * 1024),
    "compress_above": (0, 1024 * 1024),
    "result_ttl": (1, 30 * 86_400),
    "finished_limit": (500, 100_000_000),
    "horizon": (60, 10 * 366 * 86_400),
    "wait_replicas": (0, 10),
    "reconcile_after": (1, 86_400),
    "metrics_max_topics": (1, 10_000),
    "event_stream": (0, 10_000_000),
    "priority_ageing": (0, 86_400),
    "sweep_interval": (0.05, 60),
    "connect_timeout": (0.05, 60),
    "socket_timeout": (0.05, 600),
    "partitions": (1, 256),
    "weight": (1, 100),
    "concurrency": (1, 100_000),
    "too_late": (1, 366 * 86_400),
}
_TYPES: dict[str, type] = {
    "redis": str,
    "redis_next": str,
    "prefix": str,
    "database": str,
    "after_commit": bool,
    "redact": str,
    "topic_permission": str,
    "metrics": bool,
    "metrics_token": str,
    "alert_secret": str,
}
_CHOICES = {"archive": ("all", "dead", "none"), "on_redis_error": ("spill", "raise")}
_DURATIONS = {
    "ttr", "max_runtime", "unknown_task_grace", "priority_ageing", "sweep_interval",
    "connect_timeout", "socket_timeout", "horizon", "reconcile_after", "result_ttl", "too_late",
}  # fmt: skip


#: Schemes of the servers to which a store can move.
_MOVABLE = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")


def _checked_paths(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(path, str) for path in value):
        raise ConfigurationError(f"{where} must be a list of dotted paths, not {value!r}.")
    return tuple(value)


#: The states that rows of the archive have.
RETAINED_STATES = ("acked", "dead", "cancelled", "expired")


def _checked_retention(value: Any, where: str) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{where} must be a dict of state -> duration, not {value!r}.")
    seconds: dict[str, float] = {}
    for state, age in value.items():
        if state not in RETAINED_STATES:
            raise ConfigurationError(
                f"{where} has no state {state!r}: use one of {', '.join(RETAINED_STATES)}."
            )
        try:
            seconds[state] = duration_ms(age, f'{where}["{state}"]') / 1000
        except InvalidDelay as error:
            raise ConfigurationError(str(error)) from None
        if seconds[state] < 3600:
            raise ConfigurationError(f'{where}["{state}"] must be at least 1 hour, not {age!r}.')
    return seconds


def _checked_keys(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigurationError(f"{where} must be a list of keys, not {type(value).__name__}.")
    for number, key in enumerate(value):
        try:
            size = len(base64.b64decode(key + "=" * (-len(key) % 4), altchars="-_", validate=True))
        except (TypeError, ValueError):
            size = 0
        if size != 32:  # the key itself is a secret: it does not stand in the error
            raise ConfigurationError(
                f"{where}[{number}] must be 32 bytes in base64. Make one: "
                'python -c "import secrets; print(secrets.token_urlsafe(32))".'
            )
    return tuple(value)


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "encryption_keys": _checked_keys,
    "alerts": checked_alerts,
    "archive_retention": _checked_retention,
    "api_topics": partial(check_patterns, error=ConfigurationError),
    "middleware": _checked_paths,
    "enqueue_hooks": _checked_paths,
}


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """DELAYQ of the Django settings, checked. Raises ConfigurationError."""
    raw = getattr(django_settings, "DELAYQ", {})
    return parse_settings({**raw, **overrides} if overrides else raw)


def parse_settings(raw: Any) -> Settings:
    """Build Settings from the dict of a settings file. Raises ConfigurationError that names the
    entry."""
    if not isinstance(raw, Mapping):
        raise ConfigurationError(f"DELAYQ must be a dict, not {type(raw).__name__}.")
    values = _checked(
        Settings, {str(name).lower(): value for name, value in raw.items()}, "DELAYQ", str.upper
    )
    topics = values.get("topics", {})
    if not isinstance(topics, Mapping):
        raise ConfigurationError(
            'DELAYQ["TOPICS"] must be a dict of topic name -> dict of options.'
        )
    values["topics"] = {}
    for name, options in topics.items():
        where = f'DELAYQ["TOPICS"]["{name}"]'
        if not isinstance(options, Mapping):
            raise ConfigurationError(
                f"{where} must be a dict of options, not {type(options).__name__}."
            )
        check_name(name, "a topic", ConfigurationError)
        topic = TopicSettings(**_checked(TopicSettings, dict(options), where, str))
        _check_limits(topic, where)
        values["topics"][name] = topic
    if "{" in str(values.get("prefix", "")) or not NAME.match(str(values.get("prefix", "delayq"))):
        raise ConfigurationError(
            f'DELAYQ["PREFIX"] is {values["prefix"]!r}. {InvalidName.meaning()}'
        )
    for rule in values.get("alerts", ()):
        if not values.get("alert_secret") and any(map(is_url, rule.to)):
            raise ConfigurationError(
                f'DELAYQ["ALERTS"] tells a URL of {rule.name!r}, and DELAYQ["ALERT_SECRET"] is '
                "missing: it signs what is sent there."
            )
    _check_next(values)
    return Settings(**values)


def _check_next(values: Mapping[str, Any]) -> None:
    where = values.get("redis_next", "")
    if not where:
        return
    if where.partition("://")[0] not in _MOVABLE:
        raise ConfigurationError(
            'DELAYQ["REDIS_NEXT"] must be the URL of a single server or of one behind Sentinel: '
            f"{', '.join(_MOVABLE)}."
        )
    if values.get("redis", "").partition("://")[0].endswith("+cluster"):
        raise ConfigurationError(
            'DELAYQ["REDIS"] is a cluster, and a cluster cannot be moved: remove '
            'DELAYQ["REDIS_NEXT"].'
        )


def _check_limits(topic: TopicSettings, where: str) -> None:
    for name, rate in (("rate", topic.rate), ("release_rate", topic.release_rate)):
        if rate is not None and (problem := rate_problem(rate)):
            raise ConfigurationError(f'{where}["{name}"] {problem}')
    if topic.holds_back and topic.partitions > 1:
        raise ConfigurationError(
            f"{where} has a limit and {topic.partitions} partitions. The partitions of a topic may "
            "lie on different servers, and nothing counts for all of them: a topic with a limit "
            "has one partition."
        )


def _checked(
    cls: type[Settings] | type[TopicSettings],
    raw: dict[str, Any],
    where: str,
    spelling: Callable[[str], str],
) -> dict[str, Any]:
    known = {f.name: f for f in fields(cls)}
    for name, value in raw.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {spelling(near[0])}?" if near else ""
            raise ConfigurationError(f"{where} has no option {spelling(name)}.{hint}")
        # None is a value only where it is the default.
        if value is not None or known[name].default is not None:
            check: Callable[[Any, str], Any] = _CHECKS.get(name, partial(_checked_value, name))
            raw[name] = check(value, f'{where}["{spelling(name)}"]')
    return raw


def _checked_value(name: str, value: Any, where: str) -> Any:
    if name in _TYPES and not isinstance(value, _TYPES[name]):
        raise ConfigurationError(f"{where} must be a {_TYPES[name].__name__}, not {value!r}.")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ConfigurationError(f"{where} is {value!r}: use one of {', '.join(_CHOICES[name])}.")
    if name not in _RANGES:
        return value
    low, high = _RANGES[name]
    if name in _DURATIONS:
        try:
            value = duration_ms(value, where) / 1000
        except InvalidDelay as error:
            raise ConfigurationError(str(error)) from None
    elif isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{where} must be a whole number, not {value!r}.")
    if not low <= value <= high:
        raise ConfigurationError(f"{where} must be from {low:g} to {high:g}, not {value!r}.")
    return value


def check_name(name: Any, what: str, error: type[Exception] = InvalidName) -> str:
    """The name itself. Raises `error` when it may not be part of a Redis key."""
    if not isinstance(name, str) or not NAME.match(name):
        raise error(f"{name!r} cannot name {what}. {InvalidName.meaning()}")
    return name


@receiver(setting_changed)
def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "DELAYQ":
        get_settings.cache_clear()
