"""Messages that may kill their process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from django_delayq.store.lease import Lease
from django_delayq.worker import quarantine as module
from django_delayq.worker.quarantine import Quarantine
from django_delayq.worker.shared import Shared
from tests.app.tasks import act, noop
from tests.worker.moving import pass_time

Claim = Callable[..., Lease]
At = Callable[[float], None]


class Parts:
    """A quarantine, and what it does."""

    def __init__(self, shared: Shared) -> None:
        self.fed: list[Lease] = []
        self.given_back: list[Lease] = []
        self.held = shared.held
        self.quarantine = Quarantine(shared, self.fed.extend, self.given_back.extend)


@pytest.fixture
def parts(shared: Shared) -> Parts:
    return Parts(shared)


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> At:
    """Moves the quarantine's clock: so many seconds after the beginning of the test. Leases do not
    move."""
    begun = time.monotonic()

    def move(seconds: float) -> None:
        clock = SimpleNamespace(monotonic=lambda: begun + seconds)
        monkeypatch.setattr(module, "time", clock)

    move(0)  # from now on it stands still in between
    return move


def crashed(lease: Lease, times: int) -> Lease:
    lease.entry = lease.entry[:2] + times.to_bytes(2, "big") + lease.entry[4:]
    return lease


def test_harmless_messages_pass(parts: Parts, claim: Claim) -> None:
    leases = [claim(noop), crashed(claim(noop), 1)]
    assert parts.quarantine.admit(leases) == leases
    assert not parts.quarantine.step()


def test_suspect_waits_until_nothing_else_runs(parts: Parts, claim: Claim) -> None:
    neighbour, suspect = claim(noop), crashed(claim(noop), 2)
    assert parts.quarantine.admit([neighbour, suspect]) == [neighbour]
    assert parts.quarantine.step()
    assert parts.fed == []
    parts.held.discard(neighbour)
    assert parts.quarantine.step()
    assert parts.fed == [suspect]


def test_nothing_is_claimed_until_the_suspect_has_ended(parts: Parts, claim: Claim) -> None:
    suspect = crashed(claim(noop), 2)
    parts.quarantine.admit([suspect])
    assert parts.quarantine.step() and parts.quarantine.step()
    assert parts.fed == [suspect]
    parts.held.discard(suspect)
    assert not parts.quarantine.step()


def test_one_suspect_at_a_time(parts: Parts, claim: Claim) -> None:
    first, second, third = (crashed(claim(noop), 2) for _ in range(3))
    assert parts.quarantine.admit([first, second, third]) == []
    assert parts.given_back == [second, third]


@pytest.mark.parametrize("runs", [False, True], ids=["waits", "runs"])
def test_suspect_is_given_back_while_there_is_one(parts: Parts, claim: Claim, runs: bool) -> None:
    """Whatever partition or topic it comes from, also in the same round."""
    neighbour, first = claim(noop), crashed(claim(noop), 2)
    parts.quarantine.admit([first])
    if runs:
        parts.held.discard(neighbour)
        parts.quarantine.step()
        assert parts.fed == [first]
    second = crashed(claim(act), 2)
    assert parts.quarantine.admit([second]) == []
    assert parts.given_back == [second]
    parts.held.discard(second)
    parts.held.discard(neighbour)
    parts.quarantine.step()
    assert parts.fed == [first]


def test_suspect_does_not_wait_for_ever(parts: Parts, claim: Claim, at: At) -> None:
    claim(noop)
    suspect = crashed(claim(noop), 2)
    parts.quarantine.admit([suspect])
    assert parts.quarantine.step()
    at(module.PATIENCE + 1)
    parts.quarantine.step()
    assert parts.fed == [suspect]


def test_suspect_does_not_wait_for_what_hangs(parts: Parts, claim: Claim) -> None:
    hanging, suspect = claim(noop), crashed(claim(noop), 2)
    pass_time(hanging, 61)
    parts.quarantine.admit([suspect])
    parts.quarantine.step()
    assert parts.fed == [suspect]


def test_suspect_keeps_the_process_for_a_while_only(parts: Parts, claim: Claim, at: At) -> None:
    suspect = crashed(claim(noop), 2)
    parts.quarantine.admit([suspect])
    assert parts.quarantine.step()
    at(module.ALONE + 0.1)
    assert not parts.quarantine.step()
    assert not parts.quarantine.keeps
    ordinary = [claim(noop)]
    assert parts.quarantine.admit(ordinary) == ordinary


def test_no_other_suspect_runs_beside_one_that_is_long(parts: Parts, claim: Claim, at: At) -> None:
    first = crashed(claim(noop.using(ttr=3600)), 2)
    parts.quarantine.admit([first])
    parts.quarantine.step()
    second = crashed(claim(noop.using(ttr=3600)), 2)
    at(module.ALONE + 0.1)
    parts.quarantine.step()
    at(module.UNMATCHED - 1)
    parts.quarantine.step()
    parts.quarantine.admit([second])
    assert (parts.fed, parts.given_back) == ([first], [second])
    at(module.UNMATCHED + 1)
    parts.quarantine.step()
    parts.quarantine.admit([second])
    parts.held.discard(first)
    parts.quarantine.step()
    assert parts.fed == [first, second]


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "given up"])
def test_suspect_whose_lease_has_ended_is_none_any_more(
    parts: Parts, claim: Claim, at: At, lost: bool
) -> None:
    """It hangs, and has the crash that was feared: it keeps its thread and no more."""
    suspect = crashed(claim(noop), 2)
    parts.quarantine.admit([suspect])
    assert parts.quarantine.step()
    if lost:
        suspect.lost = True
    else:
        pass_time(suspect, 61)
    at(1)
    assert not parts.quarantine.step()
    at(2)  # the process has done other work for as long
    another = crashed(claim(noop), 2)
    assert parts.quarantine.admit([another]) == []
    assert parts.quarantine.step()
    assert parts.fed == [suspect, another]


def test_suspect_whose_lease_ends_while_it_waits_is_not_run(parts: Parts, claim: Claim) -> None:
    claim(noop)
    suspect = crashed(claim(noop), 2)
    parts.quarantine.admit([suspect])
    pass_time(suspect, 61)
    assert not parts.quarantine.step()
    assert (parts.fed, parts.given_back) == ([], [suspect])


def test_after_a_suspect_the_process_does_other_work_for_as_long(
    parts: Parts, claim: Claim, at: At
) -> None:
    first = crashed(claim(noop), 2)
    parts.quarantine.admit([first])
    parts.quarantine.step()
    at(3)
    parts.held.discard(first)
    assert not parts.quarantine.step()
    second = crashed(claim(noop), 2)
    at(5.9)
    assert parts.quarantine.admit([second]) == []
    assert (parts.given_back, parts.quarantine.keeps) == ([second], False)
    at(6.1)
    parts.quarantine.admit([second])
    assert parts.quarantine.keeps


def test_what_is_given_back_is_owed_until_it_is_due_again(
    parts: Parts, claim: Claim, at: At
) -> None:
    """A worker with --burst must not end meanwhile."""
    parts.quarantine.admit([crashed(claim(noop), 2)])
    assert not parts.quarantine.owes
    parts.quarantine.admit([crashed(claim(noop), 2)])
    assert parts.quarantine.owes
    at(module.AWAY_MS[1] / 1000 + 0.1)
    assert not parts.quarantine.owes


def test_suspect_that_has_not_run_is_taken_back_at_the_end(parts: Parts, claim: Claim) -> None:
    claim(noop)
    suspect = crashed(claim(noop), 2)
    parts.quarantine.admit([suspect])
    assert parts.quarantine.take_back() == [suspect]
    assert not parts.quarantine.step()


def test_suspect_that_runs_is_not_taken_back(parts: Parts, claim: Claim) -> None:
    parts.quarantine.admit([crashed(claim(noop), 2)])
    parts.quarantine.step()
    assert parts.quarantine.take_back() == []


def test_poison_limit_of_one_knows_no_suspects(shared: Shared, claim: Claim) -> None:
    strict = replace(shared, settings=replace(shared.settings, poison_limit=1))
    lease = claim(noop)
    assert Quarantine(strict, print, print).admit([lease]) == [lease]
