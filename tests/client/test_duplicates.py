"""Sending under a key or an id that is live, or that may have been stored already."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq import topic_stats
from django_delayq.core import exceptions
from django_delayq.store.store import RedisStore
from tests.app.tasks import noop, record
from tests.faults import lost_answers
from tests.sending import LONG_AGO, ack, claim, sent

# Duplicates


def test_live_key_is_refused_by_default(delayq: RedisStore) -> None:
    record.using(key="k", delay=60).enqueue("a")
    with pytest.raises(
        exceptions.DuplicateMessage,
        match=r"already live, or still in its window\. Pass on_duplicate=\"keep\"",
    ) as caught:
        record.using(key="k").enqueue("a")
    assert caught.value.keys == ("k",)
    assert sent() == ["a"]


def test_key_belongs_to_its_topic(delayq: RedisStore) -> None:
    record.using(key="k", delay=60).enqueue("a")
    record.using(key="k", topic="orders", delay=60).enqueue("b")
    assert (sent(), sent("orders")) == (["a"], ["b"])


def test_key_is_free_again_when_its_message_is_done(delayq: RedisStore) -> None:
    record.using(key="k", due_at=LONG_AGO).enqueue("a")
    ack(claim()[0])
    assert record.using(key="k").enqueue("b").outcome == "stored"


def test_keep_leaves_the_waiting_message_and_its_time(delayq: RedisStore) -> None:
    keyed = record.using(key="k", on_duplicate="keep")
    first = keyed.using(delay=60).enqueue("a")
    second = keyed.using(delay=5).enqueue("b")
    assert (second.id, second.outcome, second.due_at) == (first.id, "kept", None)
    message = keyed.get(key="k")
    assert message is not None
    assert (message.args, message.due_at) == (["a"], first.due_at)


def test_replace_gives_new_arguments_and_time(delayq: RedisStore) -> None:
    keyed = record.using(key="k", on_duplicate="replace")
    keyed.using(delay=5).enqueue("a")
    second = keyed.using(delay=60).enqueue("b")
    message = second.get()
    assert message is not None
    assert (second.outcome, message.args, message.due_at) == ("replaced", ["b"], second.due_at)
    assert topic_stats("default").delayed == 1


def test_replace_while_it_runs_follows_the_run(delayq: RedisStore) -> None:
    keyed = record.using(key="k", on_duplicate="replace", due_at=LONG_AGO)
    keyed.enqueue("a")
    lease = claim()[0]
    assert [keyed.enqueue(value).outcome for value in ("b", "c")] == ["follows", "follows"]
    assert sent() == []
    ack(lease)
    assert sent() == ["c"]


def test_raise_and_keep_while_it_runs(delayq: RedisStore) -> None:
    keyed = record.using(key="k", due_at=LONG_AGO)
    keyed.enqueue("a")
    lease = claim()[0]
    with pytest.raises(exceptions.DuplicateMessage):
        keyed.enqueue("b")
    assert keyed.using(on_duplicate="keep").enqueue("c").outcome == "kept"
    ack(lease)
    assert sent() == []


def test_many_duplicates_are_named_in_part_and_counted(delayq: RedisStore) -> None:
    calls = [record.using(key=f"k{number:02}", delay=60).prepare(number) for number in range(33)]
    record.enqueue_many(calls)
    with pytest.raises(
        exceptions.DuplicateMessage, match=r"'k09' and 23 more: already live"
    ) as caught:
        record.enqueue_many(calls)
    assert len(caught.value.keys) == 33


# Unknown outcomes


@pytest.mark.usefixtures("raising")
@pytest.mark.parametrize("key", [None, "k"])
def test_repeating_an_unknown_enqueue_by_its_id_stores_it_once(
    delayq: RedisStore, key: str | None
) -> None:
    task = record.using(delay=60, key=key)
    with (
        lost_answers() as lost,
        pytest.raises(exceptions.EnqueueUnknown, match=r"again with using\(id=") as caught,
    ):
        task.enqueue("x")
    assert len(lost) == 1
    handle = task.using(id=caught.value.ids[0]).enqueue("x")
    assert (handle.id, handle.outcome) == (caught.value.ids[0], "stored")
    assert sent() == ["x"]
    assert topic_stats("default").counters["enqueued"] == 1


@pytest.mark.usefixtures("raising")
def test_repeating_a_whole_unknown_batch_is_safe(delayq: RedisStore) -> None:
    with lost_answers(), pytest.raises(exceptions.EnqueueUnknown) as caught:
        record.enqueue_many([(n,) for n in range(5)])
    record.enqueue_many([record.using(id=i).prepare(n) for n, i in enumerate(caught.value.ids)])
    assert sent() == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("raising")
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_unknown_part_of_many_is_told_apart_from_what_was_sent(
    delayq: RedisStore, lost: int
) -> None:
    noop.enqueue()
    with lost_answers(times=lost), pytest.raises(exceptions.EnqueueUnknown) as caught:
        record.enqueue_many([(n,) for n in range(1234)])
    sent_ids = {handle.id for handle in caught.value.enqueued}
    assert not sent_ids & set(caught.value.ids)
    assert len(caught.value.ids) == 500
    stored = topic_stats("default").counters["enqueued"] - 1
    assert len(sent_ids) + 500 <= stored <= 1234


def test_other_message_under_the_same_id_is_refused(delayq: RedisStore) -> None:
    handle = record.using(delay=60).enqueue("a")
    with pytest.raises(exceptions.DuplicateMessage):
        record.using(id=handle.id).enqueue("b")
    assert sent() == ["a"]


@pytest.mark.parametrize("by", ["call", "setting"])
def test_unreachable_redis_says_that_nothing_was_sent(settings: Any, by: str) -> None:
    how = "raise" if by == "setting" else "spill"
    settings.DELAYQ = {"REDIS": "redis://:secret@127.0.0.1:1/0", "ON_REDIS_ERROR": how}
    task = noop.using(on_redis_error="raise") if by == "call" else noop
    with pytest.raises(
        exceptions.StoreUnavailable, match=r"Cannot reach Redis at redis://:\*\*\*@127.0.0.1:1/0"
    ):
        task.enqueue()
