"""Outcomes on their way to Redis."""

from __future__ import annotations

import gc
import json
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import pytest

from django_delayq import State, topic_stats
from django_delayq.client.decorator import DelayedTask
from django_delayq.core import signals
from django_delayq.core.conf import parse_settings
from django_delayq.core.exceptions import OutcomeUnknown, StoreError, StoreUnavailable
from django_delayq.core.signals import Event
from django_delayq.store.connection import open_client
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore
from django_delayq.worker.outcome import Outcome, Result
from django_delayq.worker.settler import Settler
from django_delayq.worker.shared import Shared
from tests.app.tasks import act, noop, record
from tests.faults import lost_answers, scripts_run
from tests.servers import Server, launcher
from tests.worker.conftest import Heard
from tests.worker.moving import LONG_AGO, counters, ended, pass_time, steal

Claim = Callable[..., Lease]


@pytest.fixture
def settled() -> list[Outcome]:
    return []


@pytest.fixture
def settler(shared: Shared, settled: list[Outcome]) -> Settler:
    return Settler(shared, settled.extend)


def outcome(
    lease: Lease,
    result: Result = Result.ACKED,
    *,
    delay_ms: int | None = None,
    reason: str = "",
    task: Any = noop,
) -> Outcome:
    lease.started_at = lease.started_at or time.monotonic()
    made = Outcome(lease, task, result, time.monotonic(), reason)
    made.delay_ms = delay_ms
    return made


