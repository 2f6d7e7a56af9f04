"""Before the work begins."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from django_delayq import pause_topic
from django_delayq.core.conf import parse_settings
from django_delayq.core.exceptions import ConfigurationError, StoreLoading, StoreUnavailable
from django_delayq.store.connection import open_client
from django_delayq.store.inspection import ServerReport, inspect_server
from django_delayq.store.store import RedisStore
from django_delayq.tasks import registry
from django_delayq.worker.process import startup
from django_delayq.worker.process.startup import banner, choose_topics, wait_for_redis
from tests.app.tasks import record
from tests.worker.moving import LONG_AGO

REPORT = ServerReport("Redis 7.0.15", (7, 0, 15), "noeviction", 0, True, "everysec", 0.42)


@pytest.fixture
def said() -> list[str]:
    return []


# --topics


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "known_topics", lambda: {"orders", "mail", "default"})


@pytest.mark.parametrize(
    ("wanted", "topics", "weights"),
    [
        ("all", ("default", "mail", "orders"), {}),
        ("", ("default", "mail", "orders"), {}),
        ("orders", ("orders",), {}),
        ("orders,mail", ("orders", "mail"), {}),
        (" orders , mail ,", ("orders", "mail"), {}),
        ("orders,orders", ("orders",), {}),
        ("orders:3,mail:1", ("orders", "mail"), {"orders": 3, "mail": 1}),
        ("all,orders:3", ("default", "mail", "orders"), {"orders": 3}),
        ("-mail", ("default", "orders"), {}),
        ("-mail,-default", ("orders",), {}),
        ("all,-mail", ("default", "orders"), {}),
    ],
)
def test_topics_and_weights(wanted: str, topics: tuple[str, ...], weights: dict[str, int]) -> None:
    assert choose_topics(wanted) == (topics, weights)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("ordres", r"--topics: 'ordres' is not declared\. Known: default, mail, orders\."),
        ("orders,-nothing", "'nothing' is not declared"),
        ("orders:0", "'orders:0': a weight is a whole number from 1 to 100"),
        ("orders:101", "from 1 to 100"),
        ("orders:x", "a weight is a whole number"),
        ("orders:", "a weight is a whole number"),
        ("orders:-1", "a weight is a whole number"),
        ("orders:1.5", "a weight is a whole number"),
        ("all:3", "'all' takes no weight"),
        ("-mail:3", "'-mail' takes no weight"),
        ("orders,-orders", "leaves nothing to serve"),
        ("-orders,-mail,-default", "leaves nothing to serve"),
    ],
)
def test_wrong_topics_are_refused(wanted: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        choose_topics(wanted)


# Waiting for Redis


def unreachable(port: int = 1) -> RedisStore:
    settings = parse_settings({"REDIS": f"redis://:secret@127.0.0.1:{port}/0", "SOCKET_TIMEOUT": 1})
    return RedisStore(open_client(settings), settings)


def test_redis_that_answers_is_reported(delayq: RedisStore, said: list[str]) -> None:
    (report,) = wait_for_redis(delayq, 5, said.append)
    assert report.name.startswith(("Redis", "Valkey"))
    assert said == []


def test_absent_redis_is_said_once_without_its_password(said: list[str]) -> None:
    with pytest.raises(StoreUnavailable, match="Cannot reach Redis"):
        wait_for_redis(unreachable(), 0.1, said.append)
    (text,) = said
    assert "redis://:***@127.0.0.1:1/0" in text
    assert "secret" not in text
    assert (
        "set DELAYQ['REDIS'], or try the embedded one: python manage.py run_delayq --embedded"
        in text
    )


def test_redis_may_come_while_we_wait(
    delayq: RedisStore, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [StoreUnavailable("away"), StoreUnavailable("away"), [REPORT]]

    def inspect(store: RedisStore) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(startup, "inspect_server", inspect)
    monkeypatch.setattr(startup.Sleeper, "wait", lambda self, seconds: None)
    assert wait_for_redis(delayq, 30, said.append) == [REPORT]
    assert len(said) == 1


def test_redis_that_still_loads_its_data_is_waited_for(
    delayq: RedisStore, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers INFO and TIME, and nothing that reads data."""
    heartbeats = mock.Mock(side_effect=[StoreLoading(), StoreLoading(), {}])
    monkeypatch.setattr(delayq.workers, "heartbeats", heartbeats)
    monkeypatch.setattr(startup.Sleeper, "wait", lambda self, seconds: None)
    (report,) = wait_for_redis(delayq, 30, said.append)
    assert report.name.startswith(("Redis", "Valkey"))
    (text,) = said
    assert "still loading its data set" in text


