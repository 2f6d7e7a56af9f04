"""shared/windows.lua: a key that takes no other message for some time."""

from __future__ import annotations

import pytest

from django_delayq.core.message import Priority, window_mark
from django_delayq.store import keys
from django_delayq.store.store import RedisStore, base_mode, of_call, without_call
from tests.servers import Server
from tests.store.factories import (
    DETAIL,
    LATER,
    PARTITION,
    accepted,
    claim,
    dump,
    enqueue,
    full,
    live,
    new_id,
    outgoing,
    send,
)

WINDOW = 60_000
refusing = pytest.mark.parametrize("mode", [f"keep/{WINDOW}", f"raise/{WINDOW}"])


def ended(store: RedisStore, mode: str = f"keep/{WINDOW}") -> bytes:
    """A message with a window that has run."""
    lease = claim(store, mode=mode)
    store.ack(PARTITION, [(lease, DETAIL)])
    return lease.id


def key_of(store: RedisStore) -> str:
    return keys.windows_key(store.client.prefix, PARTITION)


def members(store: RedisStore) -> dict[bytes, float]:
    return dict(store.client.redis.zrange(key_of(store), 0, -1, withscores=True))


def windows(store: RedisStore) -> dict[bytes, float]:
    """Those of ids, without those of marks."""
    return {member: end for member, end in members(store).items() if len(member) == 16}


def pass_by(store: RedisStore, milliseconds: int) -> None:
    """As if the windows had begun so much earlier. A cluster's clock cannot be moved."""
    for member in members(store):
        store.client.redis.zincrby(key_of(store), -milliseconds, member)


@refusing
def test_after_the_end_the_key_takes_no_other_within_the_window(
    store: RedisStore, mode: str
) -> None:
    message_id = ended(store, mode)
    assert send(store, outgoing(message_id, mode=mode, body=b"[2]")) == {0: "DUPLICATE"}
    assert live(store) == set()
    pass_by(store, WINDOW - 1_000)
    assert send(store, outgoing(message_id, mode=mode, body=b"[2]")) == {0: "DUPLICATE"}
    pass_by(store, 1_000)
    assert send(store, outgoing(message_id, mode=mode, body=b"[2]")) == {}
    assert live(store) == {message_id}