def claim_many(shared: Shared, task: DelayedTask[..., Any], count: int) -> Sequence[Lease]:
    task.using(due_at=LONG_AGO).enqueue_many([()] * count)
    leases = [
        lease
        for partition in shared.store.partitions.all(task.options.topic)
        for _ in range(-(-count // 500))
        for lease in shared.store.claim(partition, 500).leases
    ]
    shared.held.update(leases)
    return leases


# What happens to the message


def test_ack_finishes_it(
    settler: Settler, claim: Claim, shared: Shared, settled: list[Outcome]
) -> None:
    lease = claim(noop)
    settler.put(outcome(lease))
    assert not settler.idle
    assert settler.run_once() == settler.interval
    assert settler.idle
    assert (shared.held, settled[0].lease) == (set(), lease)
    assert counters("default") == {"enqueued": 1, "acked": 1}


def test_archive_learns_who_ran_it_when_and_how_long(
    settler: Settler, claim: Claim, delayq: RedisStore
) -> None:
    settler.put(outcome(claim(noop)))
    settler.run_once()
    (entry,) = ended(delayq, "default")
    detail = json.loads(entry["detail"])
    assert (entry["state"], detail["worker"]) == (b"acked", "host:1:test")
    assert detail["started_ms"] == pytest.approx(delayq.clock_ms(), abs=60_000)
    assert 0 <= detail["run_ms"] < 1000


def test_archive_learns_why_it_died(settler: Settler, claim: Claim, delayq: RedisStore) -> None:
    dead = outcome(
        claim(noop),
        Result.DEAD,
        reason='ValueError: "x" 😀',
    )
    dead.traceback = "Traceback ..."
    settler.put(dead)
    settler.run_once()
    detail = json.loads(ended(delayq, "default")[0]["detail"])
    assert (detail["reason"], detail["traceback"]) == ('ValueError: "x" 😀', "Traceback ...")


@pytest.mark.parametrize(
    ("result", "delay_ms", "state", "attempt"),
    [
        (Result.RETRIED, 60_000, State.DELAYED, 1),
        (Result.RETRIED, 0, State.READY, 1),
        (Result.SNOOZED, 60_000, State.DELAYED, 0),
        (Result.PUT_OFF, 60_000, State.DELAYED, 0),
        (Result.RELEASED, None, State.READY, 0),
    ],
)
def test_message_comes_back(
    settler: Settler,
    claim: Claim,
    delayq: RedisStore,
    result: Result,
    delay_ms: int | None,
    *,
    state: State,
    attempt: int,
) -> None:
    lease = claim(noop)
    settler.put(outcome(lease, result, delay_ms=delay_ms))
    settler.run_once()
    found = delayq.queries.find(lease.partition, [lease.id])[0]
    assert found is not None
    assert found.attempts is not None
    assert found.attempts.attempt == attempt
    assert (found.state == State.DELAYED and found.due_at_ms > delayq.clock_ms() + 50_000) == (
        state == State.DELAYED
    )


def test_dead_is_dead(settler: Settler, claim: Claim, delayq: RedisStore) -> None:
    lease = claim(noop)
    settler.put(outcome(lease, Result.DEAD, reason="x"))
    settler.run_once()
    assert delayq.queries.find(lease.partition, [lease.id]) == [None]
    assert counters("default") == {"enqueued": 1, "dead": 1}


# Batches


def test_whatever_waits_leaves_together(
    settler: Settler, shared: Shared, delayq: RedisStore
) -> None:
    settler.put(outcome(*claim_many(shared, noop, 1)))  # Redis may not know the script yet
    settler.run_once()
    for lease in claim_many(shared, noop, 1200):
        settler.put(outcome(lease))
    before = scripts_run(delayq)
    settler.run_once()
    assert scripts_run(delayq) - before == 3
    assert topic_stats("default").counters["acked"] == 1201


@pytest.mark.parametrize(
    ("filled", "count", "gathers"),
    [
        (False, 1, False),
        (False, 7, False),  # the next message of a limit may wait for them
        (False, 8, True),
        (True, 1, False),
        (True, 2, True),
    ],
)
def test_after_a_batch_the_next_one_gathers_for_a_moment(
    shared: Shared, filled: bool, count: int, gathers: bool
) -> None:
    settler = Settler(shared, lambda outcomes: None, lambda: filled)
    leases = claim_many(shared, noop, count + 1)
    waits: list[float] = []
    with mock.patch.object(settler._pace, "wait", waits.append):
        settler.put_all(map(outcome, leases[:count]))
        settler.run_once()
        assert not waits
        settler._settled_at = time.monotonic() + 60  # just now, however slow this machine is
        settler.put(outcome(leases[-1]))
        settler.run_once()
    assert bool(waits) is gathers
    assert settler.idle


def test_where_the_pool_drains_meanwhile_outcomes_wait_no_longer(shared: Shared) -> None:
    filled = [True]
    settler = Settler(shared, lambda outcomes: None, lambda: filled[0])
    leases = claim_many(shared, noop, 3)
    settler.put_all(map(outcome, leases[:2]))
    settler.run_once()
    settler._settled_at = time.monotonic() + 60
    settler.put(outcome(leases[2]))
    waits: list[float] = []

    def drain(seconds: float) -> None:
        waits.append(seconds)
        filled[0] = False

    with mock.patch.object(settler._pace, "wait", drain):
        settler.run_once()
    assert len(waits) == 1


def test_each_partition_and_kind_gets_a_call(
    settler: Settler, claim: Claim, delayq: RedisStore, heard: Heard
) -> None:
    for result in Result:
        for task in (noop, act):
            settler.put(
                outcome(
                    claim(task),
                    result,
                    delay_ms=None if result in (Result.DEAD, Result.ACKED) else 5,
                )
            )
    before = scripts_run(delayq)
    settler.run_once()
    assert scripts_run(delayq) - before <= 2 * 4 * 2
    assert {name: len(heard[name]) for name in heard.names() if name != "enqueued"} == {
        "acked": 2, "retried": 2, "snoozed": 2, "put_off": 2, "released": 2, "dead": 2,
    }  # fmt: skip


def test_what_a_task_raised_is_forgotten_once_it_is_told(
    settler: Settler, claim: Claim, settled: list[Outcome]
) -> None:
    """It holds the frames of the task, and so whatever the task worked on."""

    class Big:
        pass

    def fail() -> None:
        big = Big()
        seen.append(weakref.ref(big))
        raise ValueError(big)

    seen, told = list[weakref.ref[Big]](), list[str]()

    def receive(sender: str, events: Sequence[Event], **kwargs: Any) -> None:
        told.extend(type(event.error).__name__ for event in events)

    signals.retried.connect(receive)
    made = outcome(claim(noop), Result.RETRIED, delay_ms=5)
    try:
        fail()
    except ValueError as error:
        made.error = error
    gc.disable()
    try:
        settler.put(made)
        settler.run_once()
        assert (told, settled, seen[0]()) == (["ValueError"], [made], None)
    finally:
        gc.enable()
        signals.retried.disconnect(receive)


def test_thread_settles_what_is_put(settler: Settler, claim: Claim) -> None:
    from tests.worker.moving import eventually

    lease = claim(noop)
    settler.start()
    settler.put(outcome(lease))
    eventually(lambda: settler.idle and counters("default").get("acked"))
    settler.stop()
    settler.join(5)


# Signals


def test_event_tells_everything(settler: Settler, claim: Claim, heard: Heard) -> None:
    lease = claim(record.using(key="k"), "x")
    settler.put(outcome(lease, Result.RETRIED, delay_ms=7000, reason="ValueError: x", task=record))
    settler.run_once()
    (event,) = heard["retried"]
    assert (event.id, event.task, event.key, event.attempt) == (
        lease.id.hex(),
        "tests.app.tasks.record",
        "k",
        1,
    )
    assert (event.delay_ms, event.reason) == (7000, "ValueError: x")
    assert event.lateness_ms > 0


def test_result_of_a_lost_lease_is_refused_and_said(
    settler: Settler,
    claim: Claim,
    delayq: RedisStore,
    heard: Heard,
    shared: Shared,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lease = claim(noop)
    other = steal(delayq, lease)
    settler.put(outcome(lease))
    settler.run_once()
    assert heard.names() == ["enqueued", "lease_lost"]
    assert "1 result of topic default refused" in caplog.text
    assert (lease.lost, shared.held) == (True, set())
    assert delayq.ack(other.partition, [(other, b"{}")]) == []


def test_lost_lease_in_a_batch_does_not_take_the_others(
    settler: Settler, claim: Claim, delayq: RedisStore, heard: Heard
) -> None:
    lost, fine = claim(noop), claim(noop)
    steal(delayq, lost)
    for lease in (lost, fine):
        settler.put(outcome(lease))
    settler.run_once()
    assert [event.id for event in heard["acked"]] == [fine.id.hex()]
    assert [event.id for event in heard["lease_lost"]] == [lost.id.hex()]


def test_receiver_that_fails_changes_nothing(
    settler: Settler, claim: Claim, settled: list[Outcome]
) -> None:
    def fail(**kwargs: Any) -> None:
        raise ValueError("a receiver's bug")

    signals.acked.connect(fail)
    try:
        settler.put(outcome(claim(noop)))
        settler.run_once()
    finally:
        signals.acked.disconnect(fail)
    assert len(settled) == 1
    assert counters("default")["acked"] == 1


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_receiver_that_ends_the_program_leaves_nothing_behind(
    settler: Settler, claim: Claim, shared: Shared, settled: list[Outcome], error: BaseException
) -> None:
    """What it interrupts is settled in the next round, and nothing is held that is settled."""

    def leave(**kwargs: Any) -> None:
        raise error

    for task in (noop, act, record):
        settler.put(outcome(claim(task)))
    signals.acked.connect(leave)
    try:
        for _ in range(2):
            with pytest.raises(type(error)):
                settler.run_once()
    finally:
        signals.acked.disconnect(leave)
    settler.run_once()
    assert (settler.idle, shared.held, len(settled)) == (True, set(), 3)
    assert [counters(topic)["acked"] for topic in ("default", "modes")] == [2, 1]


# Faults


def test_message_that_redis_cannot_settle_does_not_take_the_others(
    settler: Settler, claim: Claim, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that is no outage: of a batch only the culprit waits, until its lease has ended."""
    leases = [claim(noop) for _ in range(3)]
    ack = shared.store.ack

    def refuse(partition: Any, rows: Any, **kwargs: Any) -> Any:
        if any(lease is leases[1] for lease, _ in rows):
            raise StoreError("WRONGTYPE")
        return ack(partition, rows, **kwargs)

    monkeypatch.setattr(shared.store, "ack", refuse)
    for lease in leases:
        settler.put(outcome(lease))
    settler.run_once()
    assert shared.held == {leases[1]}
    assert counters("default")["acked"] == 2
    pass_time(leases[1], 61)
    settler.run_once()
    assert shared.held == set()


@pytest.mark.parametrize("result", list(Result))
def test_settling_whose_answer_is_lost_is_repeated(
    settler: Settler, claim: Claim, shared: Shared, heard: Heard, result: Result
) -> None:
    """The second call finds that the first one has done it, which is no lost lease."""
    delay_ms = 60_000 if result in (Result.RETRIED, Result.SNOOZED, Result.PUT_OFF) else None
    settler.put(outcome(claim(noop), result, delay_ms=delay_ms))
    before = counters("default")
    with lost_answers() as lost:
        assert settler.run_once() < 1
    assert (len(lost), len(shared.held)) == (1, 1)
    assert not settler.idle
    after = counters("default")
    settler.run_once()
    assert settler.idle
    assert shared.held == set()
    assert counters("default") == after
    assert after != before or result in (Result.RELEASED, Result.PUT_OFF)
    assert [name for name in heard.names() if name != "enqueued"] == [result.name.lower()]


def test_repeated_settling_of_a_lost_lease_is_refused(
    settler: Settler, claim: Claim, delayq: RedisStore, heard: Heard
) -> None:
    lease = claim(noop)
    steal(delayq, lease)
    settler.put(outcome(lease))
    with lost_answers():
        settler.run_once()
    settler.run_once()
    assert "lease_lost" in heard.names() and "acked" not in heard.names()


def test_result_that_cannot_be_written_does_not_take_the_others(
    settler: Settler, claim: Claim, shared: Shared, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug, not a fault: it is given up, and its message runs again when its lease ends."""
    results = [
        outcome(claim(noop), Result.DEAD, reason=reason) for reason in ("x", "half \ud800", "y")
    ]
    for result in results:
        settler.put(result)
    settler.run_once()
    assert settler.idle
    assert shared.held == set()
    assert [event.reason for event in heard["dead"]] == ["x", "y"]
    assert counters("default") == {"enqueued": 3, "dead": 2}
    assert caplog.text.count("a result cannot be written; its message runs again") == 1


@pytest.fixture
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own, which keeps its data."""
    server = launcher("redis7")
    server.start(appendonly=True, appendfsync="always")
    yield server
    server.stop()


@pytest.fixture
def far(mortal: Server, settings: Any) -> Shared:
    """A worker's parts on that server."""
    settings.DELAYQ = {
        "REDIS": mortal.url,
        "PREFIX": "far",
        "CONNECT_TIMEOUT": 0.5,
        "SOCKET_TIMEOUT": 0.5,
    }
    parsed = parse_settings(settings.DELAYQ)
    return Shared(RedisStore(open_client(parsed), parsed), parsed, "host:1:test", ("default",))


def test_results_wait_while_redis_is_away(far: Shared, mortal: Server) -> None:
    settled: list[Outcome] = []
    settler = Settler(far, settled.extend)
    (lease,) = claim_many(far, noop, 1)
    mortal.kill()
    settler.put(outcome(lease))
    for _ in range(3):
        assert settler.run_once() < 1
    assert (settled, settler.idle) == ([], False)
    mortal.restart()
    settler.run_once()
    assert settler.idle
    assert (len(settled), far.held) == (1, set())
    assert far.store.queries.stats(lease.partition).meta["acked"] == "1"


@pytest.mark.parametrize(
    ("count", "is_filled", "waits"),
    [
        (1, False, 0),
        (1, True, 0),
        # The next messages of a limit, or of a key, may wait for these outcomes.
        (7, False, 0),
        (2, True, 2),
        (8, False, 1),
        (8, True, 2),
    ],
)
def test_outcomes_gather_while_they_come_quickly_or_the_threads_have_their_next(
    shared: Shared,
    settled: list[Outcome],
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    *,
    is_filled: bool,
    waits: int,
) -> None:
    settler = Settler(shared, settled.extend, lambda: is_filled)
    waited = list[float]()
    monkeypatch.setattr(settler._pace, "wait", waited.append)
    monkeypatch.setattr("django_delayq.worker.settler.GATHER", 60.0)
    monkeypatch.setattr("django_delayq.worker.settler.FILLED_GATHER", 120.0)
    for leases in (claim_many(shared, noop, count), claim_many(shared, noop, 1)):
        settler.put_all(outcome(lease) for lease in leases)
        settler.run_once()
    assert (len(waited), len(settled)) == (waits, count + 1)


def test_outcomes_leave_when_the_threads_do_not_have_their_next_any_more(
    shared: Shared, settled: list[Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = [True, False]
    settler = Settler(shared, settled.extend, lambda: filled.pop(0))
    waited = list[float]()
    monkeypatch.setattr(settler._pace, "wait", waited.append)
    monkeypatch.setattr("django_delayq.worker.settler.GATHER", 60.0)
    for leases in (claim_many(shared, noop, 2), claim_many(shared, noop, 1)):
        settler.put_all(outcome(lease) for lease in leases)
        settler.run_once()
    assert (len(waited), len(settled), filled) == (1, 3, [])


def test_results_are_given_up_when_the_lease_has_ended(
    settler: Settler,
    claim: Claim,
    shared: Shared,
    settled: list[Outcome],
    caplog: pytest.LogCaptureFixture,
) -> None:
    lease = claim(noop)
    settler.put(outcome(lease))
    for error in (StoreUnavailable("away"), OutcomeUnknown("away")):
        settler._settle_chunk = lambda call, partition, chunk, error=error: settler._keep(
            chunk, error
        )  # type: ignore
        settler.run_once()
        assert (shared.held, settled) == ({lease}, [])
    pass_time(lease, 61)
    settler.run_once()
    assert (shared.held, len(settled)) == (set(), 1)
    assert "1 result not stored before the lease ended" in caplog.text