@pytest.fixture
def hanging_up() -> Iterator[int]:
    """A port that takes connections and closes them: a proxy whose Redis is down."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.recv(1)
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_redis_that_hangs_up_is_waited_for_too(hanging_up: int, said: list[str]) -> None:
    with pytest.raises(StoreUnavailable):
        wait_for_redis(unreachable(hanging_up), 0.1, said.append)
    assert len(said) == 1


# The first lines


def lines(delayq: RedisStore, *topics: str, report: ServerReport = REPORT) -> str:
    said: list[str] = []
    banner(delayq, [report], topics or ("default", "orders"), said.append)
    return "\n".join(said)


def test_banner_tells_where_it_works(delayq: RedisStore) -> None:
    text = lines(delayq)
    assert text.startswith("django-delayq 0.1.0 · Django ")
    assert "Redis 7.0.15 · noeviction ✓ · AOF everysec ✓ · clock skew 0.4 ms" in text
    assert "topics    default  orders" in text
    assert "0 waiting · 0 due · 0 running" in text
    assert (
        f"0 others alive · {len(registry.by_name)} tasks known · prefix {delayq.client.prefix}"
        in text
    )


def test_banner_tells_what_is_not_as_it_should_be(delayq: RedisStore) -> None:
    report = REPORT._replace(eviction="allkeys-lru", aof=False)
    assert "eviction allkeys-lru · AOF off" in lines(delayq, report=report)
    assert "eviction unknown" in lines(delayq, report=REPORT._replace(eviction=None))


def test_banner_tells_what_waits(delayq: RedisStore) -> None:
    record.using(due_at=LONG_AGO).enqueue_many([(n,) for n in range(1200)])
    assert "0 waiting · 1,200 due · 0 running · next due in 0 ms" in lines(delayq)
    record.using(topic="orders", delay=3 * 86_400).enqueue(1)
    assert "1 waiting · 0 due · 0 running · next due in 3 d" in lines(delayq, "orders")


def test_what_was_typed_for_a_pause_is_one_line(delayq: RedisStore) -> None:
    pause_topic("orders", by="o\nps", reason="down\r\n  paused    mail (by root) \x1b[2J")
    (said,) = [line for line in lines(delayq).split("\n") if "mail (by root)" in line]
    assert said.isprintable() and "o\\nps" in said


def test_banner_tells_what_is_paused(delayq: RedisStore) -> None:
    pause_topic("orders", by="ops", reason="SMTP is down")
    assert 'paused    orders (by ops, "SMTP is down")' in lines(delayq)


def test_banner_tells_partitions_and_other_workers(settings: Any, delayq: RedisStore) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"orders": {"partitions": 4}}}
    from django_delayq.store import get_store

    store = get_store()
    store.workers.beat("alive", f'{{"at_ms": {int(store.clock_ms())}}}')
    store.workers.beat("gone", '{"at_ms": 5}')
    text = lines(store)
    assert "default  orders ×4" in text
    assert "1 others alive" in text


def test_report_of_a_real_server(delayq: RedisStore) -> None:
    (report,) = inspect_server(delayq)
    assert (report.eviction, report.bits) == ("noeviction", 64)
    assert abs(report.skew_ms) < 1000
