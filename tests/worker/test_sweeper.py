"""Where something has happened of which no hint has told; and what it costs to find out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_delayq.store.keys import Partition
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore
from django_delayq.worker.agenda import Agenda
from django_delayq.worker.claims import Claims
from django_delayq.worker.fleet import Fleet
from django_delayq.worker.reclaimer import Reclaimer
from django_delayq.worker.shared import Shared
from django_delayq.worker.sweeper import Sweeper
from tests.app.tasks import noop
from tests.faults import commands_run
from tests.hands import DEFAULT
from tests.worker.moving import end_lease

Claim = Callable[..., Lease]


class Looks:
    """A sweeper and a reclaimer that share what is known, and a switch: whether hints may be
    missing."""

    def __init__(self, shared: Shared) -> None:
        self.complete = True
        self.agenda = Agenda({})
        self.fleet = Fleet(shared)
        self.claims = Claims(shared.store, shared.settings)
        self.sweeper = Sweeper(shared, self.agenda, self.claims, self.fleet)
        self.sweeper.hints_are_complete = lambda: self.complete
        self.reclaimer = Reclaimer(shared, self.agenda, self.fleet, lambda: self.complete)
        self.finished: list[int] = []
        self.sweeper.on_finished = lambda: self.finished.append(1)
        self.sweep()
        self.reclaimer.run_once()
        self.sweep()
        for visit in self.agenda.visits.values():  # each was visited, and nothing is due
            self.agenda.plan(visit, None)

    def sweep(self) -> None:
        self.sweeper.at = 0.0
        self.sweeper.run_when_due()


@pytest.fixture
def looks(shared: Shared) -> Looks:
    return Looks(shared)


def test_while_hints_are_complete_an_idle_worker_reads_nothing(
    looks: Looks, delayq: RedisStore
) -> None:
    before = commands_run(delayq)
    for _ in range(10):
        looks.sweep()
        looks.reclaimer.run_once()
    assert commands_run(delayq) == before


def test_while_hints_may_be_missing_it_reads_one_counter_and_one_lease_of_each_partition(
    looks: Looks, delayq: RedisStore
) -> None:
    looks.complete = False
    before = commands_run(delayq)
    looks.sweep()
    looks.reclaimer.run_once()
    assert commands_run(delayq) == before + 2 * len(looks.agenda.visits)


def test_a_hint_that_was_lost_is_made_good_when_hints_may_be_missing(looks: Looks) -> None:
    noop.enqueue()
    looks.sweep()
    assert looks.agenda.visits[DEFAULT].due_ms is None
    looks.complete = False
    looks.sweep()
    assert looks.agenda.visits[DEFAULT].due_ms == 0


def test_now_and_then_everything_is_read_all_the_same(looks: Looks) -> None:
    noop.enqueue()
    looks.sweeper.everywhere_at = 0.0
    looks.sweep()
    assert looks.agenda.visits[DEFAULT].due_ms == 0


def test_after_an_outage_everything_is_read(looks: Looks) -> None:
    noop.enqueue()
    looks.sweeper.start_over()
    looks.sweeper.run_when_due()
    assert looks.agenda.visits[DEFAULT].due_ms == 0


def test_a_thousand_partitions_are_read_over_minutes(shared: Shared) -> None:
    looks = Looks(shared)
    for number in range(1_000):
        looks.agenda.add(Partition("default", number))
    looks.sweeper.everywhere_at = 0.0
    looks.sweep()
    assert looks.sweeper.everywhere_at - looks.sweeper.at > 195


def test_what_is_due_and_leased_elsewhere_is_taken_back(
    looks: Looks, claim: Claim, delayq: RedisStore
) -> None:
    """This worker had no room, or was quiet; another one took the message, and died."""
    lease = claim(noop)
    end_lease(delayq, lease)
    looks.reclaimer.run_once()
    assert delayq.claim(lease.partition, 1).leases == []
    looks.agenda.expect(lease.partition, 0)
    looks.reclaimer.run_once()
    assert [again.id for again in delayq.claim(lease.partition, 1).leases] == [lease.id]


def test_leases_are_looked_at_until_none_is_left(
    looks: Looks, claim: Claim, delayq: RedisStore
) -> None:
    lease = claim(noop)
    visit = looks.agenda.visits[lease.partition]
    visit.may_be_leased = visit.to_sweep = True
    for _ in range(3):
        looks.reclaimer.run_once()
        looks.sweep()
        assert visit.may_be_leased and visit.to_sweep
    delayq.ack(lease.partition, [(lease, b"{}")])
    looks.finished.clear()
    looks.reclaimer.run_once()
    assert not visit.may_be_leased
    looks.sweep()
    assert looks.finished == [1]  # the archiver is told once more
    assert not visit.to_sweep


def test_a_claim_during_the_look_at_the_leases_is_not_forgotten(
    looks: Looks, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit = looks.agenda.visits[DEFAULT]
    visit.may_be_leased = True

    def none_yet(partition: Partition) -> None:
        visit.may_be_leased = True  # the dispatcher's claim, after the answer

    monkeypatch.setattr(shared.store.queries, "oldest_lease_ms", none_yet)
    looks.reclaimer.run_once()
    assert visit.may_be_leased
