"""The relay brings rows to Redis: in order, each at least once and under its stamp, so that each
runs once."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_delayq.core import signals
from django_delayq.core.exceptions import DatabaseUnavailable, OutcomeUnknown, StoreUnavailable
from django_delayq.models import OutboxMessage
from django_delayq.outbox import relay
from django_delayq.outbox.relay import Relay, before_claims
from django_delayq.store import get_store
from django_delayq.store.keys import Partition, partition_keys
from tests.app.tasks import crowd, record, seen
from tests.database_faults import before, database_away, failing_commits
from tests.faults import lost_answers, unreachable
from tests.hands import DAY, DEFAULT, Hands, apart, messages_in, only_row, rows, statuses, together
from tests.servers import wait_until

pytestmark = pytest.mark.databases

far = record.using(durable=True, delay=DAY)


def near(*, seconds: int = 1) -> None:
    """As if all were near their due time."""
    OutboxMessage.objects.update(relay_at_ms=seconds, due_at_ms=1_000_000_000_000)


def done(hands: Hands) -> dict[bytes, bytes]:
    """What Redis remembers of ended lives."""
    meta = hands.store.client.redis.hgetall(partition_keys(hands.store.client.prefix, DEFAULT)[8])
    return {name: value for name, value in meta.items() if name.startswith(b"done:")}


class Killed(BaseException):
    """The process ends here."""


def test_the_earliest_go_first_in_batches_of_500(hands: Hands) -> None:
    handles = far.enqueue_many((number,) for number in range(700))
    order = list(range(700))
    random.Random(7).shuffle(order)
    rank = {handle.identity: place for handle, place in zip(handles, order, strict=True)}
    stored = OutboxMessage.objects.all()
    for row in stored:
        row.relay_at_ms = 1_000 + rank[row.message_id.bytes]
    OutboxMessage.objects.bulk_update(stored, ["relay_at_ms"], batch_size=100)
    assert hands.relayer.run_once() == 0.0
    assert {rank[identity] for identity in messages_in(hands.store)} == set(range(500))
    assert hands.relayer.run_once() == Relay.interval
    assert len(messages_in(hands.store)) == 700
    assert hands.relayer.figures == {"sent": 700}


def _note_transaction(notes: list[bool]) -> None:
    notes.append(connection.in_atomic_block)


@pytest.mark.parametrize("status", ["waiting", "cancelled"])
@pytest.mark.parametrize("act", ["run_once", "before_claims"])
def test_a_redis_that_does_not_answer_is_noticed_while_no_row_is_locked(
    hands: Hands, status: str, act: str
) -> None:
    far.enqueue(1)
    OutboxMessage.objects.update(relay_at_ms=1, status=status, may_be_in_redis=True)
    in_transaction: list[bool] = []
    call: Callable[[], Any] = (
        hands.relayer.run_once if act == "run_once" else partial(before_claims, 1)
    )
    with unreachable(partial(_note_transaction, in_transaction)), pytest.raises(StoreUnavailable):
        call()
    assert in_transaction and not any(in_transaction)
    assert get_store().breaker.open


def test_what_is_far_from_due_stays(hands: Hands) -> None:
    far.enqueue(1)
    assert hands.relay() == 0
    assert statuses() == ["waiting"]


def test_it_is_due_when_it_was_to_be_and_carries_its_stamp(hands: Hands) -> None:
    handle = far.using(headers={"a": "b"}, priority="low").enqueue(1)
    OutboxMessage.objects.update(relay_at_ms=1)
    row = OutboxMessage.objects.get()
    hands.relay()
    found = handle.get()
    assert found is not None
    assert (found.due_at, found.headers, found.priority) == (handle.due_at, {"a": "b"}, 2)
    raw = hands.store.client.redis.hget(
        partition_keys(hands.store.client.prefix, DEFAULT)[4], handle.identity
    )
    assert int.from_bytes(raw[:8], "big") == row.enqueued_at_us
    sent = OutboxMessage.objects.get()
    assert sent.status == "sent"
    assert sent.relay_at_ms - hands.store.clock_ms() == pytest.approx(10_000, abs=2_000)


def test_partitions_are_served_together(hands: Hands, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": 4}}}
    crowd.using(durable=True, delay=DAY).enqueue_many((number,) for number in range(40))
    far.enqueue(1)
    near()
    Hands(get_store()).relay()
    assert set(statuses()) == {"sent"}


@pytest.mark.long
def test_two_relays_at_once_send_each_message_once(hands: Hands) -> None:
    far.enqueue_many((number,) for number in range(1_000))
    near()
    relays = [Relay(hands.store) for _ in range(2)]
    together(*(lambda r=r: [r.run_once() for _ in range(3)] for r in relays))
    assert sum(relay.sent for relay in relays) == 1_000
    assert hands.work() + hands.work() == 1_000
    hands.archive()
    assert (sorted(seen), len(rows()), statuses()) == (list(range(1_000)), 1_000, [])


def test_one_relay_does_not_wait_for_the_rows_of_another(hands: Hands) -> None:
    if not connection.features.has_select_for_update_skip_locked:
        pytest.skip("no SKIP LOCKED")
    far.enqueue(1)
    far.enqueue(2)
    near()
    with transaction.atomic():
        assert OutboxMessage.objects.select_for_update().order_by("id").first()
        assert together(hands.relay) == [1]


@pytest.mark.parametrize("moment", ["waits", "runs", "has ended", "is archived"])
def test_a_crash_before_the_mark_makes_no_second_run(hands: Hands, moment: str) -> None:
    far.enqueue(1)
    near()
    _relay_and_die(hands)
    assert statuses() == ["waiting"]
    leases = hands.claim() if moment != "waits" else []
    if moment in ("has ended", "is archived"):
        hands.run(*leases)
    if moment == "is archived":
        hands.archive()
    hands.relay()
    if moment == "runs":
        hands.run(*leases)
    hands.work()
    hands.archive()
    assert (seen, len(rows()), statuses(), hands.work(), done(hands)) == ([1], 1, [], 0, {})


def _relay_and_die(hands: Hands) -> None:
    """Everything is sent, nothing is marked."""

    def die() -> None:
        raise Killed

    with pytest.raises(Killed), before("UPDATE", die):
        hands.relayer.run_once()


@pytest.mark.long
def test_crashes_at_random_points_make_no_second_run(hands: Hands) -> None:
    dice = random.Random(39)
    steps = [
        hands.relay,
        hands.reconcile,
        hands.work,
        hands.archive,
        lambda: _relay_and_die_if_it_can(hands),
    ]
    for number in range(80):
        (far if dice.random() < 0.5 else record.using(durable=True)).enqueue(number)
        near()
        for _ in range(dice.randrange(4)):
            dice.choice(steps)()
    for _ in range(3):
        near()
        hands.relay()
        hands.work()
        hands.archive()
    assert (sorted(seen), len(rows()), statuses()) == (list(range(80)), 80, [])


def _relay_and_die_if_it_can(hands: Hands) -> None:
    if OutboxMessage.objects.filter(status="waiting").exists():
        _relay_and_die(hands)


def test_it_waits_while_redis_is_away(hands: Hands) -> None:
    far.enqueue(1)
    near()
    with unreachable(), pytest.raises(StoreUnavailable):
        hands.relayer.run_once()
    assert statuses() == ["waiting"]
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    assert (hands.relay(), statuses()) == (1, ["sent"])


def test_it_does_not_try_what_the_breaker_knows(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_delayq.store.breaker.PROBE_INTERVAL", 3_600)
    far.enqueue(1)
    near()
    hands.store.breaker.trip()
    assert hands.relayer.run_once() == 0.1
    assert (statuses(), messages_in(hands.store)) == (["waiting"], set())


def test_it_waits_while_the_database_is_away(hands: Hands) -> None:
    far.enqueue(1)
    near()
    with database_away(), pytest.raises(DatabaseUnavailable):
        hands.relayer.run_once()
    assert hands.relay() == 1


def test_a_mark_that_fails_is_made_again(hands: Hands) -> None:
    far.enqueue(1)
    near()
    with failing_commits(1, OperationalError), pytest.raises(DatabaseUnavailable):
        hands.relayer.run_once()
    assert (statuses(), len(messages_in(hands.store))) == (["waiting"], 1)
    hands.relay()
    assert (statuses(), hands.work(), seen) == (["sent"], 1, [1])


def test_a_lost_answer_is_asked_for_again(hands: Hands) -> None:
    far.enqueue(1)
    near()
    with lost_answers(), pytest.raises(Exception, match="broke before the answer came"):
        hands.relayer.run_once()
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    hands.relay()
    hands.work()
    hands.archive()
    assert (seen, only_row().state, statuses()) == ([1], "acked", [])


def test_it_says_what_it_has_enqueued(hands: Hands) -> None:
    heard: list[Any] = []

    def hear(sender: str, events: Any, **_: Any) -> None:
        heard.extend((sender, event.id, event.task, event.key) for event in events)

    signals.enqueued.connect(hear)
    try:
        handle = far.using(key="k").enqueue(1)
        assert heard == []
        near()
        hands.relay()
    finally:
        signals.enqueued.disconnect(hear)
    assert heard == [("default", handle.id, "tests.app.tasks.record", "k")]


def test_what_was_stored_on_an_unknown_outcome_is_one_message(hands: Hands) -> None:
    with lost_answers():
        handle = record.using(delay=60).enqueue(1)
    assert (handle.outcome, statuses(), len(messages_in(hands.store))) == ("outbox", ["waiting"], 1)
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    hands.relay()
    assert (statuses(), len(messages_in(hands.store))) == (["sent"], 1)
    assert hands.reconcile() == 0


class ToTheDefault:
    """An ordinary router: it sends every write somewhere, and that is not DATABASE."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "other"

    db_for_write = db_for_read


