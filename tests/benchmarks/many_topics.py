"""Server time and queries of every page beside 10,000 topics, a million waiting messages and two
million rows of the archive: `python -m tests.benchmarks.many_topics [--scale 0.01] [--runs N]`.

On PostgreSQL and on MariaDB. A page is measured as it is when somebody looks at it again: the
figures of all topics are read aside, once in a while. `cold` is the first look of a process. The
servers are filled once, and a process of its own measures; with `--keep` they stay until Enter is
pressed, and the command that is printed measures them again.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from tests import databases
from tests.benchmarks import common, on_database, seed
from tests.benchmarks.common import median
from tests.benchmarks.pages import MOST_MS, MOST_QUERIES, log_in

TOPICS, WAITING, ROWS, OUTBOX, RUNS = 10_000, 1_000_000, 2_000_000, 20_000, 7
#: Of the figures of each topic.
HOURS, DAYS = 24, 30
#: Rows that are made one by one. The others are their copies, made by the database.
ORIGINALS = 100_000
ROOT = "/admin/django_delayq/dashboard/"
#: Most of the page of all topics.
MOST_KB = 100.0
#: Says that the servers are filled.
MEASURE = "--measure"


def main(arguments: list[str]) -> None:
    """--explain prints the plans of the statements that the first look makes."""
    own = on_database.arguments_of("many_topics", ("postgresql", "mariadb"), arguments)
    if own is None:
        return
    rest = [one for one in own if one not in ("--explain", "--keep", MEASURE)]
    options = common.options(rest, RUNS)
    topics = [f"shop.t{number:05}" for number in range(options.scaled(TOPICS, 50))]
    seed.set_up()
    if MEASURE in own:
        with _used(os.environ["DELAYQ_BENCH_REDIS"], topics):
            measure(options, topics, "--explain" in own)
        return
    with common.bench_server() as server:
        with _used(server.url, topics):
            fill(options, topics)
        variables = {"DELAYQ_BENCH_REDIS": server.url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        again = [sys.executable, "-m", __spec__.name, on_database.ONE, MEASURE]
        again += [one for one in own if one != "--keep"]
        kept = "--keep" in own
        subprocess.run(again, env={**os.environ, **variables}, check=not kept)
        if kept:
            variables[databases.VARIABLE] = os.environ[databases.VARIABLE]
            said = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
            print(*said, shlex.join(again), flush=True)
            input("Enter ends the servers.")


def fill(options: common.Options, topics: list[str]) -> None:
    """One database and one Redis."""
    begun = time.monotonic()
    waiting = _enqueue(topics, options.scaled(WAITING, 5_000))
    rows = _fill(topics, options.scaled(ROWS, 4_000))
    _postpone(topics[0], options.scaled(OUTBOX, 500))
    _count(topics)
    took = time.monotonic() - begun
    print(f"  {waiting:,} messages, {rows:,} rows: filled in {took:.0f} s", flush=True)


def measure(options: common.Options, topics: list[str], explain: bool) -> None:
    """What was filled."""
    from django.test.utils import teardown_test_environment

    client = log_in()
    teardown_test_environment()  # the context of each template is not to be copied
    cold = _cold(client, explain)
    results = {
        name: _page(client, name, address, options.runs) for name, address in _addresses(topics)
    }
    slowest = max(results, key=lambda name: results[name].ms)
    common.report(
        "many_topics", results[slowest].ms, "ms",
        case=databases.kind_of(json.loads(os.environ[databases.VARIABLE])), slowest=slowest,
        bar_ms=MOST_MS, queries=max(one.queries for one in results.values()),
        bar_queries=MOST_QUERIES, overview_ms=results["overview"].ms,
        overview_kb=max(one.kb for name, one in results.items() if name.startswith("overview")),
        bar_kb=MOST_KB,
        cold_ms=cold, topics=len(topics), pages=len(results),
    )  # fmt: skip


def _used(url: str, topics: list[str]) -> Any:
    """With this server and these topics."""
    from django.conf import settings
    from django.test.utils import override_settings

    changed = {**settings.DELAYQ, "REDIS": url, "TOPICS": {topic: {} for topic in topics}}
    return override_settings(DELAYQ=changed, ALLOWED_HOSTS=["testserver"])


# What there is


def _enqueue(topics: list[str], count: int) -> int:
    """Spread over a day, in all topics."""
    from tests.app.tasks import record

    each = count // len(topics)
    for number, topic in enumerate(topics):
        later = record.using(topic=topic, delay=(number * 8_641) % 86_400 + 60)
        later.enqueue_many([(n,) for n in range(each)])
    return each * len(topics)


def _postpone(topic: str, count: int) -> None:
    """Durable messages that only the outbox has."""
    from tests.app.tasks import record

    for begin in range(0, count, 5_000):
        days = timedelta(days=2 + begin // 5_000)
        later = record.using(topic=topic, delay=days, durable=True)
        later.enqueue_many([(n,) for n in range(begin, min(count, begin + 5_000))])


def _fill(topics: list[str], count: int) -> int:
    """Rows of all topics over thirty days, the oldest first: so many copies of the originals, each
    with ids of its own and a part of the days."""
    from django.db import connections

    from django_delayq.archive.archive_rows import COLUMNS
    from django_delayq.core.conf import get_settings
    from django_delayq.models import ArchivedMessage

    connection = connections[get_settings().database]
    quote = connection.ops.quote_name
    table, kept = quote(ArchivedMessage._meta.db_table), quote("bench_originals")
    originals = min(ORIGINALS, count)
    copies = max(1, count // originals)
    seed.fill(originals)
    step = seed.PERIOD.total_seconds() / originals
    is_postgresql = connection.vendor == "postgresql"
    # Rows are numbered, so that each copy gets every copies-th instant: ids grow with time.
    number, topic = quote("bench_number"), quote("topic")
    shifts = {
        name: _shift(is_postgresql, quote(name))
        for name in ("enqueued_at", "due_at", "started_at", "finished_at")
    }
    values = {
        **{name: quote(name) for name in COLUMNS},
        **shifts,
        "message_id": "gen_random_uuid()" if is_postgresql else _mariadb_uuid(connection),
        "topic": f"CASE WHEN {number} %% 10 < 3 THEN {topic} ELSE "
        + (f"'shop.t' || lpad(({number} %% {len(topics)})::text, 5, '0')" if is_postgresql
           else f"CONCAT('shop.t', LPAD({number} %% {len(topics)}, 5, '0'))")
        + " END",
    }  # fmt: skip
    names = ", ".join(quote(name) for name in COLUMNS)
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE {kept} AS SELECT {names}, replayed_at, replayed_by, discarded_at, "
            f"ROW_NUMBER() OVER (ORDER BY id) AS {number} FROM {table}"
        )
        cursor.execute(f"DELETE FROM {table}")
        for copy in range(copies):
            # Each copy has its share of the thirty days: its rows lie as close as all together.
            begin = seed.PERIOD.total_seconds() * (copies - 1 - copy) / copies
            squeeze = step * (copies - 1) / copies
            cursor.execute(
                f"INSERT INTO {table} ({names}, replayed_at, replayed_by, discarded_at) "
                f"SELECT {', '.join(values[name] for name in COLUMNS)}, replayed_at, "
                f"replayed_by, discarded_at FROM {kept} ORDER BY {number}",
                [value for _ in shifts for value in (begin, originals, squeeze)],
            )
        cursor.execute(f"DROP TABLE {kept}")
    _analyze(ArchivedMessage)
    return originals * copies


def _analyze(*models: Any) -> None:
    """As a database does by itself a minute later: else it plans for empty tables."""
    from django.db import connections

    from django_delayq.core.conf import get_settings

    connection = connections[get_settings().database]
    statement = "VACUUM ANALYZE" if connection.vendor == "postgresql" else "ANALYZE TABLE"
    with connection.cursor() as cursor:
        for model in models:
            cursor.execute(f"{statement} {connection.ops.quote_name(model._meta.db_table)}")


def _count(topics: list[str]) -> None:
    """Figures of each topic: those of the last HOURS hours, and of the last DAYS days."""
    from datetime import datetime, timezone

    from django_delayq.core.times import stored
    from django_delayq.models import TaskDay, TopicHour
    from django_delayq.stats.busiest import keep_busiest
    from django_delayq.stats.histogram import encode
    from django_delayq.stats.hourly import COUNTS, hour_of, replace_each

    now = hour_of(datetime.now(tz=timezone.utc))
    times = encode(dict.fromkeys(range(100, 220, 6), 3))
    figures: dict[str, Any] = dict.fromkeys(COUNTS, 15)
    figures |= {
        "messages": 60,
        "lateness": times,
        "lateness_max": 9e4,
        "run": times,
        "run_max": 8e4,
    }
    for n in range(HOURS):
        hour = stored(now - timedelta(hours=n))
        rows = [TopicHour(hour=hour, topic=topic, **figures) for topic in topics]
        replace_each(TopicHour, {hour: rows})
    for n in range(DAYS):
        day = (now - timedelta(days=n)).date()
        days = [TaskDay(day=day, topic=t, task="tests.app.tasks.record", **figures) for t in topics]
        replace_each(TaskDay, {day: days})
    keep_busiest(datetime.now(tz=timezone.utc))
    _analyze(TopicHour, TaskDay)


def _shift(is_postgresql: bool, name: str) -> str:
    """An instant, moved back."""
    seconds = "(%s + (%s - bench_number) * -%s)"
    if is_postgresql:
        return f"{name} - {seconds} * INTERVAL '1 second'"
    return f"DATE_SUB({name}, INTERVAL {seconds} SECOND)"


def _mariadb_uuid(connection: Any) -> str:
    is_native = getattr(connection.features, "has_native_uuid_field", False)
    return "UUID()" if is_native else "REPLACE(UUID(), '-', '')"


# What is measured


class Measured:
    """A page: median of the server's time, queries of one look, and size."""

    def __init__(self, ms: float, queries: int, kb: float) -> None:
        self.ms, self.queries, self.kb = ms, queries, kb


