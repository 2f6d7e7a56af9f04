"""Fills an archive with rows as a shop leaves them: `python -m tests.benchmarks.seed --rows
2000000`.

Into the database of DELAYQ_TEST_DATABASE: `python -m tests.databases postgresql python -m
tests.benchmarks.seed`. The newest row is the last; a later row may have finished a little earlier,
as with several archivers.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple
from uuid import UUID

from django_delayq.core.message import key_id

BATCH = 5_000
PERIOD = timedelta(days=30)
TOPICS = ("orders", "mail", "reports", "stock", "default")
TASKS = (
    ("orders", "tests.app.tasks.close_order"), ("orders", "tests.app.tasks.remind"), ("orders", "shop.tasks.refund"),
    ("mail", "mail.tasks.welcome"), ("mail", "mail.tasks.receipt"), ("mail", "mail.tasks.newsletter"),
    ("reports", "reports.tasks.daily"), ("reports", "reports.tasks.invoice"), ("stock", "stock.tasks.reserve"),
    ("stock", "stock.tasks.release"), ("default", "tests.app.tasks.noop"), ("default", "tests.app.tasks.record"),
)  # fmt: skip
WEIGHTS = (20, 10, 2, 15, 15, 12, 0.05, 4, 10, 8, 3, 1)
"""One task is rare: once a few thousand messages."""
ERRORS = tuple(
    f"shop.errors.{name}{kind}"
    for name in ("Payment", "Stock", "Mail", "Price", "Address", "Invoice", "Tax", "Partner")
    for kind in ("Missing", "Refused", "Timeout", "Broken", "Unknown")
)
RARE_ERROR = "shop.errors.OnceInAWhile"
TRACEBACK = "Traceback (most recent call last):\n" + "".join(
    f'  File "/srv/shop/tasks.py", line {line}, in step_{line}\n    return step_{line + 1}(order, '
    f"price)\n"
    for line in range(100, 112)
)


class Random(NamedTuple):
    """What a row is made with."""

    dice: random.Random
    begin: datetime
    step: timedelta
    rare: frozenset[int]


def rows_of(
    count: int, convert: Callable[[datetime], Any] = lambda when: when
) -> Iterator[tuple[Any, ...]]:
    """Rows in the order of archive.COLUMNS; the same ones each time but for their instants, which
    end now."""
    source = Random(
        random.Random(count),
        datetime.now(tz=timezone.utc) - PERIOD,
        PERIOD / count,
        frozenset((count // 50, count // 2, count - count // 3)),
    )
    for number in range(count):
        yield _row(number, source, convert)


def _row(number: int, source: Random, convert: Callable[[datetime], Any]) -> tuple[Any, ...]:
    dice = source.dice
    topic, task = dice.choices(TASKS, WEIGHTS)[0]
    state, reason = _state(number, source)
    finished = source.begin + number * source.step - timedelta(seconds=dice.random() * 2)
    late, run = dice.expovariate(1 / 8), dice.expovariate(1 / 40)
    due = finished - timedelta(milliseconds=late + run)
    enqueued = due - timedelta(minutes=30)
    key = f"order:{number}" if dice.random() < 0.3 else ""
    stamp = int(enqueued.timestamp() * 1000).to_bytes(6, "big")
    fresh = stamp + bytes((0x70, 0, 0x80)) + dice.randbytes(7)
    message_id = UUID(bytes=key_id(topic, key) if key else fresh)
    note = "x" * dice.randrange(10, 360)
    body = f'{{"args":[{number}],"kwargs":{{"reason":"unpaid","note":"{note}"}}}}'
    error, message, traceback = "", "", ""
    if state == "dead":
        error = RARE_ERROR if number in source.rare else dice.choice(ERRORS)
        message, traceback = (
            f"order {number} is gone",
            f"{TRACEBACK}{error}: order {number} is gone",
        )
    ran = state in ("acked", "dead")
    history = (
        '{"started_ms":1,"ended_ms":2,"outcome":"retry","worker":"shop-1:7:a","error":"X: y"}'
        if error
        else ""
    )
    return (
        message_id, convert(enqueued), topic, 0, task, key, state, reason, body, "", 1, 60_000, None,
        2 if error else 1, 0, history, convert(due), convert(due) if ran else None, convert(finished),
        round(late, 3) if ran else None, round(run, 3) if ran else None, "shop-1:7:a" if ran else "",
        error, message, traceback, None, "",
    )  # fmt: skip


def _state(number: int, source: Random) -> tuple[str, str]:
    """96 % acked, 2.5 % dead, 1.5 % cancelled; none is expired."""
    if number in source.rare:
        return "dead", ""
    share = source.dice.random()
    if share < 0.96:
        return "acked", ""
    return ("dead", "") if share < 0.985 else ("cancelled", "cancelled")


def fill(count: int) -> float:
    """Put so many rows into the archive and let the database look at them. Returns the seconds it
    took."""
    from django.db import connections

    from django_delayq.archive.archive_rows import COLUMNS
    from django_delayq.core.conf import get_settings
    from django_delayq.models import ArchivedMessage

    begun = time.monotonic()
    connection = connections[get_settings().database]
    table = connection.ops.quote_name(ArchivedMessage._meta.db_table)
    if connection.vendor == "postgresql":
        with (
            connection.cursor() as cursor,
            cursor.copy(f"COPY {table} ({', '.join(COLUMNS)}) FROM STDIN") as copy,
        ):
            for row in rows_of(count):
                copy.write_row(row)
    else:
        _insert(count, connection)
    _settle(connection)
    return time.monotonic() - begun


def _insert(count: int, connection: Any) -> None:
    from itertools import islice

    from django.db import transaction

    from django_delayq.archive.archive_rows import insert
    from django_delayq.core.times import stored

    adapt = connection.ops.adapt_datetimefield_value
    rows = rows_of(count, lambda when: adapt(stored(when)))
    while batch := [(row[0].hex, *row[1:]) for row in islice(rows, BATCH)]:
        with transaction.atomic(using=connection.alias):
            insert(batch, connection)


def _settle(connection: Any) -> None:
    """Half of the old dead letters are dealt with; statistics are made."""
    from django.utils import timezone as zones

    from django_delayq.core.message import new_id
    from django_delayq.models import ArchivedMessage

    dead = ArchivedMessage.objects.filter(state="dead", finished_at__lt=zones.now() - PERIOD / 2)
    dead.extra(where=["id %% 4 = 0"]).update(
        replayed_at=zones.now(), replayed_by=UUID(bytes=new_id())
    )
    dead.extra(where=["id %% 4 = 1"]).update(discarded_at=zones.now())
    statements = {
        "postgresql": "VACUUM ANALYZE {}",
        "mysql": "ANALYZE TABLE {}",
        "sqlite": "ANALYZE {}",
    }
    table = connection.ops.quote_name(ArchivedMessage._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(statements[connection.vendor].format(table))


def set_up() -> None:
    """Django with the tests' settings, and the tables."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def main(arguments: list[str]) -> None:
    """--rows N."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.seed", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    options = parser.parse_args(arguments)
    set_up()
    print(f"{options.rows:,} rows in {fill(options.rows):.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
