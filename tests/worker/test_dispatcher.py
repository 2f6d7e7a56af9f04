"""Claiming when something is due, and sleeping exactly until then."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any
from unittest import mock

import pytest

from django_delayq import pause_topic, purge_topic, resume_topic, topic_stats
from django_delayq.client.handle import Handle
from django_delayq.core.exceptions import DelayQError
from django_delayq.store.keys import FLEET_HINT, Partition, leased_key, partition_keys
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore
from django_delayq.worker import dispatcher as module
from django_delayq.worker.dispatcher import Dispatcher
from django_delayq.worker.fleet import ABSENT, FULL, GONE, STEP_IN, UNFIT, Fleet
from django_delayq.worker.shared import Shared
from tests.app.tasks import crowd, noop, record, remind
from tests.faults import lost_answers, scripts_run
from tests.worker.conftest import Heard
from tests.worker.moving import LONG_AGO, counters, crash, end_lease, eventually

DEFAULT = Partition("default", 0)


class Takes:
    """A pool or an event loop that runs nothing."""

    slots = (mock.Mock(lease=None),)
    running = ()

    def __init__(self, size: int = 100) -> None:
        self.size = size
        self.fed: list[Lease] = []
        self.stuck = False
        self.kicks = 0
        self.old: list[Lease] = []

    def room(self) -> int:
        return max(0, self.size - len(self.fed))

    free = property(room)

    def feed(self, leases: Sequence[Lease]) -> None:
        self.fed += leases

    def kick(self) -> None:
        self.kicks += 1

    def take_back(self, older_than: float = -1.0) -> list[Lease]:
        assert older_than == module.BUFFER_SECONDS
        old, self.old = self.old, []
        return old


@pytest.fixture
def pool() -> Takes:
    return Takes()


@pytest.fixture
def coroutines() -> Takes:
    return Takes()


def no_batches() -> Any:
    """Other tests have declared batch tasks. Here none of their messages is enqueued."""
    return mock.Mock(room=lambda: 100, step=lambda too_old: math.inf)


@pytest.fixture
def released() -> list[Lease]:
    return []


@pytest.fixture
def fleet(shared: Shared) -> Fleet:
    fleet = Fleet(shared)
    fleet.has_beat = True
    return fleet


@pytest.fixture
def dispatcher(
    shared: Shared, fleet: Fleet, pool: Any, coroutines: Any, released: list[Lease]
) -> Dispatcher:
    return Dispatcher(shared, fleet, pool, coroutines, released.extend, no_batches)


@pytest.fixture
def single(
    shared: Shared, fleet: Fleet, pool: Any, coroutines: Any, released: list[Lease]
) -> Dispatcher:
    """Of one topic: its first script call is the claim of that topic."""
    return Dispatcher(
        replace(shared, topics=("default",)),
        fleet,
        pool,
        coroutines,
        released.extend,
        no_batches,
    )


def due(count: int, task: Any = record) -> list[Handle]:
    return task.using(due_at=LONG_AGO).enqueue_many([(n,) for n in range(count)])  # type: ignore[no-any-return]


def settle_down(dispatcher: Dispatcher) -> float:
    """Rounds until nothing is due; gives the length of the sleep."""
    for _ in range(50):
        pause = dispatcher.run_once()
        if dispatcher.nothing_due:
            return pause
    raise AssertionError("always something due")


def test_claims_what_is_due_and_holds_it(
    dispatcher: Dispatcher, pool: Takes, shared: Shared
) -> None:
    handles = due(3)
    settle_down(dispatcher)
    assert {lease.id.hex() for lease in pool.fed} == {handle.id for handle in handles}
    assert shared.held == set(pool.fed)
    assert dispatcher.claimed == 3


def test_leaves_what_is_not_due(dispatcher: Dispatcher, pool: Takes) -> None:
    record.using(delay=3600).enqueue(1)
    settle_down(dispatcher)
    assert pool.fed == []


def test_sleeps_until_the_next_due_time(dispatcher: Dispatcher, shared: Shared) -> None:
    settle_down(dispatcher)
    handle = record.using(delay=0.4).enqueue(1)
    assert handle.due_ms is not None
    dispatcher.hint(DEFAULT, handle.due_ms)
    pause = dispatcher.run_once()
    assert pause == pytest.approx((handle.due_ms - shared.clock.now_ms()) / 1000, abs=0.05)


def test_wakes_after_the_due_time_and_not_before(
    dispatcher: Dispatcher, shared: Shared, pool: Takes
) -> None:
    settle_down(dispatcher)
    handle = record.using(delay=0.05).enqueue(1)
    assert handle.due_ms is not None
    dispatcher.hint(DEFAULT, handle.due_ms)
    rounds = 0
    while not pool.fed:
        pause = dispatcher.run_once()
        rounds += 1
        if not pool.fed:
            dispatcher.sleeper.wait(pause)
    assert shared.clock.now_ms() >= handle.due_ms
    assert rounds <= 4


def test_never_sleeps_longer_than_the_sweep_interval(dispatcher: Dispatcher) -> None:
    record.using(delay=3600).enqueue(1)
    assert 0 < settle_down(dispatcher) <= 1.0


def test_idle_round_costs_no_script(dispatcher: Dispatcher, delayq: RedisStore) -> None:
    record.using(delay=3600).enqueue(1)
    settle_down(dispatcher)
    dispatcher.sweeper.at = 0
    before = scripts_run(delayq)
    dispatcher.run_once()
    assert scripts_run(delayq) == before


def test_sweep_finds_what_no_hint_told(dispatcher: Dispatcher, pool: Takes) -> None:
    settle_down(dispatcher)
    due(1)
    dispatcher.run_once()
    assert pool.fed == []
    dispatcher.sweeper.at = 0
    settle_down(dispatcher)
    assert len(pool.fed) == 1


def test_hint_is_heard_at_once(dispatcher: Dispatcher, pool: Takes) -> None:
    settle_down(dispatcher)
    due(1)
    dispatcher.hint(DEFAULT, 0)
    assert not dispatcher.sleeper._lock.locked()
    settle_down(dispatcher)
    assert len(pool.fed) == 1


def test_hint_for_everything(dispatcher: Dispatcher, pool: Takes) -> None:
    settle_down(dispatcher)
    due(1)
    due(1, crowd)
    dispatcher.hint(None, 0)
    settle_down(dispatcher)
    assert {lease.partition.topic for lease in pool.fed} == {"default", "crowd"}


def test_claims_no_more_than_there_is_room_for(dispatcher: Dispatcher, pool: Takes) -> None:
    pool.size = 7
    due(20)
    for _ in range(5):
        dispatcher.run_once()
    assert len(pool.fed) == 7
    pool.size = 20
    settle_down(dispatcher)
    assert len(pool.fed) == 20


def test_looks_again_soon_while_due_messages_wait_for_room(
    dispatcher: Dispatcher, pool: Takes
) -> None:
    pool.size = 1
    due(2)
    dispatcher.run_once()
    assert 0 < dispatcher.run_once() <= 0.05


def test_idle_threads_beside_a_full_buffer_are_kicked(dispatcher: Dispatcher, pool: Takes) -> None:
    pool.stuck = True
    assert dispatcher.run_once() == module.KICK
    assert pool.kicks == 1


def test_coroutines_go_to_the_event_loop(
    dispatcher: Dispatcher, pool: Takes, coroutines: Takes
) -> None:
    due(2, remind)
    due(3)
    settle_down(dispatcher)
    assert (len(coroutines.fed), len(pool.fed)) == (2, 3)


def test_topic_of_both_kinds_needs_room_for_both(dispatcher: Dispatcher, coroutines: Takes) -> None:
    coroutines.size = 2
    due(5, remind)
    for _ in range(4):
        dispatcher.run_once()
    assert len(coroutines.fed) == 2


def test_coroutines_sent_to_a_topic_of_other_tasks_keep_to_the_room_of_the_event_loop(
    dispatcher: Dispatcher, pool: Takes, coroutines: Takes, released: list[Lease]
) -> None:
    coroutines.size = 2
    remind.using(due_at=LONG_AGO, topic="crowd").enqueue_many([(n,) for n in range(30)])
    for _ in range(4):
        dispatcher.run_once()
    assert (len(coroutines.fed), pool.fed) == (2, [])
    too_many = len(released)
    assert too_many
    dispatcher._store.release(Partition("crowd", 0), released)
    dispatcher.hint(None, 0)
    for _ in range(4):
        dispatcher.run_once()
    assert (len(coroutines.fed), len(released)) == (
        2,
        too_many,
    )  # it knows now what the topic holds
    coroutines.size = 30
    settle_down(dispatcher)
    assert len(coroutines.fed) == 30


def test_tasks_sent_to_a_topic_of_coroutines_keep_to_the_room_of_the_threads(
    dispatcher: Dispatcher, pool: Takes, released: list[Lease]
) -> None:
    pool.size = 3
    crowd.using(due_at=LONG_AGO, topic="waits-async").enqueue_many([(n,) for n in range(2)])
    settle_down(dispatcher)
    crowd.using(due_at=LONG_AGO, topic="waits-async").enqueue_many([(n,) for n in range(30)])
    dispatcher.hint(None, 0)
    for _ in range(4):
        dispatcher.run_once()
    assert len(pool.fed) == 3


def test_partition_that_waits_for_the_archiver_is_looked_at_again_within_a_second(
    dispatcher: Dispatcher, pool: Takes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody says that there is room: an archiver with another limit does not know that we wait."""
    store, now_ms = dispatcher._store, dispatcher._clock.now_ms
    settings = store.client.settings
    monkeypatch.setattr(store.client, "settings", replace(settings, finished_limit=0))
    due(2)
    settle_down(dispatcher)
    assert pool.fed == []
    assert 0.5 < dispatcher.run_once() <= module.UNARCHIVED_LOOK_MS / 1000
    monkeypatch.setattr(store.client, "settings", settings)
    monkeypatch.setattr(dispatcher._clock, "now_ms", lambda: now_ms() + module.UNARCHIVED_LOOK_MS)
    settle_down(dispatcher)
    assert len(pool.fed) == 2


