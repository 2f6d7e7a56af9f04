"""Messages that may kill their process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from django_delayq.store.lease import Lease
from django_delayq.worker import quarantine as module
from django_delayq.worker.quarantine import Quarantine
from django_delayq.worker.shared import Shared
from tests.tasks import noop

Claim = Callable[..., Lease]


class Parts:
    """A quarantine, and what it does."""

    def __init__(self, shared: Shared) -> None:
        self.fed: list[Lease] = []
        self.released: list[Lease] = []
        self.held = shared.held
        self.quarantine = Quarantine(shared, self.fed.extend, self.released.extend)


@pytest.fixture
def parts(shared: Shared) -> Parts:
    return Parts(shared)


def crashed(lease: Lease, times: int) -> Lease:
    lease.entry = lease.entry[:2] + times.to_bytes(2, "big") + lease.entry[4:]
    return lease


def test_harmless_messages_pass(parts: Parts, claim: Claim) -> None:
    leases = [claim(noop), crashed(claim(noop), 1)]
    assert parts.quarantine.admit(leases) == leases
    assert not parts.quarantine.busy()


def test_suspect_waits_until_nothing_else_runs(parts: Parts, claim: Claim) -> None:
    neighbour, suspect = claim(noop), crashed(claim(noop), 2)
    assert parts.quarantine.admit([neighbour, suspect]) == [neighbour]
    assert parts.quarantine.busy()
    assert parts.fed == []
    parts.held.discard(neighbour)
    assert parts.quarantine.busy()
    assert parts.fed == [suspect]


def test_nothing_is_claimed_until_the_suspect_has_ended(parts: Parts, claim: Claim) -> None:
    suspect = crashed(claim(noop), 2)
    parts.quarantine.admit([suspect])
    assert parts.quarantine.busy() and parts.quarantine.busy()
    assert parts.fed == [suspect]
    parts.held.discard(suspect)
    assert not parts.quarantine.busy()


def test_one_suspect_at_a_time(parts: Parts, claim: Claim) -> None:
    first, second, third = (crashed(claim(noop), 2) for _ in range(3))
    assert parts.quarantine.admit([first, second, third]) == []
    assert parts.released == [second, third]


def test_suspect_does_not_wait_for_ever(parts: Parts, claim: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(noop)
    suspect = crashed(claim(noop), 2)
    parts.quarantine.admit([suspect])
    assert parts.quarantine.busy()
    now = time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now + module.PATIENCE + 1)
    parts.quarantine.busy()
    assert parts.fed == [suspect]


def test_poison_limit_of_one_knows_no_suspects(shared: Shared, claim: Claim) -> None:
    strict = replace(shared, settings=replace(shared.settings, poison_limit=1))
    lease = claim(noop)
    assert Quarantine(strict, print, print).admit([lease]) == [lease]