def test_the_window_counts_from_the_enqueue_and_not_from_what_was_refused(
    store: RedisStore,
) -> None:
    message_id = ended(store)
    pass_by(store, WINDOW // 2)
    enqueue(store, message_id, mode=f"keep/{WINDOW}")
    pass_by(store, WINDOW // 2)
    assert send(store, outgoing(message_id, mode=f"keep/{WINDOW}")) == {}


@pytest.mark.parametrize("mode", ["raise", "keep", "replace"])
def test_a_call_without_a_window_is_not_refused(store: RedisStore, mode: str) -> None:
    assert send(store, outgoing(ended(store), mode=mode)) == {}


def test_a_live_message_is_what_it_is_without_a_window(store: RedisStore) -> None:
    message_id = enqueue(store, mode=f"raise/{WINDOW}")
    again = outgoing(message_id, mode=f"raise/{WINDOW}")
    assert send(store, again) == {0: "SAME"}
    other = outgoing(message_id, mode=f"raise/{WINDOW}", body=b"[2]")
    assert send(store, other) == {0: "DUPLICATE"}


def test_a_replacement_takes_the_place_of_what_is_live_and_begins_anew(store: RedisStore) -> None:
    message_id = enqueue(store, mode=f"keep/{WINDOW}")
    pass_by(store, WINDOW // 2)
    before = windows(store)[message_id]
    (word,) = send(store, outgoing(message_id, mode=f"replace/{WINDOW}")).values()
    assert word.startswith("REPLACED")
    assert windows(store)[message_id] >= before + WINDOW // 2


def test_beside_one_with_a_window_another_is_not_refused(store: RedisStore) -> None:
    message_id = ended(store)
    words = send(store, outgoing(mode=f"keep/{WINDOW}"), outgoing(message_id, mode="keep"))
    assert words == {}


def test_only_those_of_a_batch_that_have_a_window_are_noted(store: RedisStore) -> None:
    first, second, third = (outgoing(mode=m) for m in ("keep", f"keep/{WINDOW}", "raise"))
    assert send(store, first, second, third) == {}
    assert set(windows(store)) == {second.id}


def test_without_a_window_nothing_is_noted(store: RedisStore) -> None:
    enqueue(store, mode="keep")
    assert windows(store) == {}


@pytest.mark.parametrize("how", ["cancel", "cancel_running", "purge"])
def test_a_cancelled_message_frees_its_key(store: RedisStore, how: str) -> None:
    other = enqueue(store, mode=f"keep/{WINDOW}", priority=Priority.LOW)
    message_id = enqueue(store, mode=f"keep/{WINDOW}", priority=Priority.HIGH)
    if how == "cancel":
        store.cancel_in(PARTITION, [message_id])
    elif how == "cancel_running":
        claim(store, message_id)
        assert store.cancel_running_in(PARTITION, message_id) == "OK"
    else:
        store.purge(PARTITION, 1)
    assert set(windows(store)) == {other}
    assert send(store, outgoing(message_id, mode=f"keep/{WINDOW}")) == {}


def test_a_cancel_that_finds_nothing_does_not_free_it(store: RedisStore) -> None:
    message_id = ended(store)
    assert store.cancel_in(PARTITION, [message_id]) == ["NOT_FOUND"]
    other = outgoing(message_id, mode=f"keep/{WINDOW}", body=b"[2]")
    assert send(store, other) == {0: "DUPLICATE"}


@refusing
def test_the_message_that_began_the_window_is_the_same_after_its_end(
    store: RedisStore, mode: str
) -> None:
    message = outgoing(mode=mode, when="0")
    assert send(store, message) == {}
    for lease in store.claim(PARTITION, 1).leases:
        store.ack(PARTITION, [(lease, DETAIL)])
    assert live(store) == set()
    assert set(members(store)) == {message.id, window_mark(message.id, message.record)}
    assert send(store, message) == {0: "SAME"}
    pass_by(store, WINDOW)
    assert send(store, message) == {}


def test_what_sql_has_accepted_is_never_dropped(store: RedisStore) -> None:
    message_id = ended(store)
    now_us = store.now_us()
    message = accepted(message_id, stamp=now_us, mode=f"keep/{WINDOW}")
    assert send(store, message) == {}
    assert live(store) == {message_id}


def test_its_window_counts_from_when_sql_accepted_it(store: RedisStore) -> None:
    now_us, mode = store.now_us(), f"keep/{WINDOW}"
    message_id = new_id()
    assert send(store, accepted(message_id, stamp=now_us - 40_000_000, mode=mode)) == {}
    assert windows(store) == {message_id: now_us // 1000 - 40_000 + WINDOW}


def test_what_is_sent_late_does_not_shorten_the_window_of_a_newer_one(store: RedisStore) -> None:
    message_id = ended(store)
    before = windows(store)
    late = store.now_us() - 30_000_000
    assert send(store, accepted(message_id, stamp=late, mode=f"keep/{WINDOW}")) == {}
    assert windows(store) == before


def test_a_window_that_is_over_when_the_message_comes_is_none(store: RedisStore) -> None:
    stamp = store.now_us() - (WINDOW + 1_000) * 1000
    message_id = new_id()
    send(store, accepted(message_id, stamp=stamp, mode=f"keep/{WINDOW}"))
    assert windows(store) == {}


def test_a_replacement_of_a_running_message_has_a_window_of_its_own(store: RedisStore) -> None:
    lease = claim(store, mode="keep")
    follower = outgoing(lease.id, mode=f"replace/{WINDOW}", body=b"[2]", when=LATER)
    assert send(store, follower) == {0: "FOLLOWS"}
    assert set(windows(store)) == {lease.id}


def test_what_is_over_is_forgotten_as_new_ones_come(store: RedisStore) -> None:
    old = [enqueue(store, mode=f"keep/{WINDOW}") for _ in range(6)]
    pass_by(store, WINDOW + 1_000)
    new = [enqueue(store, mode=f"keep/{WINDOW}") for _ in range(2)]
    assert len(windows(store)) == 4 and set(windows(store)) < {*old, *new}
    new += [enqueue(store, mode=f"keep/{WINDOW}")]
    assert set(windows(store)) == set(new)


def test_all_windows_end_by_themselves_with_the_last(store: RedisStore) -> None:
    enqueue(store, mode="keep/3600000")
    enqueue(store, mode="keep/60000")
    assert 3590 < store.client.redis.ttl(key_of(store)) <= 3600


def test_a_full_redis_notes_no_window_and_still_cancels(store: RedisStore, server: Server) -> None:
    message_id = enqueue(store, mode=f"keep/{WINDOW}")
    with full(server):
        assert store.cancel_in(PARTITION, [message_id]) == ["OK"]
    assert windows(store) == {}


# Calls that may be repeated

CALL = bytes(range(16))
of_a_call = pytest.mark.parametrize(
    "mode", ["raise", "keep", "replace", "extend:60000", f"keep/{WINDOW}"]
)


@of_a_call
@pytest.mark.parametrize("end", ["live", "running", "acked", "cancelled"])
def test_a_call_stores_its_message_once_whatever_becomes_of_it(
    store: RedisStore, mode: str, end: str
) -> None:
    message = outgoing(new_id(), mode=of_call(mode, CALL, WINDOW))
    assert send(store, message) == {}
    if end in ("running", "acked"):
        lease = claim(store, message.id)
        if end == "acked":
            store.ack(PARTITION, [(lease, DETAIL)])
    if end == "cancelled":
        store.cancel_in(PARTITION, [message.id])
    before = dump(store)
    assert send(store, message) == {0: "REPEATED"}
    assert dump(store) == before


@of_a_call
def test_another_call_is_another_enqueue(store: RedisStore, mode: str) -> None:
    message = outgoing(new_id(), mode=of_call(mode, CALL, WINDOW))
    send(store, message)
    other = message._replace(mode=of_call(mode, CALL[::-1], WINDOW))
    plain = send(store, message._replace(mode=mode))
    assert send(store, other) == plain != {0: "REPEATED"}


def test_what_a_call_did_not_store_it_may_store_later(store: RedisStore) -> None:
    first = enqueue(store)
    message = outgoing(first, mode=of_call("raise", CALL, WINDOW), body=b"[2]")
    assert send(store, message) == {0: "DUPLICATE"}
    store.cancel_in(PARTITION, [first])
    assert [send(store, message) for _ in range(2)] == [{}, {0: "REPEATED"}]


def test_a_call_is_forgotten(store: RedisStore) -> None:
    message = outgoing(new_id(), mode=of_call("raise", CALL, WINDOW))
    send(store, message)
    store.cancel_in(PARTITION, [message.id])
    pass_by(store, WINDOW + 1_000)
    assert send(store, message) == {}


@pytest.mark.parametrize("mode", ["raise", "replace:60000", "keep/60000"])
def test_sql_keeps_the_mode_without_its_call(mode: str) -> None:
    assert without_call(of_call(mode, CALL, WINDOW)) == without_call(mode) == mode
    assert base_mode(of_call(mode, CALL, WINDOW)) == base_mode(mode)
