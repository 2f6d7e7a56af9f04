"""Encrypted bodies in Redis, in the outbox and in the archive, and all that is done with them."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_delayq import delayed_task
from django_delayq.archive.erasure import Person
from django_delayq.archive.search import every_row
from django_delayq.archive.selection import Selection
from django_delayq.client import changes
from django_delayq.client.moving import move_topic
from django_delayq.core.exceptions import DuplicateMessage
from django_delayq.models import ArchivedMessage, OutboxMessage
from django_delayq.operators.erase import erase
from django_delayq.operators.replay import replay
from tests.app.tasks import act, answer, close_order, record, seen
from tests.hands import DAY, ORDERS, Hands, lose_redis, only_row, prefix_keys, rows

FIRST = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY"
SECOND = "MDEyMzQ1Njc4OUFCQ0RFRjAxMjM0NTY3ODlBQkNERUY"
MARKER = "plain-text-marker"


@pytest.fixture(autouse=True)
def encrypted(settings: Any, hands: Hands) -> Any:
    """Sets the keys."""

    def of(*given: str) -> None:
        settings.DELAYQ = {**settings.DELAYQ, "ENCRYPTION_KEYS": given}

    of(FIRST)
    return of


def remember(value: Any) -> None:
    seen.append(value)


def everything(hands: Hands) -> bytes:
    """All bytes that Redis and the tables have."""
    redis = hands.store.client.redis
    found = [redis.dump(key) or b"" for key in prefix_keys(hands.store)]
    for key in prefix_keys(hands.store):
        kind = redis.type(key)
        if kind == b"hash":
            found += [part for pair in redis.hgetall(key).items() for part in pair]
        elif kind == b"stream":
            found.append(repr(redis.xrange(key)).encode())
    for model in (OutboxMessage, ArchivedMessage):
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {model._meta.db_table}")
            found += [
                bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()
                for row in cursor.fetchall()
                for value in row
            ]
    return b"\n".join(found)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("value", [MARKER, MARKER * 200])
def test_no_plain_text_is_stored_and_the_task_gets_it(
    hands: Hands, durable: bool, value: str
) -> None:
    handle = record.using(durable=durable).enqueue(value)
    hands.relay()
    assert MARKER.encode() not in everything(hands)
    assert handle.get().args == [value]
    hands.work()
    assert MARKER.encode() not in everything(hands), "neither of what has ended"
    hands.archive()
    assert seen == [value] and only_row().state == "acked"
    assert MARKER.encode() not in everything(hands)
    assert json.loads(only_row().body)["redaction"] == "encrypted"


def test_the_append_only_file_has_no_plain_text(hands: Hands) -> None:
    redis = hands.store.client.redis
    redis.config_set("appendonly", "yes")
    try:
        record.enqueue(MARKER)
        redis.config_set("appendfsync", "always")
        record.enqueue(MARKER)
        place = redis.config_get("dir")["dir"]
        files = [path for path in Path(place).rglob("*aof*") if path.is_file()]
        text = b"".join(path.read_bytes() for path in files)
        assert files and hands.store.client.prefix.encode() in text
        assert MARKER.encode() not in text
    finally:
        redis.config_set("appendonly", "no")


def test_messages_of_before_still_run(hands: Hands, encrypted: Any) -> None:
    encrypted()
    record.enqueue("before")
    encrypted(FIRST)
    record.enqueue("after")
    hands.work()
    assert sorted(seen) == ["after", "before"]
    hands.archive()
    assert b"before" not in everything(hands), "its row is encrypted all the same"


def test_keys_are_rotated(hands: Hands, encrypted: Any) -> None:
    record.enqueue(1)
    encrypted(SECOND, FIRST)
    record.enqueue(2)
    hands.work()
    assert sorted(seen) == [1, 2]


def test_a_missing_key_waits_for_a_worker_that_has_it(hands: Hands, encrypted: Any) -> None:
    handle = record.enqueue(1)
    encrypted(SECOND)
    hands.work()
    assert seen == []
    located = hands.store.find("default", bytes.fromhex(handle.id))
    assert located is not None and located.found.attempts.runs[0]["outcome"] == "put off"


def test_a_missing_key_is_a_dead_letter_in_the_end_and_keeps_the_body(
    hands: Hands, encrypted: Any, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "UNKNOWN_TASK_GRACE": 0}
    record.enqueue(1)
    encrypted(SECOND)
    Hands(hands.store).work()
    hands.archive()
    row = only_row()
    assert (row.state, row.reason, row.error_class.rpartition(".")[2]) == (
        "dead",
        "undecryptable",
        "MissingKey",
    )
    assert replay(ArchivedMessage.objects.all()).skipped == {"undecryptable": 1}
    encrypted(SECOND, FIRST)
    assert replay(ArchivedMessage.objects.all()).count == 1
    hands.relay()
    hands.work()
    assert seen == [1], "with the key again"


def test_bodies_that_were_swapped_are_dead_letters(hands: Hands) -> None:
    handles = [record.enqueue(number) for number in (1, 2)]
    name = f"{hands.store.client.prefix}:{{default:0}}:messages"
    redis, ids = hands.store.client.redis, [bytes.fromhex(handle.id) for handle in handles]
    first, second = redis.hmget(name, ids)
    redis.hset(name, mapping={ids[0]: second, ids[1]: first})
    hands.work()
    hands.archive()
    assert seen == []
    assert {(row.state, row.reason) for row in rows()} == {("dead", "undecryptable")}


def test_repeating_an_enqueue_finds_what_it_has_sent(hands: Hands) -> None:
    handle = record.using(delay=DAY).enqueue(MARKER)
    again = record.using(delay=DAY, id=handle.id)
    assert again.enqueue(MARKER).id == handle.id
    with pytest.raises(DuplicateMessage):
        again.enqueue("another")


def test_edit_replace_and_reschedule(hands: Hands) -> None:
    handle = close_order.using(delay=DAY, key="order:1").enqueue(1)
    changes.edit("orders", handle.id, [2], {"reason": MARKER})
    assert MARKER.encode() not in everything(hands)
    assert handle.get().kwargs == {"reason": MARKER}
    close_order.using(delay=DAY, key="order:1", on_duplicate="replace").enqueue(3, reason=MARKER)
    close_order.reschedule(key="order:1", delay=timedelta(0))
    hands.work(ORDERS)
    assert seen == [(3, MARKER)]


def test_an_edit_of_what_only_the_outbox_has(hands: Hands) -> None:
    handle = close_order.using(delay=40 * DAY, durable=True).enqueue(1)
    changes.edit("orders", handle.id, [2], {"reason": MARKER})
    assert MARKER.encode() not in everything(hands)
    assert handle.get().args == [2]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("delay", [0, 40 * DAY])
def test_a_message_that_moves_to_another_topic_is_encrypted_for_its_new_id(
    hands: Hands, declared: Any, durable: bool, delay: int
) -> None:
    record.using(delay=delay, key="k", durable=durable, topic="default").enqueue(MARKER)
    record.using(delay=delay, durable=durable).enqueue("without key")
    if durable and not delay:
        hands.relay()
    done = move_topic("default", "orders")
    assert (done.moved, done.unreadable) == (2, 0)
    assert MARKER.encode() not in everything(hands)
    found = record.using(topic="orders").get(key="k")
    assert found is not None and found.args == [MARKER]
    if not delay:
        hands.relay()
        hands.work(ORDERS)
        assert sorted(seen) == [MARKER, "without key"]


def test_what_redis_has_lost_is_sent_again(hands: Hands) -> None:
    record.using(durable=True).enqueue(MARKER)
    hands.relay()
    lose_redis(hands.store)
    assert hands.reconcile() == 1
    hands.relay()
    hands.work()
    assert seen == [MARKER]


def test_many_messages_and_results(hands: Hands) -> None:
    record.enqueue_many([(number,) for number in range(3)])
    handle = answer.enqueue({"a": 1})
    hands.work()
    hands.archive()
    assert sorted(seen) == [0, 1, 2]
    assert handle.wait(timeout=0.1) is not None


def test_a_run_in_exactly_once_and_its_row(hands: Hands, declared: Any) -> None:
    once = delayed_task(exactly_once=True, name="once")(remember)
    once.enqueue(MARKER)
    Hands(hands.store).work()
    assert seen == [MARKER]
    assert MARKER.encode() not in everything(hands)


def test_a_dead_letter_is_found_by_its_arguments_replayed_and_edited(hands: Hands) -> None:
    act.using(max_attempts=1).enqueue("fail")
    for partition in hands.store.topics.used_partitions():
        hands.work(partition)
    hands.archive()
    row = only_row()
    period: Any = {"since": row.finished_at, "task": act.name}
    assert [
        one.pk for one in every_row(Selection(argument="mode", value="fail", **period), ("task",))
    ] == [row.pk]
    assert list(every_row(Selection(argument="mode", value="return", **period), ("task",))) == []
    done = replay(ArchivedMessage.objects.all(), edit=lambda row: (("return",), {}))
    assert done.count == 1


def test_a_persons_data_is_erased(hands: Hands) -> None:
    record.using(delay=DAY).enqueue(MARKER)
    record.enqueue(MARKER)
    record.enqueue("somebody else's")
    hands.work()
    hands.archive()
    done = erase(Person(argument="value", value=MARKER), by="olga", wait=0)
    assert {name: place.count for name, place in done.places.items()}["archive"] == 2
    left = [row for row in rows() if "erased" not in row.body]
    assert len(left) == 1