def test_full_event_loop_does_not_stop_the_threads(
    dispatcher: Dispatcher, pool: Takes, coroutines: Takes
) -> None:
    from tests.app.tasks import wait_async

    coroutines.size = 0
    wait_async.using(due_at=LONG_AGO).enqueue()
    due(3, crowd)
    for _ in range(4):
        dispatcher.run_once()
    assert (len(pool.fed), coroutines.fed) == (3, [])


def test_flood_in_one_topic_starves_none(dispatcher: Dispatcher, pool: Takes) -> None:
    pool.size = 0
    due(300)
    due(30, crowd)
    dispatcher.run_once()
    pool.size = 60
    for _ in range(10):
        dispatcher.run_once()
    served = [lease.partition.topic for lease in pool.fed]
    assert served.count("crowd") == 30


def test_limit_of_messages(dispatcher: Dispatcher, pool: Takes) -> None:
    dispatcher.limit = 5
    due(20)
    for _ in range(5):
        dispatcher.run_once()
    assert len(pool.fed) == dispatcher.claimed == 5


def test_limit_counts_what_is_run_and_not_what_is_given_back(
    dispatcher: Dispatcher, pool: Takes
) -> None:
    dispatcher.limit = 5
    dispatcher.returned = lambda: 3
    due(20)
    for _ in range(5):
        dispatcher.run_once()
    assert (len(pool.fed), dispatcher.claimed) == (8, 5)