def _addresses(topics: list[str]) -> list[tuple[str, str]]:
    from django_delayq.client.topics import list_messages
    from django_delayq.models import ArchivedMessage

    topic, row = topics[len(topics) // 2], ArchivedMessage.objects.order_by("-pk")[0]
    dead = ArchivedMessage.objects.filter(state="dead").order_by("-pk")[0]
    message = list_messages(topic, limit=1).messages[0]
    asked = [
        ("overview", "", {}),
        ("overview, a part", "", {"part": 1}),
        ("overview, by lag", "", {"sort": "lag"}),
        ("overview, by name", "", {"topic": "99", "sort": "topic"}),
        ("overview, last page", "", {"page": 10**6}),
        ("overview, totals", "", {"columns": "totals", "sort": "enqueued"}),
        ("overview, a day", "", {"hours": 24}),
        ("topic", f"topics/{topic}/", {}),
        ("topic, by task", f"topics/{topic}/", {"by": "task"}),
        ("topic, outbox", f"topics/{topics[0]}/", {"in": "database"}),
        ("topic, at a time", f"topics/{topic}/", {"from": "2030-01-01T00:00"}),
        ("message", f"topics/{topic}/messages/{message.id}/", {}),
        ("running", "running/", {}),
        ("waiting", "waiting/", {}),
        ("waiting, of a topic", "waiting/", {"topic": topic}),
        ("waiting, of a minute", "waiting/", {"until": "2030-01-01T00:00Z", "topic": topic}),
        ("waiting, of all topics", "waiting/", {"until": "2030-01-01T00:00Z"}),
        ("dead letters", "dead-letters/", {}),
        ("dead letters, of a topic", "dead-letters/", {"topic": dead.topic}),
        ("archive", "archive/", {}),
        ("archive, dead", "archive/", {"state": "dead", "period": "7d"}),
        ("archive, of a topic", "archive/", {"topic": topic}),
        ("archived", f"archive/{row.pk}/", {}),
        ("statistics", "statistics/", {}),
        ("statistics, 30 days", "statistics/", {"period": "30d"}),
        ("statistics, of a topic", "statistics/", {"topic": topic}),
        ("bulk operations", "bulk/", {}),
        ("bulk, new", "bulk/new/", {"kind": "replay", "topic": dead.topic, "open": "on"}),
        ("workers", "workers/", {}),
        ("recurring", "recurring/", {}),
        ("operator actions", "actions/", {}),
        ("schedule", "schedule/", {}),
        ("find, a key", "find/", {"q": "key:nobody:1"}),
        ("find, an argument", "find/", {"q": "args.0:1042"}),
        ("unarchivable", "unarchivable/", {}),
        ("API tokens", "tokens/", {}),
    ]
    return [(name, f"{ROOT}{path}?{urlencode(query)}") for name, path, query in asked]


def _cold(client: Any, explain: bool) -> float:
    """The first look of a process at the overview."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as captured:
        begun = time.perf_counter()
        answer = client.get(ROOT)
        took = (time.perf_counter() - begun) * 1000
    assert answer.status_code == 200
    print(f"  {'overview, cold':<30} {took:8.1f} ms  {len(captured)} queries", flush=True)
    for query in captured if explain else ():
        print(f"    {float(query['time']) * 1000:8.1f} ms  {query['sql'][:3000]}")
        if query["sql"].lstrip().startswith("SELECT"):
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN {query['sql']}")
                for row in cursor.fetchall():
                    print("        ", *row)
    return took


def _page(client: Any, name: str, address: str, runs: int) -> Measured:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    times = []
    for _ in range(runs):
        begun = time.perf_counter()
        answer = client.get(address)
        times.append((time.perf_counter() - begun) * 1000)
    with CaptureQueriesContext(connection) as captured:
        answer = client.get(address)
    assert answer.status_code == 200, f"{address}: {answer.status_code}"
    found = Measured(median(times), len(captured), len(answer.content) / 1024)
    is_large = name.startswith("overview") and found.kb > MOST_KB
    missed = found.ms > MOST_MS or found.queries > MOST_QUERIES or is_large
    spread = f"{found.ms:8.1f} ms ({min(times):.0f} to {max(times):.0f})"
    print(
        f"  {name:<30} {spread}  {found.queries} queries  {found.kb:.0f} KB{'  MISSED' * missed}",
        flush=True,
    )
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
