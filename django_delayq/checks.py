"""System checks. Those that connect run with `check --deploy` and when a worker starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from django.conf import settings as django_settings
from django.core import checks
from django.core.checks import CheckMessage, Error, register
from django.db import DatabaseError, connections
from django.utils.module_loading import import_string

from .core.alert_rules import is_mail, is_url
from .core.conf import Settings, get_settings
from .core.exceptions import ConfigurationError, DelayQError
from .core.limits import names_in
from .operators.recurring import silent_tasks
from .stats.unserved import unserved_topics
from .store import get_store
from .store.connection import caches_beside
from .store.inspection import (
    CLOCK_SKEW,
    OLDEST_VERSION,
    ServerReport,
    inspect_server,
    lua_holes,
    skips_certificate,
)
from .tasks import registry
from .tasks.registry import recurring_tasks

#: The checks by their ids without "delayq.": first those of every `check`, then those that run with
#: `--deploy` and when a worker starts.
ALWAYS = {
    "E001": "`DELAYQ` cannot be read: a name is unknown, or a value has the wrong type or range.",
    "E002": '`DELAYQ["REDIS"]` is missing.',
    "E003": '`DELAYQ["DATABASE"]` is not in `DATABASES`.',
    "E004": '`DELAYQ["REDACT"]` cannot be imported, or is no function.',
    "E005": "A task has a limit, and its topic has several partitions.",
    "E008": "`TASKS` gives the backend `DelayqBackend` a queue or an option that it cannot take.",
    "E009": '`DELAYQ["MIDDLEWARE"]` or `DELAYQ["ENQUEUE_HOOKS"]` names what cannot be imported.',
    "E007": '`DELAYQ["TOPIC_PERMISSION"]` cannot be imported, or is no function.',
    "E030": '`DELAYQ["ALERTS"]` names a function that cannot be imported.',
    "E006": '`DELAYQ["ENCRYPTION_KEYS"]` is set, and the package cryptography is missing.',
    "W004": "The key or the limit of a task is made from an argument that is secret.",
    "W005": "A cache uses the same Redis database: its `clear()` deletes all messages.",
    "W006": '`DELAYQ["DATABASE"]` is not `"default"`: durable messages need transactions there.',
}
WITH_DEPLOY = {
    "W008": "A task has secret arguments, and bodies are not encrypted.",
    "W007": "The project has several databases: know which transaction a message waits for.",
    "E010": "Redis cannot be reached.",
    "E011": "Redis has a memory limit, and evicts keys when it reaches it.",
    "W009": "The certificate of Redis is not checked.",
    "W010": "This version of Redis has known holes in its Lua scripts.",
    "W011": "Redis would evict keys if it had a memory limit.",
    "W012": "Redis writes no append-only file: a restart loses messages.",
    "E013": "The server is too old.",
    "E018": "Redis is a 32-bit program: messages would run at once.",
    "W014": "The clocks of Redis and of this machine differ.",
    "W015": "CONFIG is forbidden: check the eviction policy of Redis yourself.",
    "W016": "Redis has replicas, and `min-replicas-to-write` is 0: a failover loses messages.",
    "W017": "Redis has fewer replicas than `WAIT_REPLICAS`: all messages go to the outbox.",
    "W021": "Messages wait in a topic that no code declares here.",
    "W022": "Messages wait in a topic that is declared and that no worker serves.",
    "W024": "Psycopg works without compiled code, which takes half as much CPU again.",
    "W025": "This MariaDB sorts UUIDs otherwise: a search for a key in all topics misses rows.",
    "W023": "No process that archives writes the messages of a recurring task.",
}


@register("delayq")
def check_settings(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """DELAYQ can be read and names things that exist."""
    try:
        settings = get_settings()
        if settings.redis:
            get_store()
    except ConfigurationError as error:
        return [Error(str(error), id="delayq.E001")]
    found: list[CheckMessage] = []
    if not settings.redis:
        found.append(
            Error(
                'DELAYQ["REDIS"] is missing.',
                hint="Name a CACHES entry of django-redis or a URL: "
                'DELAYQ = {"REDIS": "redis://127.0.0.1:6379/0"}.',
                id="delayq.E002",
            )
        )
    if settings.database not in django_settings.DATABASES:
        found.append(
            Error(
                f'DELAYQ["DATABASE"] is {settings.database!r}, which is not in DATABASES.',
                id="delayq.E003",
            )
        )
    found += _wrong_paths(settings)
    if names := caches_beside(settings):
        found.append(
            checks.Warning(
                f"cache.clear() of CACHES {', '.join(map(repr, names))} is FLUSHDB on DELAYQ's "
                "database: it deletes all messages that wait.",
                hint="Give DELAYQ a Redis of its own, or at least another database number: "
                'DELAYQ = {"REDIS": "redis://127.0.0.1:6379/1"}.',
                id="delayq.W005",
            )
        )
    return found


@register("delayq")
def check_database(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """The outbox is where transactions are."""
    if check_settings() or get_settings().database == "default":
        return []
    name = get_settings().database
    return [
        checks.Warning(
            f'DELAYQ["DATABASE"] is {name!r}: a durable message cannot be enqueued in a '
            "transaction of another alias.",
            hint=f"Open those transactions with transaction.atomic(using={name!r}), or silence "
            "this check.",
            id="delayq.W006",
        )
    ]


@register("delayq")
def check_limits(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """A limit counts in one partition: those of a topic may lie on different servers."""
    if any(message.is_serious() for message in check_settings()):
        return []
    found: list[CheckMessage] = []
    for task in registry.by_name.values():
        topic = get_settings().topics.get(task.options.topic)
        if topic is not None and topic.partitions > 1 and task.options.rule.holds_back:
            message = (
                f"{task.name} has a limit, and its topic {task.options.topic!r} has "
                f"{topic.partitions} partitions."
            )
            hint = "Give the task a topic of its own, with one partition."
            found.append(Error(message, hint=hint, id="delayq.E005"))
    return found


@register("delayq")
def check_secrets(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Secrets are hidden wherever messages are shown, and bodies can be encrypted."""
    if any(message.is_serious() for message in check_settings()):
        return []
    found: list[CheckMessage] = []
    if get_settings().encryption_keys and find_spec("cryptography") is None:
        found.append(
            Error(
                'DELAYQ["ENCRYPTION_KEYS"] is set, and the package cryptography is missing.',
                hint="pip install django-delayq[encryption]",
                id="delayq.E006",
            )
        )
    for task in registry.by_name.values():
        declared = task.definition.options
        secret = {path.split(".")[0] for path in declared.secret}
        maker = declared.key_maker
        templates = {
            "key": maker.source if maker is not None and isinstance(maker.source, str) else "",
            "limit_by": declared.limit_by or "",
        }
        for option, template in templates.items():
            if hidden := sorted(secret & {*names_in(template)}):
                found.append(
                    checks.Warning(
                        f"{task.name} has the secret argument {', '.join(hidden)}, and its "
                        f"{option} {template!r} is made from it: keys are shown, logged and not "
                        "encrypted in the database.",
                        hint="Make it from an argument that may be seen, such as a primary key.",
                        id="delayq.W004",
                    )
                )
    return found