def test_round_ends_at_a_suspect_and_the_next_one_has_its_turn_later(
    pool: Any, coroutines: Any, shared: Shared, delayq: RedisStore
) -> None:
    """Both would be claimed in one round, and the first would be forgotten: held, extended for
    ever, never run."""

    def give_back(leases: Sequence[Lease], *, later: bool = False) -> None:
        for lease in leases:
            delayq.release(lease.partition, [lease])
            shared.held.discard(lease)

    dispatcher = Dispatcher(shared, Fleet(shared), pool, coroutines, give_back, no_batches)
    first, second = (
        record.using(due_at=LONG_AGO).enqueue(1),
        remind.using(due_at=LONG_AGO).enqueue(2),
    )
    for handle in (first, second):
        crash(delayq, 2, handle)
    dispatcher.run_once()
    assert (len(shared.held), dispatcher.quarantine.keeps) == (1, True)
    for _ in range(3):
        dispatcher.run_once()
    assert {*pool.fed, *coroutines.fed} == shared.held
    shared.held.clear()

    def both_ran() -> bool:
        dispatcher.run_once()
        return {lease.id.hex() for lease in (*pool.fed, *coroutines.fed)} == {first.id, second.id}

    eventually(both_ran)


def test_nothing_is_claimed_beside_a_suspect(
    dispatcher: Dispatcher, pool: Takes, delayq: RedisStore
) -> None:
    suspect = record.using(due_at=LONG_AGO).enqueue(1)
    crash(delayq, 2, suspect)
    dispatcher.run_once()
    due(3)
    dispatcher.hint(DEFAULT, 0)
    for _ in range(3):
        dispatcher.run_once()
    assert [lease.id.hex() for lease in pool.fed] == [suspect.id]


