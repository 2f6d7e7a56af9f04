"""Bulk operations and real worker processes that end in the middle of one."""

from __future__ import annotations

import pytest

from tests.acceptance.harness import Figure
from tests.acceptance.test_durability import run

pytestmark = pytest.mark.acceptance


@pytest.mark.long
def test_a_replay_goes_on_after_its_worker_is_killed(figure: Figure) -> None:
    figures = run("bulk", "--count", "6000")
    assert 3_000 <= figures["killed_at"] < 6_000
    figure(f"each of 6,000 replayed once; {figures['pause']} s without progress after the kill")


@pytest.mark.long
def test_a_replay_goes_on_at_once_after_its_worker_is_told_to_stop(figure: Figure) -> None:
    figures = run("bulk", "--term", "--count", "6000")
    assert 3_000 <= figures["killed_at"] < 6_000
    assert figures["pause"] < 10, "the time after which another takes over what nobody has put down"
    figure(
        f"each of 6,000 replayed once; {figures['pause']} s without progress, with the start of a "
        f"worker"
    )
