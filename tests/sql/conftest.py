"""What the tests of the SQL side share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_delayq import archiver, naming, replay_walk
from django_delayq.bulk_runner import BulkRunner
from django_delayq.store import finished
from django_delayq.store.redis import RedisStore
from tests.sql.hands import Hands


@pytest.fixture
def hands(delayq: RedisStore, transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hands]:
    """A worker with its services, driven by hand. Nothing has to be waited for."""
    from tests.tasks import seen

    seen.clear()
    naming.kept_names.clear()
    monkeypatch.setattr(archiver, "GATHER", 0.0)
    monkeypatch.setattr(archiver, "TAKE_OVER_INTERVAL", 0.0)
    monkeypatch.setattr(finished, "TAKE_OVER_AFTER_MS", 0)
    yield Hands(delayq)


@pytest.fixture
def runner(hands: Hands) -> BulkRunner:
    """Runs bulk operations, one at each call."""
    return BulkRunner(hands.store, "first")


@pytest.fixture
def other(hands: Hands) -> BulkRunner:
    """The same in another process."""
    return BulkRunner(hands.store, "other")


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks change a few rows in each transaction."""
    from tests.sql.bulk_hands import BATCH

    monkeypatch.setattr(replay_walk, "BATCH", BATCH)
