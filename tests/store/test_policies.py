"""finish() in shared/finish.lua: which ends are told, by the archive policy and the durable
flag."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_delayq.core.conf import TopicSettings
from django_delayq.core.message import DURABLE, Record
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    DETAIL,
    PARTITION,
    STAMP,
    accepted,
    claim,
    claim_durable,
    configure,
    corrupt,
    counter,
    end_leases,
    ends,
    finished,
    full,
    markers,
    new_id,
    outgoing,
    send,
    stamped,
)


def acked(store: RedisStore, message_id: bytes) -> None:
    store.ack(PARTITION, [(claim(store, message_id), DETAIL)])


def dead(store: RedisStore, message_id: bytes) -> None:
    store.nack(PARTITION, [(claim(store, message_id), None, True, DETAIL)])


def poisoned(store: RedisStore, message_id: bytes) -> None:
    configure(store, poison_limit=1)
    claim(store, message_id)
    end_leases(store)
    store.reclaim(PARTITION)


def cancelled(store: RedisStore, message_id: bytes) -> None:
    store.cancel_in(PARTITION, [message_id])


def purged(store: RedisStore, message_id: bytes) -> None:
    store.purge(PARTITION)


def expired(store: RedisStore, message_id: bytes) -> None:
    assert store.claim(PARTITION, 1).over == [message_id]


ENDS: dict[str, tuple[str, Callable[[RedisStore, bytes], None]]] = {
    "acked": ("acked", acked),
    "dead": ("dead", dead),
    "poisoned": ("dead", poisoned),
    "cancelled": ("cancelled", cancelled),
    "purged": ("cancelled", purged),
    "expired": ("expired", expired),
}


def end(store: RedisStore, name: str, durable: bool) -> bytes:
    """One message that ends in this way."""
    expires = "5" if name == "expired" else ""
    message = (accepted if durable else outgoing)(expires=expires)
    send(store, message)
    ENDS[name][1](store, message[0])
    return message[0]


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("archive", ["all", "dead", "none"])
def test_the_policy_says_which_ends_are_told(store: RedisStore, archive: str, name: str) -> None:
    configure(store, archive=archive)
    message_id, state = end(store, name, durable=False), ENDS[name][0]
    told = archive == "all" or (archive == "dead" and state == "dead")
    assert ends(store) == ([(message_id, state)] if told else [])
    assert (markers(store), counter(store, state)) == ({}, 1)


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("archive", ["all", "dead", "none"])
def test_the_end_of_a_durable_message_is_always_told_and_remembered(
    store: RedisStore, archive: str, name: str
) -> None:
    configure(store, archive=archive)
    message_id, state = end(store, name, durable=True), ENDS[name][0]
    assert ends(store) == [(message_id, state)]
    assert (markers(store), counter(store, state)) == ({message_id: STAMP}, 1)
    record = Record.decode(finished(store)[0]["record"])
    assert (record.enqueued_at_us, bool(record.flags & DURABLE)) == (STAMP, True)


@pytest.mark.parametrize(("topic", "told"), [("none", 0), ("all", 1)])
def test_the_policy_of_the_topic_counts_before_the_general_one(
    store: RedisStore, topic: str, told: int
) -> None:
    general = "none" if topic == "all" else "all"
    configure(store, archive=general, topics={PARTITION.topic: TopicSettings(archive=topic)})
    end(store, "acked", durable=False)
    assert len(ends(store)) == told


@pytest.mark.parametrize("name", ["dead", "cancelled", "expired"])
def test_a_full_redis_takes_every_end_of_a_durable_message(
    store: RedisStore, server: Server, name: str
) -> None:
    message = accepted(expires="5" if name == "expired" else "")
    send(store, message)
    with full(server):
        ENDS[name][1](store, message[0])
    assert (ends(store), markers(store)) == ([(message[0], name)], {message[0]: STAMP})


def test_a_full_redis_takes_the_cancel_of_a_durable_follower(
    store: RedisStore, server: Server
) -> None:
    lease = claim(store)
    send(store, accepted(lease.id, mode="replace", stamp=2**51, when="5000"))
    with full(server):
        assert store.cancel_in(PARTITION, [lease.id]) == ["RUNNING"]
    assert (ends(store), markers(store)) == ([(lease.id, "cancelled")], {lease.id: 2**51})


@pytest.mark.parametrize("archive", ["all", "none"])
def test_a_lost_record_is_not_known_as_durable(store: RedisStore, archive: str) -> None:
    configure(store, archive=archive)
    message = accepted(new_id())
    send(store, message)
    corrupt(store, message[0], None)
    assert store.claim(PARTITION, 1).over == [message[0]]
    assert (ends(store), markers(store)) == ([(message[0], "dead")] if archive == "all" else [], {})


def test_the_marker_of_an_earlier_life_gives_way_to_the_newer(store: RedisStore) -> None:
    first = accepted()
    send(store, first)
    acked(store, first[0])
    send(store, accepted(first[0], stamp=STAMP + 1))
    acked(store, first[0])
    assert markers(store) == {first[0]: STAMP + 1}
    assert ends(store) == [(first[0], "acked")] * 2


@pytest.mark.parametrize("how", ["cancel", "replace", "bury"])
def test_the_end_of_the_newest_life_stays_remembered(store: RedisStore, how: str) -> None:
    """SQL holds the row of the newest life: it is the one that nobody may send again."""
    lease, newer = claim_durable(store), STAMP + 1
    if how == "bury":
        store.tombstone(PARTITION, lease.id, stamped(newer))
    else:
        send(store, accepted(lease.id, mode="replace", stamp=newer))
    if how == "cancel":
        store.cancel_in(PARTITION, [lease.id])
    elif how == "replace":
        send(store, outgoing(lease.id, mode="replace"))
    assert markers(store) == {lease.id: newer}
    store.ack(PARTITION, [(lease, DETAIL)])
    assert markers(store) == {lease.id: newer}
