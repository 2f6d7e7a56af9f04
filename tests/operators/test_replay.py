"""Replaying dead letters: each becomes one new message that names its origin, and no row is
replayed twice."""

from __future__ import annotations

import json
import threading
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection, connections

from django_delayq.archive.archiver import Archiver
from django_delayq.core.message import Body, Record, decode_body, key_id
from django_delayq.models import ArchivedMessage, OperatorAction, OutboxMessage
from django_delayq.operators import walk as module
from django_delayq.operators.replay import discard, replay
from django_delayq.outbox.relay import Relay
from django_delayq.store.store import RedisStore
from tests.app.tasks import close_order
from tests.hands import stored

LONG_AGO = datetime(2001, 9, 9, tzinfo=timezone.utc)

pytestmark = [
    pytest.mark.databases,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("delayq"),
]


def dead(count: int = 1, **values: Any) -> list[int]:
    """Rows of dead letters; with a key, lives of that key one second apart. Returns their ids."""
    common = {
        "topic": "default",
        "partition": 0,
        "task": "tests.app.tasks.record",
        "state": "dead",
        "body": '{"args":["x"],"kwargs":{}}',
        "ttr_ms": 60_000,
        "due_at": LONG_AGO,
        "finished_at": LONG_AGO,
        "error_class": "ValueError",
    } | values
    common = {
        name: stored(value) if isinstance(value, datetime) else value
        for name, value in common.items()
    }
    key = key_id(common["topic"], values["key"]) if "key" in values else None
    rows = [
        ArchivedMessage(
            message_id=UUID(bytes=key) if key else uuid4(),
            enqueued_at=stored(LONG_AGO + timedelta(seconds=number)),
            **common,
        )
        for number in range(count)
    ]
    before = max(ArchivedMessage.objects.values_list("pk", flat=True), default=0)
    ArchivedMessage.objects.bulk_create(rows, batch_size=500)
    return list(
        ArchivedMessage.objects.filter(pk__gt=before).order_by("pk").values_list("pk", flat=True)
    )


def bodies() -> list[Body]:
    """Of the messages in the outbox, in the order in which they are due."""
    records = [
        bytes(8 + 6) + bytes(row.record)
        for row in OutboxMessage.objects.order_by("due_at_ms", "pk")
    ]
    return [decode_body(record.flags, record.body, b"") for record in map(Record.decode, records)]


def origins() -> list[int]:
    """The ids of the rows that the messages in the outbox replay, sorted."""
    return sorted(body.replay_of or 0 for body in bodies())


def run_one(store: RedisStore, topic: str, *, fails: bool = False) -> Any:
    """Claim the only due message, end it and archive it. Returns its lease."""
    (lease,) = [
        lease for part in store.partitions.all(topic) for lease in store.claim(part, 10).leases
    ]
    if fails:
        detail = b'{"worker":"w","error":"requests.exceptions.Timeout","message":"late"}'
        store.nack(lease.partition, [(lease, None, True, detail)])
    else:
        store.ack(lease.partition, [(lease, b'{"worker":"w"}')])
    Archiver(store, "tests").run_once()
    return lease


# One message


def test_a_dead_letter_is_run_again_as_what_it_was(delayq: RedisStore) -> None:
    close_order.using(
        due_at=LONG_AGO,
        priority="high",
        ttr=7,
        max_attempts=9,
        headers={"trace": "a1"},
        expires=datetime.now(timezone.utc) + timedelta(1),
    ).enqueue(5, reason="late")
    run_one(delayq, "orders", fails=True)
    origin = ArchivedMessage.objects.get(state="dead")

    done = replay(topic="orders")
    assert (done.count, done.skipped) == (1, {})
    Relay(delayq).run_once()
    lease = run_one(delayq, "orders")

    again = ArchivedMessage.objects.get(state="acked")
    same = ("topic", "task", "key", "body", "headers", "priority", "ttr_ms", "max_attempts")
    assert [getattr(again, name) for name in same] == [getattr(origin, name) for name in same]
    assert (origin.priority, origin.ttr_ms, origin.max_attempts, origin.headers) == (
        0,
        7000,
        9,
        '{"trace":"a1"}',
    )
    assert again.replay_of == origin.pk
    assert again.message_id != origin.message_id
    assert Record.decode(lease.record).expires_at_ms == 0
    origin.refresh_from_db()
    assert origin.replayed_by == again.message_id
    assert origin.replayed_at is not None
    assert not OutboxMessage.objects.exists()


