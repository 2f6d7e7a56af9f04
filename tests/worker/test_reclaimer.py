"""What crashed workers held."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_delayq.core.exceptions import StoreError
from django_delayq.store.keys import Partition, leased_key
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore
from django_delayq.worker.agenda import Agenda
from django_delayq.worker.fleet import Fleet
from django_delayq.worker.reclaimer import Reclaimer
from django_delayq.worker.shared import Shared
from tests.app.tasks import act, noop
from tests.faults import scripts_run
from tests.worker.conftest import Heard
from tests.worker.moving import LONG_AGO, end_lease

Claim = Callable[..., Lease]


@pytest.fixture
def reclaimer(shared: Shared) -> Reclaimer:
    agenda = Agenda({})
    for topic in ("default", "modes"):
        agenda.add(Partition(topic, 0))
    return Reclaimer(shared, agenda, Fleet(shared), lambda: False)


def test_message_whose_lease_ended_comes_back(
    reclaimer: Reclaimer,
    claim: Claim,
    delayq: RedisStore,
    heard: Heard,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lease = claim(noop)
    end_lease(delayq, lease)
    assert reclaimer.run_once() == reclaimer.interval
    again = delayq.claim(lease.partition, 1).leases[0]
    assert (again.id, again.attempts.attempt, again.attempts.crashes) == (lease.id, 2, 1)
    assert [(event.id, event.reason) for event in heard["reclaimed"]] == [
        (lease.id.hex(), "lease ended")
    ]
    assert "1 message of default:0 sent back: the worker vanished" in caplog.text


def test_living_lease_is_left_alone(
    reclaimer: Reclaimer, claim: Claim, delayq: RedisStore, heard: Heard
) -> None:
    lease = claim(noop)
    before = scripts_run(delayq)
    reclaimer.run_once()
    assert scripts_run(delayq) == before
    assert heard["reclaimed"] == []
    assert delayq.ack(lease.partition, [(lease, b"{}")]) == []


def test_message_that_crashes_workers_is_dead(
    reclaimer: Reclaimer,
    claim: Claim,
    delayq: RedisStore,
    heard: Heard,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lease = claim(noop)
    for _ in range(3):
        end_lease(delayq, lease)
        reclaimer.run_once()
        if delayq.queries.find(lease.partition, [lease.id])[0] is not None:
            delayq.reschedule_in(lease.partition, lease.id, "1000000000000")
            (lease,) = delayq.claim(lease.partition, 1).leases
    assert len(heard["reclaimed"]) == 2
    assert [(event.id, event.reason) for event in heard["dead"]] == [(lease.id.hex(), "poison")]
    assert "1 message of default:0 dead after too many crashed workers" in caplog.text


def test_every_partition_is_looked_at(
    reclaimer: Reclaimer, claim: Claim, delayq: RedisStore, heard: Heard
) -> None:
    for task in (noop, act):
        end_lease(delayq, claim(task))
    reclaimer.run_once()
    assert len(heard["reclaimed"]) == 2


def test_partition_that_is_damaged_does_not_hold_up_the_others(
    reclaimer: Reclaimer, claim: Claim, delayq: RedisStore, heard: Heard
) -> None:
    fine = claim(act)
    end_lease(delayq, fine)
    delayq.client.command(
        "SET", leased_key(delayq.client.prefix, Partition("default", 0)), "no zset"
    )
    with pytest.raises(StoreError):
        reclaimer.run_once()
    assert [event.id for event in heard["reclaimed"]] == [fine.id.hex()]


def test_many_are_taken_back_without_a_pause(
    reclaimer: Reclaimer, delayq: RedisStore, heard: Heard
) -> None:
    noop.using(due_at=LONG_AGO).enqueue_many([()] * 700)
    for _ in range(2):
        for lease in delayq.claim(Partition("default", 0), 500).leases:
            end_lease(delayq, lease)
    assert [reclaimer.run_once(), reclaimer.run_once()] == [0.0, reclaimer.interval]
    assert len(heard["reclaimed"]) == 700
