"""progress.lua: leased -> leased, with how far its task has come."""

from __future__ import annotations

from django_delayq.core.task_report import TaskProgress
from django_delayq.store.store import RedisStore
from tests.store.factories import PARTITION, claim, claim_again, dump


def test_a_report_is_kept_for_its_time(store: RedisStore) -> None:
    lease = claim(store)
    before = dump(store)
    assert store.progress(lease, b'[1,2,"pages",1]', 60_000)
    assert store.reports.progress("orders", lease.id) == TaskProgress(1, 2, "pages", 1)
    assert store.client.redis.pttl(key(store, lease.id)) > 59_000
    assert dump(store) == before


def test_the_newest_report_counts(store: RedisStore) -> None:
    lease = claim(store)
    for done in (1, 2):
        store.progress(lease, b"[%d]" % done, 60_000)
    assert store.reports.progress("orders", lease.id) == TaskProgress(2)


def test_a_stale_worker_reports_nothing(store: RedisStore) -> None:
    stale = claim(store)
    claim_again(store, stale)
    assert not store.progress(stale, b"[1]", 60_000)
    assert stale.lost
    assert store.reports.progress("orders", stale.id) is None


def test_a_settled_message_has_no_more_progress(store: RedisStore) -> None:
    lease = claim(store)
    store.ack(PARTITION, [(lease, b"{}")])
    store.progress(lease, b"[1]", 60_000)
    assert not lease.lost
    assert store.reports.progress("orders", lease.id) is None


def key(store: RedisStore, message_id: bytes) -> str:
    return f"{store.client.prefix}:{{orders:0}}:progress:{message_id.hex()}"