def test_partition_that_is_damaged_does_not_hold_up_the_others(
    dispatcher: Dispatcher, pool: Takes, delayq: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that is no outage would come again in every round, before the others have had their
    turns."""
    due(3)
    delayq.client.command("SET", leased_key(delayq.client.prefix, Partition("crowd", 0)), "no zset")
    crowd.using(due_at=LONG_AGO).enqueue(1)
    settle_down(dispatcher)
    assert len(pool.fed) == 3
    assert "crowd:0 cannot be claimed from, next try in 5 s: " in caplog.text


def test_paused_topic_costs_nothing_and_goes_on_when_resumed(
    dispatcher: Dispatcher, pool: Takes, delayq: RedisStore
) -> None:
    due(1)
    pause_topic("default")
    settle_down(dispatcher)
    assert pool.fed == []
    before = scripts_run(delayq)
    dispatcher.sweeper.at = 0
    dispatcher.run_once()
    assert scripts_run(delayq) == before
    resume_topic("default")
    dispatcher.sweeper.at = 0
    settle_down(dispatcher)
    assert len(pool.fed) == 1


def test_expired_messages_are_told(dispatcher: Dispatcher, heard: Heard, pool: Takes) -> None:
    handle = record.using(due_at=LONG_AGO, expires=60, key="k").enqueue(1)
    settle_down(dispatcher)
    assert pool.fed == []
    assert [(event.id, event.reason) for event in heard["expired"]] == [(handle.id, "expired")]
    assert counters("default")["expired"] == 1


def test_new_partitions_are_found_while_it_runs(
    dispatcher: Dispatcher, pool: Takes, settings: Any, delayq: RedisStore
) -> None:
    settle_down(dispatcher)
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": 4}}}
    due(40, crowd)
    dispatcher.sweeper.at = dispatcher.sweeper.partitions_at = 0
    delayq.partitions.forget()
    settle_down(dispatcher)
    assert len(pool.fed) == 40


def test_what_waited_too_long_in_the_buffer_is_released(
    dispatcher: Dispatcher, pool: Takes, released: list[Lease]
) -> None:
    due(1)
    settle_down(dispatcher)
    pool.old = list(pool.fed)
    dispatcher.run_once()
    assert released == pool.old or len(released) == 1


def test_claim_whose_answer_is_lost_is_given_back(
    single: Dispatcher, pool: Takes, delayq: RedisStore
) -> None:
    """Nobody knows of these leases: they would run out, and each would count as a crash."""
    due(3)
    with lost_answers() as lost, pytest.raises(DelayQError):
        single.run_once()
    assert len(lost) == 1
    assert (pool.fed, topic_stats("default").leased) == ([], 3)
    settle_down(single)
    assert {(lease.attempts.attempt, lease.attempts.crashes) for lease in pool.fed} == {(1, 0)}
    assert len(pool.fed) == 3
    assert topic_stats("default").leased == 3


def test_release_whose_answer_is_lost_is_repeated(single: Dispatcher, pool: Takes) -> None:
    due(3)
    with lost_answers(times=3):
        for _ in range(3):
            with pytest.raises(DelayQError):
                single.run_once()
    settle_down(single)
    assert {(lease.attempts.attempt, lease.attempts.crashes) for lease in pool.fed} == {(1, 0)}
    assert len(pool.fed) == 3


def test_redis_that_is_back_is_said_and_everything_is_looked_at(
    dispatcher: Dispatcher,
    pool: Takes,
    shared: Shared,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from django_delayq.core.exceptions import StoreUnavailable

    def away(*args: object) -> Any:
        raise StoreUnavailable("away")

    settle_down(dispatcher)
    assert dispatcher.connected
    due(1)
    with monkeypatch.context() as patched:
        patched.setattr(shared.store.queries, "counters", away)
        dispatcher.sweeper.at = 0
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                dispatcher.run_once()
            assert not dispatcher.connected
    settle_down(dispatcher)
    assert dispatcher.connected
    assert len(pool.fed) == 1
    assert caplog.text.count("Redis is back after") == 1


def test_follows_the_servers_clock(
    dispatcher: Dispatcher, shared: Shared, delayq: RedisStore
) -> None:
    settle_down(dispatcher)
    assert shared.clock.now_ms() == pytest.approx(delayq.clock_ms(), abs=50)


@pytest.mark.django_db(transaction=True)
def test_purged_topic_is_quiet(dispatcher: Dispatcher, pool: Takes) -> None:
    handle = record.using(delay=0.3).enqueue(1)
    settle_down(dispatcher)
    purge_topic("default")
    dispatcher.agenda.expect(DEFAULT, 0)
    settle_down(dispatcher)
    assert handle.get() is None
    assert pool.fed == []
    assert dispatcher.agenda.visits[DEFAULT].due_ms is None


def test_unknown_task_goes_to_the_threads(
    dispatcher: Dispatcher, pool: Takes, coroutines: Takes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_delayq.tasks import registry

    due(1, remind)
    monkeypatch.setattr(registry, "by_code", {})
    settle_down(dispatcher)
    assert (len(pool.fed), coroutines.fed) == (1, [])


def test_many_due_messages_are_claimed_quickly(
    dispatcher: Dispatcher, pool: Takes, delayq: RedisStore
) -> None:
    pool.size = 1000
    noop.using(due_at=LONG_AGO).enqueue_many([()] * 1000)
    before, begun = scripts_run(delayq), time.monotonic()
    settle_down(dispatcher)
    assert len(pool.fed) == 1000
    assert scripts_run(delayq) - before < 30
    assert time.monotonic() - begun < 5


# A pause that ends


def test_wakes_by_itself_when_a_pause_ends_without_any_hint(
    dispatcher: Dispatcher, pool: Takes, shared: Shared, settings: Any
) -> None:
    due(1)
    settle_down(dispatcher)
    pool.fed.clear()
    until = datetime.fromtimestamp(shared.clock.now_ms() / 1000 + 0.5, tz=timezone.utc)
    pause_topic("default", until=until)
    due(1)
    dispatcher.sweeper.at = 0
    dispatcher.run_once()
    dispatcher.sweeper.at = time.monotonic() + 3600  # it hears of nothing any more
    slept = []
    while not pool.fed and len(slept) < 4:
        slept.append(dispatcher.run_once())
        if not pool.fed:
            dispatcher.sleeper.wait(slept[-1])
    assert len(pool.fed) == 1
    assert 0 < slept[0] <= 0.51
    assert shared.clock.now_ms() / 1000 - until.timestamp() < 1


def test_pause_with_an_end_costs_nothing_while_it_lasts(
    dispatcher: Dispatcher, delayq: RedisStore
) -> None:
    due(1)
    pause_topic("default", until=datetime.now(tz=timezone.utc) + timedelta(hours=1))
    settle_down(dispatcher)
    before = scripts_run(delayq)
    for _ in range(3):
        dispatcher.sweeper.at = 0
        assert 0 < dispatcher.run_once() <= 1.0
    assert scripts_run(delayq) == before


def test_later_end_of_a_second_pause_counts(
    dispatcher: Dispatcher, shared: Shared, pool: Takes
) -> None:
    now = datetime.now(tz=timezone.utc)
    due(1)
    pause_topic("default", until=now + timedelta(seconds=60))
    settle_down(dispatcher)
    later = now + timedelta(hours=1)
    pause_topic("default", until=later)
    dispatcher.sweeper.at = 0
    settle_down(dispatcher)
    assert dispatcher.agenda.visits[DEFAULT].due_ms == -(
        -int(later.timestamp() * 1_000_000) // 1000
    )


# Told to claim nothing


def test_quiet_worker_claims_nothing_and_costs_no_script(
    dispatcher: Dispatcher, pool: Takes, delayq: RedisStore
) -> None:
    settle_down(dispatcher)
    dispatcher.set_quiet(True)
    due(3)
    dispatcher.hint(DEFAULT, 0)
    before = scripts_run(delayq)
    for _ in range(3):
        dispatcher.sweeper.at = 0
        assert 0 < dispatcher.run_once() <= 1.0
    assert (pool.fed, scripts_run(delayq)) == ([], before)


def test_worker_that_goes_on_finds_what_came_meanwhile(dispatcher: Dispatcher, pool: Takes) -> None:
    settle_down(dispatcher)
    dispatcher.set_quiet(True)
    due(3)
    dispatcher.run_once()
    dispatcher.set_quiet(False)
    settle_down(dispatcher)
    assert len(pool.fed) == 3


def test_worker_that_is_told_so_wakes_at_once_and_says_so_once(
    dispatcher: Dispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    settle_down(dispatcher)
    for quiet in (True, True, False, False):
        dispatcher.set_quiet(quiet)
    dispatcher.sleeper.wait(3600)  # does not sleep
    assert [r.getMessage() for r in caplog.records] == [
        "told to claim nothing",
        "told to claim again",
    ]


def test_first_words_that_nothing_was_told_are_not_said(
    dispatcher: Dispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher.set_quiet(False)
    assert caplog.records == []


def test_quiet_worker_gives_back_what_waits_too_long_in_its_buffer(
    dispatcher: Dispatcher, pool: Takes, released: list[Lease]
) -> None:
    due(1)
    settle_down(dispatcher)
    dispatcher.set_quiet(True)
    pool.old = list(pool.fed)
    dispatcher.run_once()
    assert len(released) == 1


def test_suspect_that_a_quiet_worker_holds_runs(
    dispatcher: Dispatcher, pool: Takes, delayq: RedisStore
) -> None:
    """Else nobody runs it: its lease is extended for as long as the worker is quiet."""
    due(1)
    for _ in range(2):
        (lease,) = delayq.claim(DEFAULT, 1).leases
        end_lease(delayq, lease)
        delayq.reclaim(DEFAULT)
        delayq.reschedule_in(DEFAULT, lease.id, "1000000000000")
    dispatcher.run_once()
    assert (topic_stats("default").leased, pool.fed) == (1, [])
    dispatcher.set_quiet(True)
    dispatcher.run_once()
    assert len(pool.fed) == 1


# Among other workers


@pytest.fixture
def others(dispatcher: Dispatcher, fleet: Fleet, shared: Shared) -> Fleet:
    """Three other workers are there; what this one says goes nowhere."""
    for name in ("a", "b", "c"):
        fleet.hear(name, 0)
    fleet.learn({name: {"topics": shared.topics, "at_ms": 0} for name in ("a", "b", "c")}, 0)
    dispatcher.run_once()
    return fleet


def place(fleet: Fleet, rank: int, *, topic: str = "default") -> None:
    """As if so many workers came before this one everywhere."""
    ranks = dict.fromkeys((Partition(topic, 0), Partition("crowd", 0)), rank)
    fleet._ranked = fleet._serving_now, ranks


def pass_time(dispatcher: Dispatcher, seconds: float) -> None:
    dispatcher.sleeper.wait(0)  # whatever has woken it before
    dispatcher.sleeper.wait(seconds + 0.02)


def test_home_claims_at_the_due_time(dispatcher: Dispatcher, pool: Takes, others: Fleet) -> None:
    place(others, 0)
    settle_down(dispatcher)
    due(1)
    dispatcher.hint(DEFAULT, 0)
    dispatcher.run_once()
    assert len(pool.fed) == 1


def test_second_looks_later_and_claims_only_what_is_late(
    dispatcher: Dispatcher, pool: Takes, others: Fleet, delayq: RedisStore, shared: Shared
) -> None:
    place(others, 1)
    settle_down(dispatcher)
    record.enqueue(1)
    now_ms = shared.clock.now_ms()
    before = scripts_run(delayq)
    dispatcher.hint(DEFAULT, now_ms)
    pause = dispatcher.run_once()
    assert (pool.fed, scripts_run(delayq)) == ([], before)
    assert pause == pytest.approx(STEP_IN, abs=0.1)
    pass_time(dispatcher, STEP_IN)
    dispatcher.run_once()
    assert len(pool.fed) == 1
    assert others.rank(DEFAULT) == 0  # who came before it is absent now


def test_order_that_changes_again_and_again_is_followed_a_tenth_of_the_time(
    dispatcher: Dispatcher, others: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(others, 3)
    settle_down(dispatcher)
    turns, asked = dispatcher._turns, list[Partition]()

    def rank(partition: Partition) -> int:
        asked.append(partition)
        time.sleep(0.005)
        return 3

    monkeypatch.setattr(others, "rank", rank)
    others.changes += 1
    turns.follow()
    served = len(dispatcher.agenda.visits)
    assert len(asked) == served
    others.changes += 1  # and again: that has to wait
    turns.follow()
    assert len(asked) == served and 0.1 < turns.follow_in < 0.3
    assert dispatcher.run_once() <= 0.3
    pass_time(dispatcher, turns.follow_in)
    turns.follow()
    assert (len(asked), turns.follow_in) == (2 * served, math.inf)


def test_second_finds_that_the_home_has_claimed(
    dispatcher: Dispatcher, pool: Takes, others: Fleet, delayq: RedisStore
) -> None:
    place(others, 1)
    settle_down(dispatcher)
    due(1)
    dispatcher.hint(DEFAULT, 0)
    dispatcher.run_once()
    assert len(delayq.claim(DEFAULT, 1).leases) == 1  # the home
    dispatcher.agenda.visits[DEFAULT].may_be_leased = False
    before = scripts_run(delayq)
    pass_time(dispatcher, STEP_IN)
    dispatcher.run_once()
    assert (pool.fed, scripts_run(delayq), others.size) == ([], before, 4)
    assert dispatcher.agenda.visits[DEFAULT].may_be_leased  # the home may die


def test_one_that_was_the_home_while_nothing_waited_tells_nobody(
    dispatcher: Dispatcher, pool: Takes, others: Fleet, delayq: RedisStore, shared: Shared
) -> None:
    place(others, 0)
    due(1)
    dispatcher.hint(DEFAULT, 0)
    dispatcher.run_once()
    settle_down(dispatcher)
    assert len(pool.fed) == 1
    place(others, 1)
    due(1)
    dispatcher.hint(DEFAULT, 0)
    dispatcher.run_once()
    assert len(delayq.claim(DEFAULT, 1).leases) == 1  # the home that there is now
    pass_time(dispatcher, STEP_IN)
    said: list[str] = []
    with mock.patch.object(shared.store.workers, "hint", said.append):
        dispatcher.run_once()
    assert f"{DEFAULT}:0" not in said


def test_damaged_partition_of_another_home_holds_up_nothing(
    dispatcher: Dispatcher, pool: Takes, others: Fleet, delayq: RedisStore
) -> None:
    place(others, 1)
    settle_down(dispatcher)
    lane = partition_keys(delayq.client.prefix, Partition("crowd", 0))[1]
    delayq.client.command("SET", lane, "no zset")
    due(1)
    for partition in (DEFAULT, Partition("crowd", 0)):
        dispatcher.hint(partition, 0)
    dispatcher.run_once()
    pass_time(dispatcher, STEP_IN)
    dispatcher.run_once()
    assert len(pool.fed) == 1


def test_hints_for_others_wake_nobody(dispatcher: Dispatcher, others: Fleet) -> None:
    place(others, 3)
    others.is_drawn = lambda number, winners=2: False  # type: ignore[method-assign]
    settle_down(dispatcher)
    dispatcher.sleeper.wait(0)
    dispatcher.hint(DEFAULT, 0)
    assert dispatcher.sleeper._lock.locked()
    assert not dispatcher._turns.has_hints


def test_full_home_passes_on_what_is_due(
    dispatcher: Dispatcher, pool: Takes, others: Fleet, shared: Shared
) -> None:
    place(others, 0)
    settle_down(dispatcher)
    pool.size = 0
    due(1)
    said: list[str] = []
    with mock.patch.object(shared.store.workers, "hint", said.append):
        dispatcher.hint(DEFAULT, 0)
        dispatcher.run_once()
    assert f"{FLEET_HINT}{shared.name}:{FULL}:0" in said
    assert f"{DEFAULT}:0" in said


def test_worker_that_has_put_something_off_leaves_it_to_others(
    dispatcher: Dispatcher, pool: Takes, others: Fleet, shared: Shared
) -> None:
    place(others, 0)
    settle_down(dispatcher)
    said: list[str] = []
    with mock.patch.object(shared.store.workers, "hint", said.append):
        others._said_at = 0.0  # it says nothing twice within a second
        dispatcher.note_unfit()
        assert not dispatcher.sleeper._lock.locked()  # it wakes, to say it
        dispatcher.run_once()
        assert said == [f"{FLEET_HINT}{shared.name}:{UNFIT}:0"]
        due(1)
        dispatcher.hint(DEFAULT, 0)
        dispatcher.run_once()
    assert not pool.fed
    pass_time(dispatcher, 2 * STEP_IN)  # nobody has come
    dispatcher.run_once()
    assert len(pool.fed) == 1


def test_what_a_home_that_does_not_fit_finds_is_told_to_those_who_fit(
    dispatcher: Dispatcher, pool: Takes, others: Fleet, shared: Shared
) -> None:
    """Its hint was lost, and this worker leaves it to others."""
    place(others, 0)
    settle_down(dispatcher)
    others._said_at = 0.0  # it says nothing twice within a second
    dispatcher.note_unfit()
    settle_down(dispatcher)
    handle = record.using(delay=60).enqueue(1)
    said: list[str] = []
    with (
        mock.patch.object(shared.store.workers, "hint", said.append),
        mock.patch.object(others, "is_drawn", lambda *_: False),
    ):
        dispatcher.agenda.expect(DEFAULT, 0)  # a sweep
        settle_down(dispatcher)
        assert said == [f"{DEFAULT}:{handle.due_ms}"]
    assert not pool.fed


def test_backlog_is_for_everybody_who_knows_of_it(
    dispatcher: Dispatcher, pool: Takes, others: Fleet
) -> None:
    place(others, 0)
    settle_down(dispatcher)
    pool.size = 3
    due(10)
    dispatcher.hint(DEFAULT, 0)
    dispatcher.run_once()
    place(others, 2)
    pool.size = 100
    settle_down(dispatcher)
    assert len(pool.fed) == 10


def test_partitions_of_a_worker_that_leaves_are_looked_at(
    dispatcher: Dispatcher, pool: Takes, others: Fleet
) -> None:
    place(others, 2)
    dispatcher._turns._fleet_changes = -1
    settle_down(dispatcher)
    due(1)  # no hint
    others.hear("a", GONE)
    others.hear("b", GONE)
    others.hear("c", GONE)
    pass_time(dispatcher, dispatcher._turns.follow_in)
    settle_down(dispatcher)
    assert len(pool.fed) == 1


@pytest.mark.parametrize("known", ["before", "meanwhile"])
def test_what_was_left_to_workers_that_came_and_went_between_two_looks_is_claimed(
    dispatcher: Dispatcher, pool: Takes, others: Fleet, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    """A look at the order of the workers may be put off: each time this one was the home."""
    monkeypatch.setattr(others, "is_drawn", lambda *of: False)
    place(others, 0)
    dispatcher._turns._fleet_changes = -1
    settle_down(dispatcher)
    if known == "meanwhile":
        place(others, 2)
    record.using(delay=0.1).enqueue(1)
    dispatcher.hint(DEFAULT, 0)
    settle_down(dispatcher)
    place(others, 2)
    pass_time(dispatcher, 0.1)
    dispatcher.run_once()
    assert pool.fed == []
    for name in ("a", "b", "c"):
        others.hear(name, GONE)
    pass_time(dispatcher, dispatcher._turns.follow_in)
    settle_down(dispatcher)
    assert len(pool.fed) == 1


def test_partition_that_was_added_is_looked_at_when_all_who_came_first_have_gone(
    dispatcher: Dispatcher, others: Fleet, shared: Shared
) -> None:
    added = next(part for n in range(1, 99) if others.rank(part := Partition("default", n)) > 1)
    shared.store.topics.register("default", added.number + 1)
    dispatcher.hint(added, 0)
    settle_down(dispatcher)
    visit = dispatcher.agenda.visits[added]
    assert (visit.due_ms, visit.rank) == (None, others.rank(added))
    silent = {name: other._replace(load=ABSENT) for name, other in others._others.items()}
    others._replace(silent)  # all at once, as after a roll call
    pass_time(dispatcher, dispatcher._turns.follow_in)
    dispatcher._turns.follow()
    assert visit.due_ms == 0


def test_quiet_worker_leaves_the_fleet(
    dispatcher: Dispatcher, others: Fleet, shared: Shared
) -> None:
    said: list[str] = []
    with mock.patch.object(shared.store.workers, "hint", said.append):
        dispatcher.set_quiet(True)
        dispatcher.run_once()
        dispatcher.set_quiet(False)
        dispatcher.run_once()
    mine = [text for text in said if text.startswith(f"{FLEET_HINT}{shared.name}:")]
    assert mine == [f"{FLEET_HINT}{shared.name}:{GONE}:0", f"{FLEET_HINT}{shared.name}:0:0"]


def test_hints_of_topics_that_others_serve_begin_no_round(
    dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle_down(dispatcher)
    woken = mock.Mock()
    monkeypatch.setattr(dispatcher.sleeper, "wake", woken)
    dispatcher.hint(Partition("elsewhere", 0), 0)
    assert not woken.called
    assert not dispatcher._turns.has_hints
    dispatcher.hint(DEFAULT, 0)
    assert woken.called


def test_partition_that_a_hint_tells_of_is_served_at_once(
    dispatcher: Dispatcher, shared: Shared
) -> None:
    settle_down(dispatcher)
    shared.store.topics.register("default", 2)
    dispatcher.hint(Partition("default", 1), 0)
    dispatcher.run_once()
    assert Partition("default", 1) in dispatcher.agenda.visits
