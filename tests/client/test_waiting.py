"""handle.wait(), handle.result(), handle.progress(): how a message has ended, wherever that
stands."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections, transaction

from django_delayq import DelayQError, InvalidMessage
from django_delayq.client.waiting import LONGEST_PAUSE, Wait
from django_delayq.core.conf import get_settings
from django_delayq.core.exceptions import (
    MessageCancelled,
    MessageExpired,
    MessageFailed,
    NoResult,
    WaitTimeout,
)
from django_delayq.models import ArchivedMessage
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from tests.app.tasks import act, add, add_async, add_once, answer, crowd, record, seen
from tests.hands import Hands, end_lease, lose_redis, make_due, only_row

pytestmark = pytest.mark.django_db(transaction=True)


def later(function: Callable[[], Any]) -> threading.Thread:
    """Run it in a moment, in a thread of its own."""

    def run() -> None:
        time.sleep(0.15)
        try:
            function()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def without_archive(hands: Hands, settings: Any) -> Hands:
    """The same worker in a project that archives nothing."""
    settings.DELAYQ = {**settings.DELAYQ, "ARCHIVE": "none"}
    return Hands(RedisStore(hands.store.client.redis, get_settings()))


def test_wait_returns_what_the_task_returned(hands: Hands) -> None:
    handle = add.enqueue(2, 3)
    hands.work()
    assert handle.wait(timeout=5) == 5


def test_wait_wakes_up_when_the_result_comes(hands: Hands) -> None:
    handle = add.enqueue(2, 3)
    thread = later(hands.work)
    begun = time.monotonic()
    assert handle.wait(timeout=10) == 5
    assert time.monotonic() - begun < LONGEST_PAUSE
    thread.join()


def test_async_code_awaits_the_result(hands: Hands) -> None:
    handle = add.enqueue(2, 3)

    async def both() -> Any:
        waiting = asyncio.ensure_future(handle.result(timeout=10))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(later(hands.work).join)
        return await waiting

    assert asyncio.run(both()) == 5


def test_result_of_none_is_none(hands: Hands) -> None:
    handle = answer.enqueue(None)
    hands.work()
    assert handle.wait(timeout=5) is None


@pytest.mark.parametrize(
    "value", [0, "text", [1, [2]], {"a": {"b": 1.5}}, 2**60, "ü\u0000", True, []]
)
def test_json_comes_back_as_it_was(hands: Hands, value: Any) -> None:
    handle = answer.enqueue(value)
    hands.work()
    assert handle.wait(timeout=5) == value


def test_task_that_keeps_no_result_gives_none(hands: Hands) -> None:
    handle = record.enqueue("hello")
    hands.work()
    assert handle.wait(timeout=5) is None
    assert seen == ["hello"]


def test_result_outlives_redis_in_the_archive(hands: Hands) -> None:
    handle = add.enqueue(2, 3)
    hands.work()
    hands.archive()
    lose_redis(hands.store)
    assert only_row().result == '{"result":5}'
    assert handle.wait(timeout=5) == 5


def test_result_is_there_while_nothing_is_archived(hands: Hands, settings: Any) -> None:
    hands = without_archive(hands, settings)
    handle = add.enqueue(2, 3)
    hands.work()
    hands.archive()
    assert not ArchivedMessage.objects.exists()
    assert handle.wait(timeout=5) == 5


def test_end_that_nobody_keeps_is_an_error(hands: Hands, settings: Any) -> None:
    hands = without_archive(hands, settings)
    handle = record.enqueue()
    hands.work()
    with pytest.raises(NoResult, match="nobody keeps how"):
        handle.wait(timeout=5)


def test_redis_forgets_a_result_by_itself(hands: Hands) -> None:
    handle = add.enqueue(2, 3)
    hands.work()
    (key,) = hands.store.client.redis.keys(f"{hands.store.client.prefix}:*:result:*")
    assert handle.id in key.decode()
    assert 3_590_000 < hands.store.client.redis.pttl(key) <= 3_600_000


def test_task_without_a_result_leaves_no_key(hands: Hands) -> None:
    record.enqueue()
    hands.work()
    assert hands.store.client.redis.keys(f"{hands.store.client.prefix}:*:result:*") == []
    assert "result" not in hands.archive()[0].result


def test_results_of_a_batch_go_to_their_own_messages(hands: Hands) -> None:
    handles = [record.enqueue(n) if n % 2 else add.enqueue(n, n) for n in range(6)]
    hands.work()
    assert [handle.wait(timeout=5) for handle in handles] == [0, None, 4, None, 8, None]


MODES = Partition("modes", 0)


@pytest.mark.parametrize("archived", [False, True])
def test_failed_message_raises_with_the_error_of_the_task(hands: Hands, archived: bool) -> None:
    handle = act.enqueue("unworthy")
    hands.work(MODES)
    if archived:
        hands.archive()
    with pytest.raises(MessageFailed, match="TypeError: a bug") as caught:
        handle.wait(timeout=5)
    assert caught.value.error_class == "TypeError"
    assert "tests/app/tasks.py" in caught.value.traceback


def test_rejected_message_raises_with_the_reason(hands: Hands) -> None:
    handle = act.enqueue("reject")
    hands.work(MODES)
    with pytest.raises(MessageFailed, match="no such order"):
        handle.wait(timeout=5)


@pytest.mark.parametrize("archived", [False, True])
def test_cancelled_message_raises(hands: Hands, archived: bool) -> None:
    handle = add.using(delay=60).enqueue(2, 3)
    handle.cancel()
    if archived:
        hands.archive()
    with pytest.raises(MessageCancelled):
        handle.wait(timeout=5)


def test_expired_message_raises(hands: Hands) -> None:
    handle = add.using(expires=0.001).enqueue(2, 3)
    hands._next_millisecond()
    hands.work()
    with pytest.raises(MessageExpired):
        handle.wait(timeout=5)


def test_waiting_ends_at_the_timeout(hands: Hands) -> None:
    handle = add.using(delay=60).enqueue(2, 3)
    begun = time.monotonic()
    with pytest.raises(WaitTimeout, match=r"has not ended within 0\.2 s"):
        handle.wait(timeout=0.2)
    assert 0.2 <= time.monotonic() - begun < 2
    with pytest.raises(TimeoutError):
        asyncio.run(handle.result(timeout=0.01))


@pytest.mark.long
def test_one_who_waits_asks_redis_a_few_times_a_second(hands: Hands) -> None:
    handle = add.using(delay=60).enqueue(2, 3)
    redis = hands.store.client.redis
    before = redis.info("stats")["total_commands_processed"]
    with pytest.raises(WaitTimeout):
        handle.wait(timeout=1.5)
    assert redis.info("stats")["total_commands_processed"] - before < 40


def test_waiting_inside_the_transaction_that_sends_it_is_refused(hands: Hands) -> None:
    with transaction.atomic():
        handle = add.enqueue(2, 3)
        with pytest.raises(InvalidMessage, match="wait after that"):
            handle.wait(timeout=5)
    hands.work()
    assert handle.wait(timeout=5) == 5


@pytest.mark.parametrize("durable", [False, True])
def test_an_earlier_message_with_its_key_is_not_awaited_instead(
    hands: Hands, durable: bool
) -> None:
    task = add.using(key="k", on_duplicate="replace", durable=durable)
    task.using(delay=60).enqueue(1, 1)
    with transaction.atomic():
        handle = task.enqueue(2, 3)
        with pytest.raises(InvalidMessage, match="wait after that"):
            handle.wait(timeout=0.1)
    hands.work()
    assert handle.wait(timeout=5) == 5


def test_durable_message_is_awaited_too(hands: Hands) -> None:
    handle = add.using(durable=True, delay=30).enqueue(2, 3)
    with pytest.raises(WaitTimeout):
        handle.wait(timeout=0.05)
    make_due(handle)
    hands.work()
    assert handle.wait(timeout=5) == 5


def test_old_result_of_the_same_key_is_not_the_new_one(hands: Hands) -> None:
    keyed = add.using(key="sum")
    keyed.enqueue(1, 1)
    hands.work()
    handle = keyed.enqueue(2, 2)
    with pytest.raises(WaitTimeout):
        handle.wait(timeout=0.3)
    thread = later(hands.work)
    assert handle.wait(timeout=5) == 4
    thread.join()


def test_new_message_of_the_key_does_not_hide_how_the_old_one_ended(hands: Hands) -> None:
    keyed = add.using(key="sum")
    handle = keyed.enqueue(1, 1)
    hands.work()
    hands.archive()
    second = keyed.enqueue(2, 2)
    hands.work()
    assert second.wait(timeout=5) == 4
    assert handle.identity == second.identity


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("ended", [False, True])
def test_who_waits_for_a_message_that_is_replaced_gets_the_result_of_its_replacement(
    hands: Hands, ended: bool, durable: bool
) -> None:
    debounced = add.using(key="k", delay=0, on_duplicate="replace", durable=durable)
    waiting = Wait(debounced.enqueue(1, 1), 5)
    assert waiting.check() is None
    debounced.enqueue(2, 2)
    if not ended:
        assert waiting.check() is None
    hands.relay()
    hands.work()
    end = waiting.check()
    assert end is not None and waiting.end_of(end) == 4


def test_message_that_follows_a_running_one_has_its_own_result(hands: Hands) -> None:
    keyed = add.using(key="sum", on_duplicate="replace")
    keyed.enqueue(1, 1)
    (lease,) = hands.claim()
    handle = keyed.enqueue(2, 2)
    assert handle.outcome == "follows"
    with pytest.raises(WaitTimeout):
        handle.wait(timeout=0.05)
    hands.run(lease)
    thread = later(hands.work)
    assert handle.wait(timeout=5) == 4
    thread.join()


def test_result_in_another_partition_is_found(hands: Hands, split: Any) -> None:
    store = split(3)
    handle = crowd.enqueue(1)
    own = Hands(store)
    for partition in store.partitions.all("crowd"):
        own.work(partition)
    assert handle.wait(timeout=5) is None


def test_unworthy_result_makes_a_dead_letter(hands: Hands) -> None:
    handle = answer.enqueue("huge")
    hands.work()
    with pytest.raises(MessageFailed, match=r"takes 100,002 bytes, the limit is 65,536"):
        handle.wait(timeout=5)
    handle = answer.enqueue("object")
    hands.work()
    with pytest.raises(MessageFailed, match="of type object, is no JSON"):
        handle.wait(timeout=5)


def test_exactly_once_keeps_the_result_with_its_row(hands: Hands) -> None:
    handle = add_once.enqueue(2, 3)
    hands.work()
    assert only_row().result == '{"result":5}'
    assert handle.wait(timeout=5) == 5


def test_exactly_once_task_that_comes_again_keeps_its_result(hands: Hands) -> None:
    handle = add_once.enqueue(2, 3)
    (first,) = hands.claim()
    hands.executor.run(first)  # it dies before the ack
    hands.settler._waiting.clear()
    end_lease(hands.store, first)
    hands.work()
    assert handle.wait(timeout=5) == 5


def test_async_task_keeps_its_result(hands: Hands) -> None:
    handle = add_async.enqueue(2, 3)
    (lease,) = hands.claim()
    asyncio.run(hands.executor.run_async(lease))
    hands.settler.run_once()
    assert handle.wait(timeout=5) == 5


def test_stale_worker_leaves_no_result(hands: Hands) -> None:
    handle = add.enqueue(2, 3)
    (lease,) = hands.claim()
    end_lease(hands.store, lease)
    hands.run(lease)
    assert hands.store.reports.result("default", handle.identity) is None


def test_wrong_timeout_is_refused(hands: Hands) -> None:
    with pytest.raises(DelayQError, match="timeout"):
        add.enqueue(1, 2).wait(timeout=-1)