@register("delayq", deploy=True)
def check_encryption(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Secret arguments do not lie in Redis in plain text."""
    if any(message.is_serious() for message in check_settings()):
        return []
    if get_settings().encryption_keys:
        return []
    names = sorted(name for name, task in registry.by_name.items() if task.options.secret)
    if not names:
        return []
    return [
        checks.Warning(
            f"{', '.join(names[:5])}{' and others have' if len(names) > 5 else ': has'} secret "
            "arguments, which are hidden from people, and lie in Redis and in the outbox in plain "
            "text.",
            hint='DELAYQ["ENCRYPTION_KEYS"] encrypts them. Or send a primary key instead.',
            id="delayq.W008",
        )
    ]


@register("delayq", deploy=True)
def check_aliases(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """A project with several databases has to know which transaction a message waits for."""
    if check_settings() or len(django_settings.DATABASES) < 2:
        return []
    name = get_settings().database
    return [
        checks.Warning(
            f"There are {len(django_settings.DATABASES)} databases. A message waits for the "
            'transaction that is open; if several are, for that of DELAYQ["DATABASE"], '
            f"{name!r}. Durable messages need it to be that one.",
            hint="using(database=...) names another one. Silence this check when that is what you "
            "want (docs/explanation/durability.md).",
            id="delayq.W007",
        )
    ]


#: The settings that name functions, by the id of their check.
_PATHS_OF = {
    "delayq.E004": ("redact",),
    "delayq.E007": ("topic_permission",),
    "delayq.E009": ("middleware", "enqueue_hooks"),
}
_PATHS = [(name, check) for check, names in _PATHS_OF.items() for name in names]


def _wrong_paths(settings: Settings) -> Iterator[CheckMessage]:
    """The settings that name functions which are not there."""
    for name, check in _PATHS:
        given = getattr(settings, name)
        is_alone, paths = isinstance(given, str), [given] if isinstance(given, str) else given
        for path in filter(None, paths):
            if problem := _import_problem(path):
                message = (
                    f'DELAYQ["{name.upper()}"] {"is" if is_alone else "has"} {path!r}: {problem}.'
                )
                yield Error(message, id=check)
    for rule in settings.alerts:
        for target in rule.to:
            is_path = not is_mail(target) and not is_url(target)
            if is_path and (problem := _import_problem(target)):
                message = f'DELAYQ["ALERTS"]: {rule.name!r} has {target!r}: {problem}.'
                yield Error(message, id="delayq.E030")


def _import_problem(path: str) -> str:
    try:
        return "" if callable(import_string(path)) else "not a function"
    except ImportError as error:
        return f"it cannot be imported ({error})"


@register("delayq", deploy=True)
def check_server(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Redis keeps what it is given."""
    if any(message.is_serious() for message in check_settings()):
        return []
    found: list[CheckMessage] = []
    if skips_certificate(get_store().client.redis):
        found.append(
            checks.Warning(
                "The certificate of Redis is not checked (ssl_cert_reqs): anybody on the way "
                "to it can read and change all messages.",
                hint="Take ssl_cert_reqs away from the URL, and name the certificate of your own "
                "authority: rediss://host:6380/0?ssl_ca_certs=/etc/redis/ca.pem.",
                id="delayq.W009",
            )
        )
    try:
        reports = inspect_server(get_store())
        found += check_reports(reports, get_settings().wait_replicas)
        found += check_lua_engine(reports)
        for unserved in unserved_topics(get_store()):
            message, topic = f"Topic {unserved}.", unserved.stats.topic
            if unserved.declared:
                hint = f"Start a worker for it: manage.py run_delayq --topics {topic}."
                found.append(checks.Warning(message, hint=hint, id="delayq.W022"))
            else:
                hint = (
                    "Import the module of its tasks where every process does (AppConfig.ready), or "
                    f"move its messages: manage.py delayq move {topic} --to another-topic."
                )
                found.append(checks.Warning(message, hint=hint, id="delayq.W021"))
    except DelayQError as error:
        found.append(Error(str(error), id="delayq.E010"))
    return found


@register("delayq", deploy=True)
def check_driver(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """PostgreSQL is reached by compiled code."""
    if not any(connections[alias].vendor == "postgresql" for alias in connections):
        return []
    try:
        from psycopg import pq
    except ImportError:  # psycopg2 is compiled
        return []
    if pq.__impl__ != "python":
        return []
    return [
        checks.Warning(
            "Psycopg works in Python here: a task with one UPDATE takes 1.5 times the CPU.",
            hint="pip install 'psycopg[binary]', or 'psycopg[c]' where a compiler and libpq are.",
            id="delayq.W024",
        )
    ]


#: MariaDB sorts UUIDs by their last bytes in these series, before this patch (MDEV-29959).
_SORTS_FROM = {(10, 7): 99, (10, 8): 99, (10, 9): 8, (10, 10): 6, (10, 11): 5, (11, 0): 3}


@register("delayq", deploy=True)
def check_order_of_ids(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """The database sorts ids by their first bytes, which a key has in all topics."""
    try:
        connection: Any = connections[get_settings().database]
        if connection.vendor != "mysql" or not connection.mysql_is_mariadb:
            return []
        version = connection.mysql_version
    except (DelayQError, DatabaseError):  # other checks tell
        return []
    if version[2] >= _SORTS_FROM.get(version[:2], 0):
        return []
    return [
        checks.Warning(
            f"MariaDB {'.'.join(map(str, version))} sorts UUIDs by their last bytes: a search for "
            "a key in all topics misses messages of the archive and the outbox.",
            hint="Update MariaDB to the last patch of its series (MDEV-29959).",
            id="delayq.W025",
        )
    ]


@register("delayq", deploy=True)
def check_recurring(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Somebody writes the messages of recurring tasks."""
    if any(message.is_serious() for message in check_settings()) or not recurring_tasks():
        return []
    try:
        silent = silent_tasks()
    except DatabaseError:  # away, or not migrated: others report that
        return []
    hint = "Start a worker with this code, without --no-archiver, or run_delayq --archiver."
    return [
        checks.Warning(f"Nobody enqueues the recurring task {name}.", hint=hint, id="delayq.W023")
        for name in silent
    ]


def check_lua_engine(reports: Sequence[ServerReport]) -> list[CheckMessage]:
    """Versions whose Lua engine has known holes. Not asked at the start of each worker: the number
    alone does not tell whether a distribution has mended it."""
    return [
        checks.Warning(
            f"{report.name} has known holes in its Lua engine (CVE-2025-49844 and others); {holes} "
            "has not.",
            hint="Update Redis. A distribution may have mended its older version without a new "
            "number: look at its changelog, and silence this check (delayq.W010) if it has.",
            id="delayq.W010",
        )
        for report in reports
        if (holes := lua_holes(report))
    ]


def check_reports(reports: Sequence[ServerReport], wait_replicas: int = 0) -> list[CheckMessage]:
    """The findings in the reports of the servers."""
    found = [finding for report in reports for finding in (*_memory(report), *_safety(report))]
    fewest = min((report.replicas for report in reports), default=0)
    if fewest < wait_replicas:
        found.append(
            checks.Warning(
                f'DELAYQ["WAIT_REPLICAS"] is {wait_replicas}, and Redis has {fewest}: all '
                "messages go to the outbox.",
                hint="Wait for no more replicas than there are while one of them restarts.",
                id="delayq.W017",
            )
        )
    return found


def _memory(report: ServerReport) -> list[CheckMessage]:
    if report.eviction is None:
        return [
            checks.Warning(
                "Redis does not tell its maxmemory-policy (CONFIG is forbidden): make sure that "
                "it is noeviction.",
                id="delayq.W015",
            )
        ]
    if report.eviction == "noeviction":
        return []
    message = (
        f"Redis' maxmemory-policy is {report.eviction}: it deletes messages when its memory is "
        f"full."
    )
    hint = "CONFIG SET maxmemory-policy noeviction, and in redis.conf."
    if report.maxmemory:
        return [Error(message, hint=hint, id="delayq.E011")]
    return [checks.Warning(message, hint=hint, id="delayq.W011")]


def _safety(report: ServerReport) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if not report.aof:
        found.append(
            checks.Warning(
                "Redis does not write an append-only file: a restart loses the messages since the "
                "last snapshot.",
                hint="CONFIG SET appendonly yes, and in redis.conf.",
                id="delayq.W012",
            )
        )
    if report.version < OLDEST_VERSION:
        oldest = ".".join(str(part) for part in OLDEST_VERSION)
        found.append(
            Error(f"{report.name} is too old: {oldest} or newer is needed.", id="delayq.E013")
        )
    if report.bits < 64:
        found.append(
            Error(
                f"{report.name} is a 32-bit program. Times do not fit into its numbers: every "
                "message would be due at once.",
                hint="Run a 64-bit Redis. A snapshot of the other one can be read by it.",
                id="delayq.E018",
            )
        )
    if abs(report.skew_ms) > CLOCK_SKEW * 1000:
        found.append(
            checks.Warning(
                f"Redis' clock and this machine's differ by {report.skew_ms / 1000:.1f} s; Redis' "
                "clock decides.",
                hint="Run NTP on both.",
                id="delayq.W014",
            )
        )
    if report.min_replicas == 0 and (report.replicas or report.sentinel):
        found.append(
            checks.Warning(
                "Redis has replicas, and its min-replicas-to-write is 0: a primary that is cut off "
                "takes messages, and they are lost when a replica has taken over.",
                hint="CONFIG SET min-replicas-to-write 1 and min-replicas-max-lag 10, and in "
                "redis.conf of every node.",
                id="delayq.W016",
            )
        )
    return found
