"""ended.lua and the results of ack.lua: how a message has ended, before it is in the archive."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core.task_report import TaskReport
from django_delayq.store import reports
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore
from tests.store.factories import PARTITION, claim, claim_again, dump, enqueue, enqueue_many


def with_result(lease: Lease, result: bytes = b"42") -> Lease:
    lease.report = TaskReport()
    lease.report.result = result
    return lease


def ended(store: RedisStore, message_id: bytes) -> Any:
    return store.reports.ended("orders", message_id)


def result(store: RedisStore, message_id: bytes) -> Any:
    return store.reports.result("orders", message_id)


def test_the_end_is_found_in_the_stream(store: RedisStore) -> None:
    lease = claim(store)
    assert ended(store, lease.id) is None
    store.ack(PARTITION, [(lease, b'{"run_ms":1}')])
    before = dump(store)
    found = ended(store, lease.id)
    assert (found.state, found.id, found.detail) == ("acked", lease.id, b'{"run_ms":1}')
    assert found.record == lease.record
    assert dump(store) == before


def test_the_newest_end_of_an_id_counts(store: RedisStore) -> None:
    lease = claim(store)
    store.nack(PARTITION, [(lease, None, True, b'{"n":1}')])
    again = claim(store, enqueue(store, lease.id))
    store.ack(PARTITION, [(again, b'{"n":2}')])
    assert ended(store, lease.id).detail == b'{"n":2}'


def test_the_end_is_found_behind_many_others(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = claim(store)
    store.ack(PARTITION, [(first, b"{}")])
    enqueue_many(store, 120)
    store.ack(PARTITION, [(lease, b"{}") for lease in store.claim(PARTITION, 500).leases])
    assert ended(store, first.id).id == first.id
    monkeypatch.setattr(reports, "MOST_SEARCHED", 100)
    assert ended(store, first.id) is None


def test_of_two_results_only_that_of_the_lease_holder_is_kept(store: RedisStore) -> None:
    """One call takes both: the other worker's lease has ended."""
    stale, held = claim(store), claim(store)
    claim_again(store, stale)
    both = [(with_result(stale), b'{"result":1}'), (with_result(held), b'{"result":2}')]
    assert store.ack(PARTITION, both) == [stale]
    assert result(store, held.id).detail == b'{"result":2}'
    assert result(store, stale.id) is None


def test_a_result_is_a_copy_of_the_entry_that_ends_by_itself(store: RedisStore) -> None:
    lease = with_result(claim(store))
    store.ack(PARTITION, [(lease, b'{"result":42}')])
    assert result(store, lease.id) == ended(store, lease.id).__class__(
        **{
            name: getattr(ended(store, lease.id), name)
            for name in ended(store, lease.id).__struct_fields__
        }
        | {"entry": result(store, lease.id).entry}
    )
    key = f"{store.client.prefix}:{{orders:0}}:result:{lease.id.hex()}"
    assert 3590 < store.client.redis.ttl(key) <= 3600
    assert store.client.redis.xlen(key) == 1


def test_each_result_of_a_batch_goes_to_its_own_message(store: RedisStore) -> None:
    enqueue_many(store, 6)
    leases = store.claim(PARTITION, 500).leases
    for lease in leases[1::2]:
        with_result(lease)
    store.ack(PARTITION, [(lease, b'"%s"' % lease.id.hex().encode()) for lease in leases])
    for number, lease in enumerate(leases):
        found = result(store, lease.id)
        assert (found is not None) == (number % 2 == 1)
        if found is not None:
            assert (found.id, found.record) == (lease.id, lease.record)
            assert lease.id.hex().encode() in found.detail


def test_a_stale_worker_leaves_no_result(store: RedisStore) -> None:
    stale = with_result(claim(store))
    claim_again(store, stale)
    assert store.ack(PARTITION, [(stale, b"{}")]) == [stale]
    assert result(store, stale.id) is None


def test_a_new_result_replaces_the_one_of_an_earlier_life(store: RedisStore) -> None:
    lease = with_result(claim(store))
    store.ack(PARTITION, [(lease, b'{"n":1}')])
    again = with_result(claim(store, enqueue(store, lease.id)))
    store.ack(PARTITION, [(again, b'{"n":2}')])
    assert result(store, lease.id).detail == b'{"n":2}'
    after = result(store, lease.id).entry
    assert store.reports.await_result(PARTITION, lease.id, 0.01, after=after) is None
