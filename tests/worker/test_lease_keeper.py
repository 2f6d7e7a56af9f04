"""Leases of what is held."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from django_delayq import delayed_task
from django_delayq.core.exceptions import StoreError
from django_delayq.core.task_report import TaskReport
from django_delayq.store.keys import leased_key
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore
from django_delayq.worker import lease_keeper as module
from django_delayq.worker.lease_keeper import LeaseKeeper
from django_delayq.worker.shared import Shared
from tests.app.tasks import act, hang, hang_async, noop, record
from tests.faults import scripts_run
from tests.worker.conftest import Heard
from tests.worker.moving import pass_time, steal

Claim = Callable[..., Lease]


@pytest.fixture
def overruns() -> list[Lease]:
    return []


@pytest.fixture
def ended() -> set[Lease]:
    """Leases whose tasks do not run any more: their results wait to be settled."""
    return set()


@pytest.fixture
def keeper(
    shared: Shared, overruns: list[Lease], ended: set[Lease], monkeypatch: pytest.MonkeyPatch
) -> LeaseKeeper:
    monkeypatch.setattr(module.faulthandler, "dump_traceback", lambda **kwargs: None)
    return LeaseKeeper(shared, overruns.append, lambda lease: lease not in ended)


def deadline(store: RedisStore, lease: Lease) -> float:
    return float(
        store.client.command("ZSCORE", leased_key(store.client.prefix, lease.partition), lease.id)
    )


def started(lease: Lease, seconds_ago: float = 0.0) -> Lease:
    lease.started_at = time.monotonic()
    pass_time(lease, seconds_ago)
    return lease


def test_lease_is_extended_after_a_third_of_it(
    keeper: LeaseKeeper, claim: Claim, delayq: RedisStore
) -> None:
    lease = claim(noop)
    delayq.client.command(
        "ZADD",
        leased_key(delayq.client.prefix, lease.partition),
        "XX",
        int(delayq.clock_ms() + 10_000),
        lease.id,
    )
    first = deadline(delayq, lease)
    pass_time(lease, 19)
    keeper.run_once()
    assert deadline(delayq, lease) == first
    pass_time(lease, 2)
    assert keeper.run_once() == keeper.interval
    assert deadline(delayq, lease) - delayq.clock_ms() == pytest.approx(60_000, abs=2000)
    assert time.monotonic() - lease.renewed_at < 5


def test_each_partition_is_one_call(keeper: LeaseKeeper, claim: Claim, delayq: RedisStore) -> None:
    for task in (noop, noop, noop, act, act):
        pass_time(claim(task), 30)
    before = scripts_run(delayq)
    keeper.run_once()
    assert scripts_run(delayq) - before == 2
    keeper.run_once()
    assert scripts_run(delayq) - before == 2


def test_what_waits_in_the_buffer_is_extended_too(
    keeper: LeaseKeeper, claim: Claim, delayq: RedisStore
) -> None:
    lease = claim(hang)
    assert lease.started_at == 0
    pass_time(lease, 100)
    keeper.run_once()
    assert time.monotonic() - lease.renewed_at < 5


def test_lost_lease_is_marked_and_said_once(
    keeper: LeaseKeeper,
    claim: Claim,
    delayq: RedisStore,
    heard: Heard,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lease = claim(noop)
    other = steal(delayq, lease)
    pass_time(lease, 30)
    keeper.run_once()
    keeper.run_once()
    assert lease.lost
    assert [(event.id, event.attempt) for event in heard["lease_lost"]] == [(lease.id.hex(), 1)]
    assert "1 leases of topic default ended although their tasks still run" in caplog.text
    assert delayq.ack(other.partition, [(other, b"{}")]) == []


def test_what_is_settled_meanwhile_is_not_lost(
    keeper: LeaseKeeper, claim: Claim, delayq: RedisStore, heard: Heard
) -> None:
    lease = claim(noop)
    delayq.ack(lease.partition, [(lease, b"{}")])
    pass_time(lease, 30)
    keeper.run_once()
    assert (lease.lost, heard["lease_lost"]) == (False, [])


@pytest.mark.parametrize("task", [hang, hang_async], ids=["def", "async def"])
def test_task_beyond_its_max_runtime_is_extended_no_more(
    keeper: LeaseKeeper, claim: Claim, delayq: RedisStore, overruns: list[Lease], *, task: object
) -> None:
    lease = started(claim(task), 1.5)
    first = deadline(delayq, lease)
    keeper.run_once()
    keeper.run_once()
    assert deadline(delayq, lease) == first
    assert overruns == [lease]


def test_max_runtime_counts_from_the_start_of_the_task(
    keeper: LeaseKeeper, claim: Claim, overruns: list[Lease]
) -> None:
    lease = claim(hang)
    pass_time(lease, 1.5)
    started(lease, 0.5)
    keeper.run_once()
    assert overruns == []


def test_overrun_is_noticed_when_it_happens_however_long_the_lease(
    keeper: LeaseKeeper, claim: Claim, overruns: list[Lease]
) -> None:
    """A coroutine with max_runtime=1 and a ttr of an hour must not run for twenty minutes."""
    lease = started(claim(hang.using(ttr=3600)), 1.5)
    keeper.run_once()
    assert overruns == [lease]


def test_overrun_of_a_thread_shows_where_it_hangs(
    keeper: LeaseKeeper,
    claim: Claim,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dumps: list[bool] = []
    monkeypatch.setattr(
        module.faulthandler, "dump_traceback", lambda **kwargs: dumps.append(kwargs["all_threads"])
    )
    started(claim(hang), 1.5)
    keeper.run_once()
    keeper.run_once()
    assert dumps == [True]
    assert "task tests.app.tasks.hang has run for 2 s, more than its max_runtime" in caplog.text


def test_overrun_ends_with_its_task(keeper: LeaseKeeper, claim: Claim, ended: set[Lease]) -> None:
    lease = started(claim(hang), 1.5)
    keeper.run_once()
    assert keeper.overrun == 1
    ended.add(lease)
    assert keeper.overrun == 0


def test_result_that_waits_for_redis_is_no_overrun(
    keeper: LeaseKeeper, claim: Claim, overruns: list[Lease], ended: set[Lease], delayq: RedisStore
) -> None:
    """Its task ended long ago, in time: its lease is kept until it is settled."""
    lease = started(claim(hang), 1.5)
    ended.add(lease)
    keeper.run_once()
    assert (overruns, keeper.overrun, keeper.gave_up(lease)) == ([], 0, False)
    assert deadline(delayq, lease) > delayq.clock_ms()
    assert time.monotonic() - lease.renewed_at < 1


def test_overrun_is_noticed_also_when_the_lease_is_lost(
    keeper: LeaseKeeper, claim: Claim, overruns: list[Lease]
) -> None:
    """Redis was away for a whole lease: the task may hang all the same."""
    lease = started(claim(hang_async), 1.5)
    lease.lost = True
    keeper.run_once()
    assert overruns == [lease]


def test_stderr_that_is_no_file_does_not_hold_up_the_other_leases(
    keeper: LeaseKeeper, claim: Claim, overruns: list[Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_file(**kwargs: object) -> None:
        raise AttributeError("'NoneType' object has no attribute 'fileno'")

    monkeypatch.setattr(module.faulthandler, "dump_traceback", no_file)
    other = claim(noop)
    pass_time(other, 30)
    lease = started(claim(hang), 1.5)
    keeper.run_once()
    assert overruns == [lease]
    assert time.monotonic() - other.renewed_at < 5


def test_partition_that_is_damaged_does_not_cost_the_others_their_leases(
    keeper: LeaseKeeper, claim: Claim, delayq: RedisStore
) -> None:
    leases = [claim(task) for task in (noop, act, record, hang)]
    for lease in leases:
        pass_time(lease, 30)
    damaged = leases[1]
    delayq.client.command("SET", leased_key(delayq.client.prefix, damaged.partition), "no zset")
    with pytest.raises(StoreError):
        keeper.run_once()
    assert [time.monotonic() - lease.renewed_at < 5 for lease in leases] == [
        True,
        False,
        True,
        True,
    ]


def test_unknown_task_has_no_max_runtime(
    keeper: LeaseKeeper, claim: Claim, overruns: list[Lease]
) -> None:
    lease = started(claim(hang), 1.5)
    lease.record = lease.record[:19] + b"????" + lease.record[23:]
    keeper.run_once()
    assert overruns == []


# Cancelled while it runs


def cancel(store: RedisStore, lease: Lease) -> None:
    assert store.cancel_running(lease.partition.topic, lease.id)


def test_a_run_whose_message_was_cancelled_is_ended_at_the_second_look(
    keeper: LeaseKeeper, claim: Claim, delayq: RedisStore, overruns: list[Lease], heard: Heard
) -> None:
    """At the first look its own ack may have ended it a moment ago."""
    lease, other = started(claim(hang_async)), started(claim(noop))
    cancel(delayq, lease)
    keeper.check(lease.id)
    assert keeper.run_once() == module.LOOK_AGAIN
    assert (lease.lost, overruns) == (False, [])
    assert keeper.run_once() == keeper.interval
    assert (lease.lost, overruns) == (True, [lease])
    assert [event.reason for event in heard["lease_lost"]] == ["cancelled while it ran"]
    assert not other.lost


def test_a_run_that_ends_between_the_two_looks_is_left_alone(
    keeper: LeaseKeeper,
    claim: Claim,
    delayq: RedisStore,
    overruns: list[Lease],
    ended: set[Lease],
    heard: Heard,
) -> None:
    lease = started(claim(noop))
    delayq.ack(lease.partition, [(lease, b"{}")])
    keeper.check(lease.id)
    keeper.run_once()
    ended.add(lease)
    keeper.run_once()
    assert (lease.lost, overruns, heard["lease_lost"]) == (False, [], [])


def test_without_a_hint_it_is_noticed_when_the_lease_is_extended(
    keeper: LeaseKeeper, claim: Claim, delayq: RedisStore, overruns: list[Lease]
) -> None:
    lease = started(claim(hang_async))
    cancel(delayq, lease)
    keeper.run_once()
    keeper.run_once()
    assert not lease.lost
    lease.renewed_at -= 21
    keeper.run_once()
    keeper.run_once()
    assert overruns == [lease]


def test_what_waits_in_the_buffer_does_not_start_when_it_was_cancelled(
    keeper: LeaseKeeper, claim: Claim, delayq: RedisStore, ended: set[Lease]
) -> None:
    lease = claim(noop)
    ended.add(lease)  # it does not run yet
    cancel(delayq, lease)
    keeper.check(lease.id)
    keeper.run_once()
    keeper.run_once()
    assert lease.ended


def test_a_run_that_another_worker_has_taken_is_ended_too(
    keeper: LeaseKeeper, claim: Claim, delayq: RedisStore, overruns: list[Lease]
) -> None:
    lease = started(claim(hang_async))
    steal(delayq, lease)
    pass_time(lease, 0.5)
    keeper.check(lease.id)
    keeper.run_once()
    assert overruns == [lease]


# More time


def test_a_run_that_was_extended_goes_on_until_then(
    keeper: LeaseKeeper, claim: Claim, overruns: list[Lease]
) -> None:
    lease = started(claim(hang), 1.5)
    lease.report = TaskReport()
    lease.report.allow(5)
    keeper.run_once()
    assert overruns == []
    lease.report.may_run_until -= 5
    keeper.run_once()
    assert overruns == [lease]


def test_a_run_that_is_extended_after_it_was_given_up_is_kept_again(
    keeper: LeaseKeeper, claim: Claim, delayq: RedisStore
) -> None:
    lease = started(claim(hang), 1.5)
    keeper.run_once()
    assert keeper.gave_up(lease)
    lease.report = TaskReport()
    lease.report.allow(5)
    pass_time(lease, 30)
    lease.started_at = time.monotonic() - 2
    keeper.run_once()
    assert not keeper.gave_up(lease)
    assert time.monotonic() - lease.renewed_at < 1


def test_an_isolated_run_is_left_to_the_thread_that_kills_it(
    keeper: LeaseKeeper, claim: Claim, overruns: list[Lease], declared: dict[str, object]
) -> None:
    @delayed_task(name="tests.apart", isolate=True, max_runtime=1)
    def apart() -> None: ...

    lease = started(claim(apart), 1.5)
    keeper.run_once()
    assert overruns == []
    lease.started_at -= module.KILL_PATIENCE
    keeper.run_once()
    assert overruns == [lease]
