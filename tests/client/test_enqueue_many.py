"""Sending many: in batches, each to its topic, and what is told of the rest when one is refused."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import transaction

from django_delayq import topic_stats
from django_delayq.client.sender import MOST_ON_ITS_WAY
from django_delayq.core import exceptions
from django_delayq.store import get_store
from django_delayq.store.store import RedisStore
from tests.app.tasks import close_order, crowd, noop, record
from tests.faults import scripts_run
from tests.sending import sent, with_transactions


def test_many_of_all_kinds(delayq: RedisStore) -> None:
    elements: list[Any] = [(n,) for n in range(600)]
    elements += [{"value": n} for n in range(600, 1200)]
    elements += [record.using(delay=60, key=f"k{n}").prepare(n) for n in range(1200, 1233)] + [
        [1233]
    ]
    handles = record.enqueue_many(iter(elements))
    assert len({handle.id for handle in handles}) == len(handles) == 1234
    assert topic_stats("default").counters["enqueued"] == 1234
    assert topic_stats("default").delayed == 33
    assert {handle.outcome for handle in handles} == {"stored"}
    first, last, keyed = handles[0].get(), handles[-1].get(), record.get(key="k1200")
    assert first and last and keyed
    assert (first.args, last.args, keyed.args, keyed.id) == ([0], [1233], [1200], handles[1200].id)
    middle = handles[700].get()
    assert middle is not None
    assert middle.kwargs == {"value": 700}


def test_many_leave_in_batches_of_500(delayq: RedisStore) -> None:
    noop.enqueue()
    before = scripts_run(delayq)
    noop.enqueue_many(() for _ in range(1234))
    assert scripts_run(delayq) == before + 3


def test_many_large_ones_leave_in_several_calls(delayq: RedisStore, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "BODY_LIMIT": 1024 * 1024, "COMPRESS_ABOVE": 1024 * 1024}
    record.enqueue("warm")
    record.enqueue_many([("warm",), ("warm",)])
    before = scripts_run(delayq)
    record.enqueue_many([("x" * 1_000_000,)] * 8)
    assert scripts_run(delayq) - before in (8, 9)  # Redis may not know the script of a lone one yet
    assert topic_stats("default").counters["enqueued"] == 11


def test_many_of_nothing_is_nothing(delayq: RedisStore) -> None:
    assert noop.enqueue_many([]) == []


def test_many_go_to_the_topics_of_their_copies(delayq: RedisStore) -> None:
    record.enqueue_many(
        [("a",), close_order.prepare(5), ("b",), record.using(topic="orders").prepare("c")]
    )
    assert (sent(), sent("orders")) == (["a", "b"], [5, "c"])


@with_transactions
def test_many_wait_for_the_commit_and_leave_together(delayq: RedisStore) -> None:
    record.enqueue("warm")
    before = scripts_run(delayq)
    with transaction.atomic():
        record.enqueue_many([(n,) for n in range(400)])
        record.enqueue_many([(n,) for n in range(400, 700)])
        assert scripts_run(delayq) == before
    assert scripts_run(delayq) == before + 2


def test_duplicates_in_a_batch_do_not_lose_the_others(delayq: RedisStore) -> None:
    keyed = record.using(key="k", delay=60)
    calls = [
        keyed.prepare("a"),
        record.prepare("b"),
        keyed.prepare("c"),
        record.prepare("d"),
        keyed.prepare("e"),
    ]
    with pytest.raises(exceptions.DuplicateMessage) as caught:
        record.enqueue_many(calls)
    assert sorted(sent()) == ["a", "b", "d"]
    assert caught.value.keys == ("k", "k")


def test_duplicate_in_the_first_500_does_not_lose_those_behind(delayq: RedisStore) -> None:
    record.using(key="k", delay=60).enqueue("live")
    with pytest.raises(exceptions.DuplicateMessage, match="'k': already live"):
        record.enqueue_many([record.using(key="k").prepare("x"), *((n,) for n in range(1200))])
    assert topic_stats("default").counters["enqueued"] == 1201


def test_last_of_one_key_wins_when_a_batch_replaces(delayq: RedisStore) -> None:
    keyed = record.using(key="k", delay=60, on_duplicate="replace")
    handles = record.enqueue_many([keyed.prepare(n) for n in range(3)])
    assert [handle.outcome for handle in handles] == ["stored", "replaced", "replaced"]
    assert sent() == [2]


def test_first_of_one_key_wins_when_a_batch_keeps(delayq: RedisStore) -> None:
    keyed = record.using(key="k", delay=60, on_duplicate="keep")
    handles = record.enqueue_many([keyed.prepare(n) for n in range(3)])
    assert [handle.outcome for handle in handles] == ["stored", "kept", "kept"]
    assert sent() == [0]


def test_error_half_way_tells_what_was_sent(delayq: RedisStore) -> None:
    with pytest.raises(exceptions.UnserialisableArguments) as caught:
        record.enqueue_many([*((n,) for n in range(700)), (object(),)])
    assert len(caught.value.enqueued) == topic_stats("default").counters["enqueued"] == 500


def test_element_that_is_no_call_tells_what_was_sent(delayq: RedisStore) -> None:
    with pytest.raises(exceptions.InvalidArguments) as caught:
        record.enqueue_many([*((n,) for n in range(700)), "text"])
    assert len(caught.value.enqueued) == topic_stats("default").counters["enqueued"]


@pytest.mark.usefixtures("raising")
def test_many_partitions_need_few_connections(delayq: RedisStore, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": 256}}}
    handles = crowd.using(delay=60).enqueue_many([(n,) for n in range(3000)])
    pool = get_store().client.redis.connection_pool
    assert {handle.outcome for handle in handles} == {"stored"}
    assert topic_stats("crowd").delayed == 3000
    assert len(pool._available_connections) <= MOST_ON_ITS_WAY + 1
    get_store().close()


@pytest.mark.usefixtures("raising")
def test_more_threads_than_redis_py_allows_connections_wait_for_a_pausing_redis(
    delayq: RedisStore,
) -> None:
    noop.enqueue()
    outcomes: list[str] = []

    def send() -> None:
        outcomes.append(noop.using(delay=60).enqueue().outcome)

    threads = [threading.Thread(target=send) for _ in range(160)]
    delayq.client.command("CLIENT", "PAUSE", 400, "ALL")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == ["stored"] * 160
