"""manage.py delayq stats: figures for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.utils import OperationalError

from django_delayq import pause_topic
from django_delayq.management.verbs.stats import Command
from django_delayq.stats import overview
from django_delayq.stats.hourly import compute_day, compute_hour, day_of, hour_of
from django_delayq.store.store import RedisStore
from django_delayq.worker.process.runner import ExitCode
from tests.app.tasks import close_order, record
from tests.database_faults import database_away
from tests.faults import unreachable
from tests.hands import DAY, Hands, make_due
from tests.stats.test_history import NOW, standing  # noqa: F401 - a fixture
from tests.stats.test_hourly import finish

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing is kept of another test."""
    overview.reader_of.cache_clear()
    yield
    overview.reader_of.cache_clear()


def stats(*args: str) -> str:
    """What the command prints."""
    out = StringIO()
    call_command("delayq", "stats", *args, stdout=out)
    return out.getvalue()


def table(*args: str) -> list[list[str]]:
    """The lines of the table, by columns: two or more blanks are between them."""
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()]
        for line in stats(*args).splitlines()
    ]


def refused(*args: str) -> CommandError:
    """How the command ends."""
    with pytest.raises(CommandError) as caught:
        stats(*args)
    return caught.value


def count_now(*topics: str, **fields: Any) -> None:
    """One message of each topic has finished just now, and the figures are computed."""
    for topic in topics:
        finish(NOW, topic=topic, **fields)
    compute_hour(hour_of(NOW))
    compute_day(day_of(NOW))


# Now


def test_a_line_for_each_topic(hands: Hands) -> None:
    record.using(delay=3600).enqueue(1)
    make_due(record.using(delay=60).enqueue(2))
    close_order.using(delay=DAY).enqueue(1042)
    pause_topic("orders", by="ops", reason="SMTP")
    lines = table()
    assert lines[0] == [
        "topic", "ready", "lag", "next due", "delayed", "leased", "outbox", "dead", "late p50", "p99", "workers",
    ]  # fmt: skip
    rows = {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[1:]}
    default, orders = rows["default"], rows["orders (paused)"]
    assert (default["ready"], default["delayed"], default["outbox"], default["dead"]) == (
        "1",
        "1",
        "0",
        "0",
    )
    assert (default["lag"][-2:], default["late p50"], default["workers"]) == (" d", "-", "0")
    assert (orders["ready"], orders["delayed"], orders["lag"], orders["next due"]) == (
        "0",
        "1",
        "0 ms",
        "24 h",
    )


def test_no_topic_is_due_in_less_than_nothing(hands: Hands) -> None:
    make_due(record.using(delay=60).enqueue(1))
    names, line = table("--topic", "default")
    assert not dict(zip(names, line, strict=True))["next due"].startswith("-")


def test_columns_lie_below_their_names(hands: Hands) -> None:
    record.using(delay=3600).enqueue_many([(n,) for n in range(1234)])
    names, *lines = stats("--topic", "default").splitlines()
    (line,) = lines
    end = names.index("delayed") + len("delayed")
    assert line[:end].endswith(" 1,234")
    assert names == names.rstrip() and line == line.rstrip()


def test_programs_get_json(hands: Hands) -> None:
    record.using(delay=3600).enqueue(1)
    pause_topic("default", by="ops", reason="SMTP")
    found = json.loads(stats("--json"))
    (default,) = [each for each in found["topics"] if each["topic"] == "default"]
    assert (default["delayed"], default["backlog"], default["lag"], default["late_p50_ms"]) == (
        1,
        0,
        0,
        None,
    )
    assert default["paused"]["by"] == "ops"
    due = datetime.fromisoformat(default["next_due_at"]) - datetime.fromisoformat(found["at"])
    assert due.total_seconds() == pytest.approx(3600, abs=5)


def test_one_topic_of_now(hands: Hands) -> None:
    assert [line[0] for line in table("--topic", "orders")] == ["topic", "orders"]
    assert [
        each["topic"] for each in json.loads(stats("--json", "--topic", "orders"))["topics"]
    ] == ["orders"]
    assert len(table("--topic", "never used")) == 1


# The past