def test_a_message_without_limits_of_its_own_gets_those_of_its_task(delayq: RedisStore) -> None:
    dead(max_attempts=None, headers="", priority=2)
    replay(task="tests.app.tasks.record")
    ((row, body),) = zip(OutboxMessage.objects.all(), bodies(), strict=True)
    assert (body.args, body.kwargs, body.max_attempts, body.headers) == (["x"], {}, None, {})
    assert (row.status, row.expires_at_ms, bytes(row.record)[0] & 3) == ("waiting", 0, 2)


def test_a_message_goes_to_its_own_topic() -> None:
    dead(topic="orders")
    replay(task="tests.app.tasks.record")
    assert OutboxMessage.objects.get().topic == "orders"


def test_a_replayed_message_stands_behind_what_the_outbox_has_to_send(delayq: RedisStore) -> None:
    dead()
    now_ms = delayq.now_us() // 1000
    replay(state="dead")
    assert OutboxMessage.objects.get().relay_at_ms >= now_ms


def test_headers_travel() -> None:
    dead(headers=json.dumps({"trace": "é"}))
    replay(state="dead")
    assert bodies()[0].headers == {"trace": "é"}


# Once


def test_what_is_replayed_twice_runs_once() -> None:
    pks = dead(3)
    assert replay(topic="default").count == 3
    again = replay(topic="default")
    assert (again.count, again.skipped) == (0, {"already replayed": 3})
    assert origins() == pks


def test_force_replays_what_was_replayed_or_discarded() -> None:
    replayed, discarded = dead(2)
    replay(pk=replayed)
    discard(pk=discarded, reason="no")
    assert replay(state="dead").skipped == {"already replayed": 1, "discarded": 1}
    assert replay(state="dead", force=True).count == 2
    assert origins() == [replayed, replayed, discarded]


def test_only_dead_letters_are_replayed() -> None:
    for state in ("acked", "cancelled", "expired"):
        dead(state=state)
    (pk,) = dead()
    done = replay(ArchivedMessage.objects.all())
    assert (done.count, done.skipped) == (1, {"not dead": 3})
    assert origins() == [pk]


@pytest.mark.long
def test_an_interrupted_replay_goes_on_where_it_was() -> None:
    pks = dead(1_200)
    calls: list[int] = []

    def interrupt(row: ArchivedMessage) -> None:
        calls.append(row.pk)
        if len(calls) == 700:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(topic="default", edit=interrupt)
    assert origins() == pks[:500]
    assert ArchivedMessage.objects.filter(replayed_at=None).count() == 700
    action = OperatorAction.objects.get()
    assert (action.count, action.finished_at) == (500, None)

    assert replay(topic="default").count == 700
    assert origins() == pks


def test_a_row_that_another_transaction_holds_is_left_to_it() -> None:
    if not connection.features.has_select_for_update_skip_locked:
        pytest.skip("this database has no SKIP LOCKED")
    first, second = dead(2)
    inside, over = threading.Event(), threading.Event()

    def hold(row: ArchivedMessage) -> None:
        inside.set()
        over.wait(20)

    def other() -> None:
        replay(pk=first, edit=hold)
        connections.close_all()

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(20)
    done = replay(topic="default")
    over.set()
    thread.join()
    assert (done.count, done.skipped) == (1, {"locked or deleted": 1})
    assert origins() == [first, second]


@pytest.mark.long
def test_two_replays_at_the_same_time_send_each_message_once() -> None:
    pks = dead(1_500)
    counts: list[int] = []
    start = threading.Barrier(2)

    def run() -> None:
        start.wait()
        counts.append(replay(topic="default").count)
        connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 1_500
    assert origins() == pks


def test_what_dies_during_a_replay_is_not_replayed_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 1)
    pks = dead(2)

    def die_again(row: ArchivedMessage) -> None:
        dead()

    assert replay(topic="default", edit=die_again, limit=10).count == 2
    assert origins() == pks
