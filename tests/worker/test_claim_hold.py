"""Nothing is claimed before Redis has the changes that the outbox kept while it was away."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from django_delayq.core.exceptions import DelayQError
from django_delayq.store.store import RedisStore
from django_delayq.worker import claim_hold as module
from django_delayq.worker.claim_hold import ClaimHold
from django_delayq.worker.dispatcher import Dispatcher
from django_delayq.worker.fleet import Fleet
from django_delayq.worker.shared import Shared
from tests.app.tasks import noop
from tests.faults import unreachable
from tests.worker.moving import LONG_AGO, eventually
from tests.worker.test_dispatcher import Takes, no_batches


class Sender:
    """Stands for what knows SQL: it takes as long as a test lets it."""

    def __init__(self) -> None:
        self.times = 0
        self.go_on = threading.Event()

    def __call__(self, seconds: float) -> None:
        self.times += 1
        assert self.go_on.wait(10)


def dispatcher_of(shared: Shared, send: Sender, pool: Takes) -> Dispatcher:
    return Dispatcher(
        replace(shared, before_claims=send),
        Fleet(shared),
        pool,
        Takes(),
        lambda *leases, **how: None,
        no_batches,
    )  # type: ignore[arg-type]


def test_first_claim_waits_until_the_changes_are_sent(shared: Shared, delayq: RedisStore) -> None:
    noop.using(due_at=LONG_AGO).enqueue()
    send, pool = Sender(), Takes()
    dispatcher = dispatcher_of(shared, send, pool)
    dispatcher.run_once()
    dispatcher.run_once()
    assert (send.times, pool.fed, dispatcher.nothing_due) == (1, [], False)
    send.go_on.set()
    eventually(lambda: not dispatcher._claim_hold.must_wait())
    dispatcher.run_once()
    assert len(pool.fed) == 1


def test_an_outage_makes_the_next_claim_wait_again(shared: Shared, delayq: RedisStore) -> None:
    send, pool = Sender(), Takes()
    send.go_on.set()
    dispatcher = dispatcher_of(shared, send, pool)
    dispatcher.run_once()
    eventually(lambda: not dispatcher._claim_hold.must_wait())
    noop.using(due_at=LONG_AGO).enqueue()
    send.go_on.clear()
    with unreachable(), pytest.raises(DelayQError):
        dispatcher.sweeper.at = 0.0
        dispatcher.run_once()
    dispatcher.run_once()
    assert (send.times, pool.fed) == (2, [])
    send.go_on.set()
    eventually(lambda: not dispatcher._claim_hold.must_wait())
    dispatcher.run_once()
    assert len(pool.fed) == 1


def test_a_database_that_does_not_answer_holds_up_nothing_for_long(
    shared: Shared, delayq: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_SECONDS", 0.0)
    noop.using(due_at=LONG_AGO).enqueue()
    send, pool = Sender(), Takes()
    dispatcher = dispatcher_of(shared, send, pool)
    dispatcher.run_once()
    assert len(pool.fed) == 1
    send.go_on.set()


def test_what_fails_is_left_to_the_relay(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()

    def fail(seconds: float) -> None:
        raise ValueError("no table")

    hold = ClaimHold(fail, ended.set)
    hold.must_wait()
    assert ended.wait(10)
    assert not hold.must_wait()
    assert "changes kept during the outage are left to the relay" in caplog.text


def test_what_another_process_keeps_a_little_later_is_applied_while_claims_go_on() -> None:
    send = Sender()
    send.go_on.set()
    hold = ClaimHold(send, lambda: None)
    hold.must_wait()
    eventually(lambda: not hold.must_wait())
    eventually(lambda: send.times > 3)


def test_a_second_outage_holds_the_claims_again_while_changes_of_the_first_still_come() -> None:
    send = Sender()
    send.go_on.set()
    hold = ClaimHold(send, lambda: None)
    hold.must_wait()
    eventually(lambda: not hold.must_wait())
    send.go_on.clear()
    hold.needed = True
    assert hold.must_wait()
    send.go_on.set()
    eventually(lambda: not hold.must_wait())


def test_a_failure_after_the_hold_is_tried_again() -> None:
    times = []

    def fails_once(seconds: float) -> None:
        times.append(seconds)
        if len(times) == 2:
            raise DelayQError("the database is away")

    hold = ClaimHold(fails_once, lambda: None)
    hold.must_wait()
    eventually(lambda: len(times) > 3)


def test_it_ends_some_seconds_after_the_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LATE_SECONDS", 0.0)
    send = Sender()
    send.go_on.set()
    hold = ClaimHold(send, lambda: None)
    hold.must_wait()
    assert hold._newest is not None
    hold._newest.join(10)
    assert send.times == 1


def test_the_outbox_is_read_no_more_when_the_dispatcher_stops(
    shared: Shared, delayq: RedisStore
) -> None:
    send = Sender()
    send.go_on.set()
    dispatcher = dispatcher_of(shared, send, Takes())
    dispatcher.run_once()
    eventually(lambda: send.times > 1)
    dispatcher.stop()
    thread = dispatcher._claim_hold._newest
    assert thread is not None
    thread.join(1.0)
    assert not thread.is_alive()


def test_without_sql_nothing_waits() -> None:
    assert not ClaimHold(None, lambda: None).must_wait()