def test_a_line_for_each_hour_with_messages_and_one_for_all(delayq: RedisStore) -> None:
    count_now("orders", "mail", lateness_ms=4.0, run_ms=2500.0, attempts=2)
    earlier = hour_of(NOW) - timedelta(hours=3)
    finish(earlier, state="dead", error_class="ValueError", count=1200)
    compute_hour(earlier)
    assert table("--history", "24h") == [
        [
            "UTC",
            "finished",
            "acked",
            "dead",
            "cancelled",
            "expired",
            "retried",
            "late p50",
            "p99",
            "ran p50",
            "p99",
        ],
        [
            "2026-11-20 09:00",
            "1,200",
            "0",
            "1,200",
            "0",
            "0",
            "0",
            "2 ms",
            "2 ms",
            "20 ms",
            "20 ms",
        ],
        ["2026-11-20 12:00", "2", "2", "0", "0", "0", "2", "4 ms", "4 ms", "2.5 s", "2.5 s"],
        ["all", "1,202", "2", "1,200", "0", "0", "2", "2 ms", "2 ms", "20 ms", "20 ms"],
    ]


def test_days_are_named_without_an_hour(delayq: RedisStore) -> None:
    count_now("orders")
    assert [line[0] for line in table("--history", "30d")] == ["UTC", "2026-11-20", "all"]


def test_without_figures_there_is_the_line_of_all(delayq: RedisStore) -> None:
    assert table("--history", "24h")[1:] == [["all", *["0"] * 6, *["-"] * 4]]


def test_one_topic_of_the_past(delayq: RedisStore) -> None:
    count_now("orders", "orders", "mail")
    assert table("--history", "24h", "--topic", "orders")[-1][:2] == ["all", "2"]
    assert table("--history", "7d", "--topic", "mail")[-1][:2] == ["all", "1"]
    assert table("--history", "7d", "--topic", "never used")[-1][:2] == ["all", "0"]


@pytest.mark.parametrize(("period", "spans"), [("24h", 24), ("7d", 7), ("30d", 30), ("90d", 90)])
def test_programs_get_every_span_of_the_past(period: str, spans: int, delayq: RedisStore) -> None:
    count_now(
        "orders", state="dead", error_class="ValueError", lateness_ms=4.0, task="shop.tasks.close"
    )
    found = json.loads(stats("--history", period, "--json"))
    assert len(found["spans"]) == spans
    assert found["spans"][0]["messages"] == 0
    last = found["spans"][-1]
    assert last["at"] == (
        "2026-11-20T12:00:00+00:00" if period == "24h" else "2026-11-20T00:00:00+00:00"
    )
    assert (last["messages"], last["states"]["dead"], last["late_max_ms"]) == (1, 1, 4.0)
    assert found["total"] == {name: value for name, value in last.items() if name != "at"}
    (task,) = found["tasks"]
    assert (task["topic"], task["task"], task["errors"]) == (
        "orders",
        "shop.tasks.close",
        [["ValueError", 1]],
    )
    assert task["figures"] == found["total"]


# How it ends


def test_redis_away_is_3_for_now_and_nothing_to_the_past(delayq: RedisStore) -> None:
    with unreachable():
        error = refused()
        assert error.returncode == ExitCode.UNREACHABLE == 3
        assert "Connection refused" in str(error)
        assert table("--history", "24h")[-1][0] == "all"


def test_database_away_is_1_for_the_past(delayq: RedisStore) -> None:
    with database_away():
        error = refused("--history", "24h")
    assert error.returncode == ExitCode.ERROR == 1
    assert OperationalError.__name__ in str(error)


def test_database_away_leaves_what_redis_knows(hands: Hands) -> None:
    record.using(delay=60).enqueue(1)
    with database_away():
        try:
            stats()
        except CommandError as error:
            assert error.returncode != ExitCode.UNREACHABLE


@pytest.mark.parametrize("period", ["1y", "", "24"])
def test_another_period_is_2(
    period: str, delayq: RedisStore, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        Command().run_from_argv(["manage.py", "delayq stats", "--history", period])
    assert ended.value.code == 2
    assert "invalid choice" in capsys.readouterr().err
