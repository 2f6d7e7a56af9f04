"""cancel(running=True): a message ends as cancelled, whether it waits, runs, or does both in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_delayq import MessageCancelled, MessageNotFound, MessageRunning, StoreUnavailable
from django_delayq.models import ArchivedMessage, OutboxMessage
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore
from tests.app import sql_tasks
from tests.app.models import Counter
from tests.app.tasks import act, noop, record, seen
from tests.faults import unreachable
from tests.hands import DEFAULT, Hands, only_row

pytestmark = pytest.mark.django_db(transaction=True)


def ended(hands: Hands) -> ArchivedMessage:
    """The only row of the archive."""
    hands.archive()
    return only_row()


def test_a_running_message_ends_as_cancelled_and_never_runs_again(hands: Hands) -> None:
    handle = record.using(key="k").enqueue(1)
    (lease,) = hands.claim()
    assert handle.cancel(running=True)
    hands.run(lease)  # the thread cannot be stopped
    assert seen == [1]
    assert (hands.work(), handle.get()) == (0, None)
    row = ended(hands)
    assert (row.state, row.reason, row.attempts, row.key) == (
        "cancelled", "cancelled while it ran", 1, "k",
    )  # fmt: skip


def test_without_the_word_it_goes_on(hands: Hands) -> None:
    handle = record.enqueue(1)
    hands.claim()
    with pytest.raises(MessageRunning):
        handle.cancel()
    message = handle.get()
    assert message is not None and message.state == "leased"


def test_by_key_and_by_id_and_for_async_code(hands: Hands) -> None:
    record.using(key="k").enqueue(1)
    handle = record.enqueue(2)
    hands.claim()
    assert record.cancel(key="k", running=True)
    assert asyncio.run(record.acancel(id=handle.id, running=True))
    other = record.enqueue(3)
    hands.claim()
    assert asyncio.run(other.acancel(running=True))
    assert [row.state for row in hands.archive()] == ["cancelled"] * 3


def test_what_waits_is_cancelled_as_ever(hands: Hands) -> None:
    handle = record.using(delay=60).enqueue(1)
    assert handle.cancel(running=True)
    assert ended(hands).reason == "cancelled"


def test_what_has_ended_is_not_found(hands: Hands) -> None:
    handle = record.enqueue(1)
    hands.work()
    with pytest.raises(MessageNotFound, match="is not live in topic 'default'"):
        handle.cancel(running=True)
    assert not handle.cancel(running=True, missing_ok=True)
    assert ended(hands).state == "acked"


@pytest.fixture
def meanwhile(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], object]], None]:
    """Does something between the two scripts of a cancel: the message was seen to run."""

    def between(act: Callable[[], object]) -> None:
        real = RedisStore.cancel_running

        def late(self: RedisStore, *args: Any) -> bool:
            monkeypatch.undo()
            act()
            return real(self, *args)

        monkeypatch.setattr(RedisStore, "cancel_running", late)

    return between


def test_a_run_that_fails_in_this_moment_is_not_tried_again(
    hands: Hands, meanwhile: Callable[..., None]
) -> None:
    handle = act.using(topic="default").enqueue("fail")
    (lease,) = hands.claim()
    meanwhile(lambda: hands.run(lease))
    assert handle.cancel(running=True)
    row = ended(hands)
    assert (row.state, row.reason, row.attempts) == ("cancelled", "cancelled", 1)


def test_a_run_that_succeeds_in_this_moment_stays_acked(
    hands: Hands, meanwhile: Callable[..., None]
) -> None:
    handle = record.enqueue(1)
    (lease,) = hands.claim()
    meanwhile(lambda: hands.run(lease))
    with pytest.raises(MessageNotFound):
        handle.cancel(running=True)
    assert ended(hands).state == "acked"


def test_a_run_that_fails_and_begins_anew_in_this_moment_is_cancelled(
    hands: Hands, meanwhile: Callable[..., None]
) -> None:
    handle = noop.enqueue()
    (lease,) = hands.claim()
    again: list[Lease] = []

    def retry() -> None:
        hands.store.nack(DEFAULT, [(lease, 0, True, b"{}")])
        again.extend(hands.claim())

    meanwhile(retry)
    assert handle.cancel(running=True)
    assert hands.store.ack(DEFAULT, [(again[0], b"{}")]) == again
    assert ended(hands).state == "cancelled"


def test_the_follower_of_its_key_is_cancelled_too(hands: Hands) -> None:
    record.using(key="k").enqueue(1)
    hands.claim()
    follower = record.using(key="k", on_duplicate="replace").enqueue(2)
    assert follower.outcome == "follows"
    assert record.cancel(key="k", running=True)
    assert [row.state for row in hands.archive()] == ["cancelled"] * 2
    assert hands.work() == 0


def test_a_durable_message_does_not_come_back(hands: Hands) -> None:
    """Also when Redis forgets all before the archiver has read of the cancel."""
    handle = record.using(durable=True).enqueue(1)
    hands.claim()
    assert handle.cancel(running=True)
    assert OutboxMessage.objects.get().status == "cancelled"
    hands.store.client.redis.flushall()
    OutboxMessage.objects.update(relay_at_ms=0)
    hands.relay()
    hands.reconcile()
    assert (hands.work(), seen) == (0, [])


def test_an_exactly_once_run_and_its_cancel_give_one_row_that_is_true(hands: Hands) -> None:
    """What is archived first counts: the other side writes nothing."""
    handle = sql_tasks.count.enqueue("a")
    (lease,) = hands.claim()
    assert handle.cancel(running=True)
    hands.archive()
    hands.run(lease)
    assert not Counter.objects.exists()
    assert ended(hands).state == "cancelled"


def test_it_acts_at_once_whatever_the_transaction_does(hands: Hands) -> None:
    handle = record.enqueue(1)
    hands.claim()
    with transaction.atomic():
        assert handle.cancel(running=True)
        transaction.set_rollback(True)
    assert ended(hands).state == "cancelled"


def test_what_the_open_transaction_has_yet_to_send_is_taken_back(hands: Hands) -> None:
    with transaction.atomic():
        assert record.enqueue(1).cancel(running=True)
    assert hands.work() == 0


def test_without_redis_it_is_refused_and_nothing_is_kept(hands: Hands) -> None:
    handle = record.enqueue(1)
    hands.claim()
    with unreachable(), pytest.raises(StoreUnavailable):
        handle.cancel(running=True)
    assert not OutboxMessage.objects.exists()


def test_who_waits_for_the_result_hears_of_it(hands: Hands) -> None:
    handle = record.enqueue(1)
    hands.claim()
    handle.cancel(running=True)
    with pytest.raises(MessageCancelled):
        handle.wait(timeout=5)