def test_no_router_is_asked_where_the_rows_are(hands: Hands, settings: Any) -> None:
    record.using(key="k", delay=60).enqueue("live")
    record.using(durable=True, key="k").enqueue("waits for the other")
    far.enqueue(1)
    near()
    settings.DATABASE_ROUTERS = ["tests.outbox.test_relay.ToTheDefault"]
    assert hands.relay() == 2
    assert sorted(statuses()) == ["sent", "waiting"]
    assert OutboxMessage.objects.get(status="waiting").relay_at_ms > hands.store.clock_ms()


def test_a_redis_that_does_not_answer_holds_the_rows_once_and_not_for_each_partition(
    hands: Hands, split: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = split(8)
    crowd.using(durable=True, delay=DAY).enqueue_many((number,) for number in range(100))
    near()
    asked: list[Partition] = []

    def freeze(partition: Partition, *rest: Any) -> Any:
        asked.append(partition)
        raise StoreUnavailable

    monkeypatch.setattr(relay, "LONG", 0.0)
    monkeypatch.setattr(store, "enqueue", freeze)
    with pytest.raises(StoreUnavailable):
        Relay(store).run_once()
    assert len(asked) == 1
    assert min(OutboxMessage.objects.values_list("relay_at_ms", flat=True)) > 1


@pytest.mark.skipif(connection.vendor != "sqlite", reason="the others lock rows")
@pytest.mark.parametrize("service", ["relayer", "reconciler"])
def test_nobody_writes_between_a_look_and_a_send(
    service: str, hands: Hands, monkeypatch: pytest.MonkeyPatch, deferred: None
) -> None:
    """In Django's default transaction mode SQLite locks nothing before the first write."""
    handle = far.enqueue("cancelled")
    near()
    if service == "reconciler":
        OutboxMessage.objects.update(status="sent")
    seen_by_others: list[bool] = []

    def send(*_: Any) -> list[Any]:
        seen_by_others.append(apart(can_write))
        return []

    def can_write() -> bool:
        try:
            OutboxMessage.objects.filter(message_id=handle.id).update(relay_at_ms=1)
        except OperationalError:
            return False
        return True

    monkeypatch.setattr(relay, "send", send)
    getattr(hands, service).run_once()
    assert seen_by_others == [False]


@pytest.fixture
def deferred() -> Iterator[None]:
    options = connection.settings_dict["OPTIONS"]
    told = dict(options)
    _journal("WAL")  # readers then hold up no writer
    connection.close()
    options |= {"transaction_mode": "DEFERRED", "timeout": 0.05}
    yield
    connection.close()
    options |= told
    _journal("DELETE")


def _journal(mode: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"PRAGMA journal_mode = {mode}")
        assert cursor.fetchone() == (mode.lower(),)


# Before a worker claims


def test_a_cancel_kept_in_an_outage_is_said_before_anything_is_claimed(hands: Hands) -> None:
    handle = record.using(key="k", delay=0).enqueue("cancelled")
    with unreachable():
        handle.cancel()
        record.using(key="k", delay=0).enqueue("new")
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    before_claims(5.0)
    hands.work()
    assert seen == ["new"]


def test_it_waits_for_no_longer_than_it_may(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = record.using(key="k", delay=600).enqueue("x")
    with unreachable():
        handle.cancel()
    monkeypatch.setattr("django_delayq.outbox.postponed.apply_all", lambda: False)
    begun = time.monotonic()
    before_claims(0.1)
    assert 0.1 <= time.monotonic() - begun < 5


@pytest.mark.parametrize(("size", "found"), [(1, {"waiting"}), (32_000, {"waiting", "sent"})])
def test_what_a_broken_round_has_stored_is_cancelled_there_too(
    hands: Hands, size: int, found: set[str]
) -> None:
    handles = far.enqueue_many((secrets.token_hex(size),) for _ in range(20))
    near()
    with lost_answers(), pytest.raises(OutcomeUnknown):  # of the first of one call, or of three
        hands.relayer.run_once()
    assert len(messages_in(hands.store)) == 20
    assert set(statuses()) == found
    with unreachable():
        assert all(handle.cancel() for handle in handles)
    hands.store.breaker.opened_in = 0
    OutboxMessage.objects.update(relay_at_ms=1)
    hands.relay()
    hands.work()
    assert seen == []
