"""The audit as a job: of a healthy system it says nothing, and what it is not made for it
refuses."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections

from django_delayq.core.job_report import Code, Report, ignore
from django_delayq.core.message import new_id
from django_delayq.models import ArchivedMessage, AuditRun, OperatorAction, OutboxMessage
from django_delayq.operators.doctor import conclusion
from django_delayq.operators.doctor.findings import Finding, FindingKind
from django_delayq.operators.doctor.second_look import confirmed as confirm
from django_delayq.pipeline.audit import audit
from django_delayq.pipeline.export import export
from django_delayq.pipeline.params import Params, Storage
from django_delayq.store.keys import Partition
from django_delayq.store.queries import Life
from django_delayq.store.store import RedisStore
from tests.app.tasks import close_order, record
from tests.hands import ORDERS, Hands
from tests.pipeline import damage
from tests.pipeline.damage import World

Make = Callable[..., Params]
Look = Callable[..., Report]


@pytest.fixture
def look(spark: Any, parameters: Make) -> Look:
    def run(pause: float = 0, lake: str = "", **options: Any) -> Report:
        rest = {
            name: options.pop(name) for name in ("topic", "since", "dry_run") if name in options
        }
        return audit.run(
            spark, parameters(lake=Storage(lake), job={"pause": pause, **options}, **rest), ignore
        )

    return run


@pytest.fixture
def world(delayq: RedisStore, transactional_db: None) -> World:
    return World(delayq, lambda: None, "")


@contextmanager
def at_work(hands: Hands) -> Iterator[list[int]]:
    """A producer, a worker, the archiver, the relay and the reconciler, in another thread, until
    the end."""
    over, rounds = threading.Event(), [0]

    def work() -> None:
        try:
            while not over.wait(0.1):
                for durable in (False, True):
                    record.using(durable=durable).enqueue(rounds[0])
                    record.using(durable=durable, delay=timedelta(minutes=5)).enqueue(rounds[0])
                    record.using(
                        durable=durable, delay=0.05, key="again", on_duplicate="replace"
                    ).enqueue(rounds[0])
                hands.work()
                if rounds[0] % 3:
                    hands.archive()
                hands.relay()
                hands.reconciler.run_once()
                rounds[0] += 1
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield rounds
    finally:
        over.set()
        thread.join(60)


@pytest.mark.long
@pytest.mark.databases
def test_a_system_at_work_shows_nothing(
    hands: Hands, spark: Any, parameters: Make, lake: str, look: Look
) -> None:
    with at_work(hands) as rounds:
        while rounds[0] < 5:
            time.sleep(0.01)
        export.run(spark, parameters(job={"settle": 0}), ignore)
        before = rounds[0]
        reports = [look(pause=0.2, lake=lake) for _ in range(2)]
        assert rounds[0] > before, "it has stopped"
    assert [(report.code, report.figures["confirmed"]) for report in reports] == [
        (Code.DONE, 0)
    ] * 2
    assert all(report.figures["rows_of_the_lake"] for report in reports)
    found = sum(row["found"] for report in reports for row in report.rows)
    assert found < 50, "so many candidates come from the order of reading"


def test_an_empty_system_is_healthy(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(conclusion, "sleep", slept.append)
    report = look(pause=7)
    assert (report.code, report.rows, report.problems) == (Code.DONE, (), [])
    assert report.figures["places_in_Redis"] == report.figures["rows_of_the_archive"] == 0
    assert slept == [], "there was nothing to look at again"


@pytest.mark.long
def test_what_is_gone_at_the_second_look_is_no_difference(
    world: World, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, there = bytes.fromhex(damage.no_place(world)), damage.no_place(world)
    slept: list[float] = []

    def meanwhile(seconds: float) -> None:
        slept.append(seconds)
        world.do("ZADD", "normal", damage.FAR, gone)

    monkeypatch.setattr(conclusion, "sleep", meanwhile)
    report = look(pause=7, dry_run=True)
    (row,) = report.rows
    assert (row["difference"], row["found"], row["confirmed"], row["ids"]) == (
        "no place",
        2,
        1,
        [there],
    )
    assert (report.code, slept) == (Code.DIFFERENT, [7])
    assert (
        OperatorAction.objects.count() == 0
        and world.store.queries.find(damage.DEFAULT, [bytes.fromhex(there)])[0]
    )


@pytest.mark.long
def test_of_very_many_all_are_counted_and_some_repaired(world: World, look: Look) -> None:
    world.waiting()
    for _ in range(12):
        damage.stray_attempts(world)
    report = look(repair=True, most=11)
    (row,) = report.rows
    assert (row["found"], row["confirmed"], row["repaired"], len(row["ids"])) == (12, 11, 11, 10)
    assert "only 11 of 12" in report.problems[0]
    assert len(world.store.client.redis.hkeys(world.key("attempts"))) == 1
    assert AuditRun.objects.get().findings == 1


@pytest.mark.long
def test_each_audit_of_all_topics_keeps_how_much_it_has_left(world: World, look: Look) -> None:
    world.waiting()
    damage.stray_attempts(world)
    look(topic="orders")
    for repair in (False, True, False):
        look(repair=repair)
    runs = AuditRun.objects.order_by("pk")
    assert [(run.findings, json.loads(run.kinds).get("stray attempts")) for run in runs] == [
        (1, 1),
        (0, None),
        (0, None),
    ]


@pytest.mark.long
def test_one_topic_can_be_looked_at_alone(world: World, look: Look) -> None:
    damage.no_place(world)
    damage.lost(world)
    close_order.using(delay=60).enqueue(1)
    stray = new_id()
    world.store.client.command("HSET", world.key("attempts", ORDERS), stray, bytes(38))
    assert [(row["difference"], row["ids"]) for row in look(topic="orders").rows] == [
        ("stray attempts", [stray.hex()])
    ]


# The second look


def confirmed(store: RedisStore, *found: Finding) -> list[Finding]:
    return confirm(store, found)


def of_row(kind: FindingKind, row: ArchivedMessage) -> Finding:
    return Finding(
        kind,
        Partition(row.topic, 0),
        Life(row.message_id.bytes, int.from_bytes(damage.stamp_of(row), "big")),
    )


def test_what_has_just_been_sent_is_not_lost(world: World) -> None:
    message_id = damage.lost(world)
    row = OutboxMessage.objects.get(message_id=message_id)
    found = Finding(
        FindingKind.LOST, damage.DEFAULT, Life(bytes.fromhex(message_id), row.enqueued_at_us)
    )
    assert confirmed(world.store, found) == [found]
    OutboxMessage.objects.update(relay_at_ms=int(world.store.clock_ms()) + 60_000)
    assert confirmed(world.store, found) == []


def test_what_has_ended_meanwhile_is_not_lost(world: World) -> None:
    lease = world.claimed(durable=True)
    damage.looked_at(lease.id)
    row = OutboxMessage.objects.get()
    found = Finding(FindingKind.LOST, damage.DEFAULT, Life(lease.id, row.enqueued_at_us))
    assert confirmed(world.store, found) == []
    world.store.ack(damage.DEFAULT, [(lease, b"{}")])
    assert confirmed(world.store, found) == []
    world.archive()
    assert confirmed(world.store, found) == []


def test_what_runs_may_have_its_row_already(world: World) -> None:
    """exactly_once: the row comes before the ack."""
    row = world.archived()
    world.do(
        "HSET",
        "messages",
        row.message_id.bytes,
        damage.stamp_of(row) + damage.stored(world.store)[8:],
    )
    world.do("ZADD", "leased", damage.FAR, row.message_id.bytes)
    found = of_row(FindingKind.LIVE_AGAIN, row)
    assert confirmed(world.store, found) == []
    world.do("ZREM", "leased", row.message_id.bytes)
    assert confirmed(world.store, found) == [found]


def test_an_end_with_its_entry_is_neither_lost_nor_stale(world: World) -> None:
    lease = world.ended(durable=True)
    stamp = int.from_bytes(lease.record[:8], "big")
    both = [
        Finding(kind, damage.DEFAULT, Life(lease.id, stamp))
        for kind in (FindingKind.LOST_END, FindingKind.STALE_END)
    ]
    assert confirmed(world.store, *both) == []
    world.do("DEL", "finished")
    assert confirmed(world.store, *both) == both[:1]


def test_a_message_that_was_moved_in_sql_has_no_lost_end(world: World) -> None:
    """Its older stamp is remembered, so that nobody sends it any more."""
    message_id = world.waiting(durable=True)
    row = OutboxMessage.objects.get()
    world.do("ZREM", "normal", message_id)
    world.do("HDEL", "messages", message_id)
    world.do("HSET", "meta", b"done:" + message_id, row.enqueued_at_us.to_bytes(8, "big"))
    found = Finding(FindingKind.LOST_END, damage.DEFAULT, Life(message_id, row.enqueued_at_us))
    assert confirmed(world.store, found) == [found]
    OutboxMessage.objects.update(enqueued_at_us=row.enqueued_at_us + 1)
    assert confirmed(world.store, found) == []


def test_a_new_number_of_partitions_is_known_at_once(world: World) -> None:
    message_id = damage.wrong_partition(world)
    found = Finding(FindingKind.WRONG_PARTITION, damage.CROWD, Life(bytes.fromhex(message_id), 0))
    assert confirmed(world.store, found) == [found]
    world.store.client.command("SADD", f"{world.store.client.prefix}:topics", "crowd:3")
    last = int.from_bytes(bytes.fromhex(message_id)[-4:], "big")
    assert confirmed(world.store, found) == ([] if last % 3 == 1 else [found])
