"""leases.lua: what is leased under a token."""

from __future__ import annotations

import os

from django_delayq.store.client import BATCH
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore
from tests.store.factories import (
    DETAIL,
    PARTITION,
    claim,
    dump,
    end_leases,
    enqueue_many,
    leased,
    waiting,
)


def test_only_the_leases_of_the_token_are_found(store: RedisStore) -> None:
    mine, other = claim(store), claim(store)
    assert store.queries.leased_under(PARTITION, mine.token) == [mine.id]
    assert store.queries.leased_under(PARTITION, other.token) == [other.id]
    assert store.queries.leased_under(PARTITION, os.urandom(16)) == []


def test_more_than_a_page_is_found(store: RedisStore) -> None:
    ids, token = enqueue_many(store, 2 * BATCH + 1), os.urandom(16)
    while store.claim(PARTITION, BATCH, token).leases:
        pass
    assert store.queries.leased_under(PARTITION, token) == ids


def test_what_was_settled_or_reclaimed_is_not_found(store: RedisStore) -> None:
    enqueue_many(store, 4)
    acked, nacked, crashed, held = store.claim(PARTITION, 4).leases
    store.ack(PARTITION, [(acked, DETAIL)])
    store.nack(PARTITION, [(nacked, 0, True, DETAIL)])
    end_leases(store, crashed.id)
    store.reclaim(PARTITION)
    assert store.queries.leased_under(PARTITION, held.token) == [held.id]


def test_a_claim_whose_answer_was_lost_can_be_given_back(store: RedisStore) -> None:
    (message_id,), token = enqueue_many(store, 1), os.urandom(16)
    store.claim(PARTITION, 1, token)
    leases = [
        Lease(PARTITION, i, b"", bytes(16) + token, 0.0)
        for i in store.queries.leased_under(PARTITION, token)
    ]
    assert store.release(PARTITION, leases) == []
    assert (set(waiting(store)), leased(store)) == ({message_id}, set())
    assert claim(store, message_id).attempts.attempt == 1


def test_looking_changes_nothing(store: RedisStore) -> None:
    lease = claim(store)
    before = dump(store)
    store.queries.leased_under(PARTITION, lease.token)
    assert dump(store) == before
