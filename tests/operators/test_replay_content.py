"""Replaying dead letters: keys, due times, edited arguments, what cannot be replayed, and
memory."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection

from django_delayq.core.conf import get_settings
from django_delayq.core.exceptions import InvalidMessage, StoreUnavailable
from django_delayq.core.message import key_id
from django_delayq.models import ArchivedMessage, OperatorAction, OutboxMessage
from django_delayq.operators import replayer as module
from django_delayq.operators.replay import discard, replay
from django_delayq.outbox.relay import Relay
from django_delayq.store import get_store
from django_delayq.store.store import RedisStore
from tests.app.tasks import crowd, record
from tests.faults import unreachable
from tests.operators.test_replay import bodies, dead, origins

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("delayq"),
]


# Keys


def test_a_message_keeps_its_key_and_so_its_id() -> None:
    dead(key="k")
    assert replay(state="dead").count == 1
    row = OutboxMessage.objects.get()
    assert (row.key, row.message_id.bytes, row.on_duplicate) == (
        "k",
        key_id("default", "k"),
        "keep",
    )
    assert bodies()[0].key == "k"


def test_a_key_that_is_live_in_redis_is_left_alone() -> None:
    record.using(key="k", delay=60).enqueue("newer")
    dead(key="k")
    done = replay(state="dead")
    assert (done.count, done.skipped) == (0, {"key live": 1})
    assert ArchivedMessage.objects.get().replayed_at is None


def test_a_key_that_is_live_in_an_old_partition_is_left_alone(settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": 2}}}
    crowd.using(key="k", delay=60).enqueue(1)
    crowd.using(key="l", delay=60).enqueue(1)
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": 7}}}
    for key in ("k", "l", "m"):
        dead(key=key, topic="crowd", task="tests.app.tasks.crowd", body='{"args":[2],"kwargs":{}}')
    done = replay(topic="crowd")
    assert (done.count, done.skipped) == (1, {"key live": 2})
    assert OutboxMessage.objects.get().key == "m"


def test_a_key_that_is_live_in_the_outbox_is_left_alone() -> None:
    record.using(key="k", delay=100_000, durable=True).enqueue("newer")
    dead(key="k")
    (free,) = dead(key="l")
    done = replay(state="dead")
    assert (done.count, done.skipped) == (1, {"key live": 1})
    assert ArchivedMessage.objects.exclude(replayed_by=None).get().pk == free
    assert OutboxMessage.objects.count() == 2


def test_of_several_rows_with_a_key_the_newest_is_replayed_and_the_others_never(
    delayq: RedisStore,
) -> None:
    pks = dead(600, key="k")
    done = replay(state="dead")
    assert (done.count, done.skipped) == (1, {"newer one with this key": 599})
    assert origins() == pks[-1:]
    OutboxMessage.objects.all().delete()
    assert replay(state="dead").skipped == {"newer one with this key": 599, "already replayed": 1}


def test_a_discarded_row_does_not_stand_for_its_key() -> None:
    older, newer = dead(2, key="k")
    discard(pk=newer, reason="wrong")
    assert replay(state="dead").count == 1
    assert origins() == [older]


def test_a_message_with_the_key_that_comes_before_the_relay_wins(delayq: RedisStore) -> None:
    dead(key="k")
    replay(state="dead")
    record.using(key="k", delay=60).enqueue("newer")
    Relay(delayq).run_once()
    found = record.get(key="k")
    assert found is not None
    assert found.args == ["newer"]
    assert not OutboxMessage.objects.exists()
    given_up = ArchivedMessage.objects.get(state="cancelled")
    assert given_up.reason == "duplicate"
    assert given_up.replay_of == ArchivedMessage.objects.get(state="dead").pk


def test_without_redis_only_keys_have_to_wait() -> None:
    dead()
    assert get_store().now_us()
    with unreachable():
        assert replay(state="dead").count == 1
        dead(key="k")
        with pytest.raises(StoreUnavailable):
            replay(state="dead", replayed_at=None)
    assert len(origins()) == 1


# Due times


def test_delay_is_that_of_every_message(delayq: RedisStore) -> None:
    dead(2)
    before = delayq.now_us() // 1000
    replay(state="dead", delay=30)
    for due_ms in OutboxMessage.objects.values_list("due_at_ms", flat=True):
        assert before + 30_000 <= due_ms <= delayq.now_us() // 1000 + 30_001


@pytest.mark.long
def test_rate_spreads_the_due_times_over_all_transactions(
    delayq: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 5_000)
    pks = dead(1_001)
    before = delayq.now_us() // 1000
    replay(state="dead", rate=100, delay=5)
    dues = sorted(OutboxMessage.objects.values_list("due_at_ms", flat=True))
    assert {later - due for due, later in pairwise(dues)} == {10}
    assert before + 5_000 <= dues[0] <= delayq.now_us() // 1000 + 5_001
    assert [body.replay_of for body in bodies()] == pks


def test_what_is_due_beyond_the_horizon_waits_in_the_outbox(delayq: RedisStore) -> None:
    dead(3)
    replay(state="dead", rate=1 / 7200)  # due now, in two hours and in four
    Relay(delayq).run_once()
    rows = OutboxMessage.objects.order_by("due_at_ms")
    assert [row.status for row in rows] == ["sent", "waiting", "waiting"]
    last = rows[2]
    assert last.relay_at_ms == last.due_at_ms - get_settings().horizon * 1000


def test_a_replayed_message_does_not_expire_even_if_its_task_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        record, "options", record.options.changed({"expires": 5, "on_duplicate": "replace"})
    )
    dead(key="k")
    replay(state="dead")
    row = OutboxMessage.objects.get()
    assert (row.expires_at_ms, row.on_duplicate) == (0, "keep")


# Edited


def test_edited_arguments_are_sent_and_none_leaves_them() -> None:
    first, second = dead(2, error_message="no such order")
    edit = {first: (["y"], {}), second: None}

    def mend(row: ArchivedMessage) -> Any:
        assert row.error_message == "no such order"
        return edit[row.pk]

    assert replay(state="dead", edit=mend).count == 2
    assert {body.replay_of: body.args for body in bodies()} == {first: ["y"], second: ["x"]}


@pytest.mark.parametrize(
    ("edited", "words"),
    [
        (([1, 2, 3], {}), "cannot be called so"),
        (([], {"nonsense": 1}), "cannot be called so"),
        (([object()], {}), "of type object"),
        ((["x" * 70_000], {}), "the limit is 65,536"),
        (["x"], "edit returns"),
        ((["x"], None), "edit returns"),
        (("x", {}), "edit returns"),
    ],
)
def test_refused_edits_name_the_row_and_nothing_of_the_transaction_is_replayed(
    edited: Any, words: str
) -> None:
    pks = dead(502)
    with pytest.raises(InvalidMessage, match=f"Archived message {pks[-1]}: .*{words}"):
        replay(state="dead", edit=lambda row: edited if row.pk == pks[-1] else None)
    assert origins() == pks[:500]
    assert OperatorAction.objects.get().count == 500
    assert ArchivedMessage.objects.filter(replayed_at=None).count() == 2


# Skipped


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"task": "tests.app.tasks.no_more"}, "unknown task"),
        ({"topic": "retired"}, "unknown topic"),
        ({"body": '{"args":[],"kwargs":{},"redaction":"failed"}'}, "redacted"),
        ({"body": '{"record":"AAAA"}'}, "undecodable"),
        ({"body": "{"}, "undecodable"),
        ({"headers": "[]"}, "undecodable"),
        ({"body": '{"args":[1,2,3],"kwargs":{}}'}, "arguments refused"),
        ({"body": json.dumps({"args": ["x" * 70_000], "kwargs": {}})}, "arguments refused"),
    ],
)
def test_what_cannot_be_replayed_is_skipped_and_counted(values: dict[str, Any], why: str) -> None:
    dead(**values)
    (good,) = dead()
    done = replay(state="dead")
    assert (done.count, done.skipped) == (1, {why: 1})
    assert origins() == [good]
    assert ArchivedMessage.objects.filter(replayed_at=None).count() == 1


def test_a_key_that_the_archive_could_not_write_is_not_taken_for_another(
    delayq: RedisStore,
) -> None:
    dead(key="k")
    ArchivedMessage.objects.update(key="\\0k")
    assert replay(state="dead").skipped == {"undecodable": 1}


def test_an_unknown_topic_stays_unknown_to_redis(delayq: RedisStore) -> None:
    dead(topic="retired", key="k")
    replay(state="dead")
    assert "retired" not in delayq.topics.names()


def test_edited_arguments_take_the_place_of_redacted_ones() -> None:
    dead(body='{"args":[],"kwargs":{},"redaction":"failed"}')
    assert replay(state="dead", edit=lambda row: (["restored"], {})).count == 1
    assert bodies()[0].args == ["restored"]


# Memory


@pytest.mark.long
def test_a_replay_holds_few_bodies_at_a_time(settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "COMPRESS_ABOVE": 1_000_000}
    body = json.dumps({"args": ["x" * 20_000], "kwargs": {}})
    count = 1_000  # 20 MB
    dead(count, body=body)
    tracemalloc.start()
    done = replay(state="dead")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert done.count == count
    if connection.vendor == "sqlite":  # others' drivers keep what the server sent
        assert peak < 15_000_000
