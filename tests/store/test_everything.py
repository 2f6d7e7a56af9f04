"""What an erasure reads: all that is live in a partition, and all that has ended there."""

from __future__ import annotations

from collections.abc import Mapping

from django_delayq.store import finished
from django_delayq.store.client import BATCH
from django_delayq.store.store import RedisStore
from tests.store.factories import PARTITION, claim, dump, enqueue_many
from tests.store.test_ended import with_result


def live(store: RedisStore) -> Mapping[bytes, bytes]:
    """In Redis, by id; of a run and what follows it, the last one that was read."""
    return {i: raw for page in store.queries.records(PARTITION) for i, raw in page.items()}


def test_what_waits_and_what_runs_is_read_whole(store: RedisStore) -> None:
    lease = claim(store)
    waiting = enqueue_many(store, BATCH + 1)
    before = dump(store)
    found = live(store)
    assert found.keys() == {lease.id, *waiting}
    assert found[lease.id] == lease.record
    assert dump(store) == before


def test_what_has_ended_is_read_page_by_page_the_newest_first(store: RedisStore) -> None:
    ids = enqueue_many(store, BATCH + 1)
    for at in range(0, len(ids), BATCH):
        store.cancel_in(PARTITION, ids[at : at + BATCH])
    before = dump(store)
    pages = list(finished.unarchived(store, PARTITION))
    assert [len(page) for page in pages] == [BATCH, 1]
    assert [entry.id for page in pages for entry in page] == [*reversed(ids)]
    assert dump(store) == before


def test_a_result_is_forgotten_and_others_stay(store: RedisStore) -> None:
    gone, kept = (claim(store), claim(store))
    store.ack(PARTITION, [(with_result(gone), b"{}"), (with_result(kept), b"{}")])
    store.reports.forget("orders", [gone.id])
    assert store.reports.result("orders", gone.id) is None
    assert store.reports.result("orders", kept.id) is not None
