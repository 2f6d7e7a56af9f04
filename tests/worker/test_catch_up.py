"""Nothing is claimed before Redis has heard what was said while it was away."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from django_delayq.core.exceptions import DelayQError
from django_delayq.store.store import RedisStore
from django_delayq.worker import catch_up as module
from django_delayq.worker.catch_up import CatchUp
from django_delayq.worker.dispatcher import Dispatcher
from django_delayq.worker.shared import Shared
from tests.app.tasks import noop
from tests.faults import unreachable
from tests.worker.moving import LONG_AGO, eventually
from tests.worker.test_dispatcher import Takes


class Told:
    """Stands for what knows SQL: it takes as long as a test lets it."""

    def __init__(self) -> None:
        self.times = 0
        self.go_on = threading.Event()

    def __call__(self, seconds: float) -> None:
        self.times += 1
        assert self.go_on.wait(10)


def dispatcher_of(shared: Shared, told: Told | None, pool: Takes) -> Dispatcher:
    return Dispatcher(
        replace(shared, before_claims=told), pool, Takes(), lambda *leases, **how: None
    )  # type: ignore[arg-type]


def test_first_claim_waits_until_all_is_said(shared: Shared, delayq: RedisStore) -> None:
    noop.using(due_at=LONG_AGO).enqueue()
    told, pool = Told(), Takes()
    dispatcher = dispatcher_of(shared, told, pool)
    dispatcher.run_once()
    dispatcher.run_once()
    assert (told.times, pool.fed, dispatcher.nothing_due) == (1, [], False)
    told.go_on.set()
    eventually(lambda: not dispatcher._catch_up.holds)
    dispatcher.run_once()
    assert len(pool.fed) == 1


def test_an_outage_makes_the_next_claim_wait_again(shared: Shared, delayq: RedisStore) -> None:
    told, pool = Told(), Takes()
    told.go_on.set()
    dispatcher = dispatcher_of(shared, told, pool)
    dispatcher.run_once()
    eventually(lambda: not dispatcher._catch_up.holds)
    noop.using(due_at=LONG_AGO).enqueue()
    told.go_on.clear()
    with unreachable(), pytest.raises(DelayQError):
        dispatcher._sweep_at = 0.0
        dispatcher.run_once()
    dispatcher.run_once()
    assert (told.times, pool.fed) == (2, [])
    told.go_on.set()
    eventually(lambda: not dispatcher._catch_up.holds)
    dispatcher.run_once()
    assert len(pool.fed) == 1


def test_a_database_that_does_not_answer_holds_up_nothing_for_long(
    shared: Shared, delayq: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_SECONDS", 0.0)
    noop.using(due_at=LONG_AGO).enqueue()
    told, pool = Told(), Takes()
    dispatcher = dispatcher_of(shared, told, pool)
    dispatcher.run_once()
    assert len(pool.fed) == 1
    told.go_on.set()


def test_what_fails_is_left_to_the_relay(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()

    def fail(seconds: float) -> None:
        raise ValueError("no table")

    catch_up = CatchUp(fail, ended.set)
    catch_up.begin()
    assert ended.wait(10)
    assert not catch_up.holds
    assert "the relay applies later what was kept while Redis was away" in caplog.text


def test_what_another_process_keeps_a_little_later_is_applied_while_claims_go_on() -> None:
    told = Told()
    told.go_on.set()
    catch_up = CatchUp(told, lambda: None)
    catch_up.begin()
    eventually(lambda: not catch_up.holds)
    eventually(lambda: told.times > 3)


def test_a_second_outage_holds_the_claims_again_while_the_first_is_followed_up() -> None:
    told = Told()
    told.go_on.set()
    catch_up = CatchUp(told, lambda: None)
    catch_up.begin()
    eventually(lambda: not catch_up.holds)
    told.go_on.clear()
    catch_up.begin()
    assert catch_up.holds
    told.go_on.set()
    eventually(lambda: not catch_up.holds)


def test_a_failure_after_the_hold_is_tried_again() -> None:
    times = []

    def fails_once(seconds: float) -> None:
        times.append(seconds)
        if len(times) == 2:
            raise DelayQError("the database is away")

    catch_up = CatchUp(fails_once, lambda: None)
    catch_up.begin()
    eventually(lambda: len(times) > 3)


def test_it_ends_some_seconds_after_the_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LATE_SECONDS", 0.0)
    told = Told()
    told.go_on.set()
    catch_up = CatchUp(told, lambda: None)
    catch_up.begin()
    assert catch_up._newest is not None
    catch_up._newest.join(10)
    assert told.times == 1


def test_without_sql_nothing_waits() -> None:
    catch_up = CatchUp(None, lambda: None)
    catch_up.begin()
    assert not catch_up.holds
