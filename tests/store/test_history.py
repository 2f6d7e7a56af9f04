"""remember() in shared/history.lua: the lines of the runs that have ended, behind an attempts
entry."""

from __future__ import annotations

import json

import pytest

from django_delayq.core.message import ATTEMPTS, Attempts
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    DETAIL,
    PARTITION,
    attempts,
    claim,
    claim_again,
    end_leases,
    finished,
    follow,
    full,
    history,
    make_due,
)

LIMIT = 8192


def fail(store: RedisStore, lease: Lease, detail: bytes) -> Lease:
    """The next lease, after a run that has failed with this detail."""
    assert store.nack(PARTITION, [(lease, 0, True, detail)]) == []
    make_due(store, lease.id)
    return claim(store, lease.id)


def crash(store: RedisStore, lease: Lease) -> None:
    end_leases(store)
    store.reclaim(PARTITION)


def test_a_new_message_has_no_history(store: RedisStore) -> None:
    lease = claim(store)
    assert (history(store, lease.id), len(lease.entry)) == ([], ATTEMPTS.size)


def test_each_failed_run_is_a_line_and_the_oldest_comes_first(store: RedisStore) -> None:
    lease = claim(store)
    for detail in (b'{"n":1}', b'{"n":2}', b'{"n":3}'):
        lease = fail(store, lease, detail)
    assert history(store, lease.id) == [b'{"n":1}', b'{"n":2}', b'{"n":3}']


@pytest.mark.parametrize("counts", [True, False])
def test_a_snooze_is_a_line_too(store: RedisStore, counts: bool) -> None:
    lease = claim(store)
    store.nack(PARTITION, [(lease, 0, counts, DETAIL)])
    assert history(store, lease.id) == [DETAIL]


def test_a_crash_is_a_line_with_its_time(store: RedisStore) -> None:
    lease, before = claim(store), store.clock_ms()
    crash(store, lease)
    (line,) = history(store, lease.id)
    crashed = json.loads(line)
    assert crashed.keys() == {"ended_ms", "outcome"}
    assert crashed["outcome"] == "crashed"
    assert int(before) <= crashed["ended_ms"] <= store.clock_ms()


def test_failures_and_crashes_stand_in_their_order(store: RedisStore) -> None:
    lease = fail(store, claim(store), b'{"n":1}')
    crash(store, lease)
    make_due(store, lease.id)
    lease = fail(store, claim(store, lease.id), b'{"n":2}')
    assert [b"crashed" in line for line in history(store, lease.id)] == [False, True, False]


def test_a_claim_a_release_and_an_extension_keep_it(store: RedisStore) -> None:
    lease = fail(store, claim(store), DETAIL)
    assert lease.entry[ATTEMPTS.size :] == DETAIL + b"\n"
    store.extend(PARTITION, [lease])
    assert history(store, lease.id) == [DETAIL]
    store.release(PARTITION, [lease])
    assert history(store, lease.id) == [DETAIL]
    assert claim(store, lease.id).entry[ATTEMPTS.size :] == DETAIL + b"\n"


def test_a_repeated_nack_is_one_line(store: RedisStore) -> None:
    lease = claim(store)
    for repeated in (False, True):
        store.nack(PARTITION, [(lease, 5000, True, DETAIL)], repeated=repeated)
    assert history(store, lease.id) == [DETAIL]


def test_the_header_of_the_entry_stays_what_it_was(store: RedisStore) -> None:
    lease = fail(store, claim_again(store, claim(store)), DETAIL)
    decoded = Attempts.decode(lease.entry)
    assert (decoded.attempt, decoded.crashes, decoded.token) == (3, 1, lease.token)
    assert decoded.history == lease.entry[ATTEMPTS.size :]


@pytest.mark.parametrize("end", ["acked", "dead", "cancelled", "poison"])
def test_whoever_reads_the_finished_stream_reads_the_history(store: RedisStore, end: str) -> None:
    lease = fail(store, claim(store), DETAIL)
    match end:
        case "acked":
            store.ack(PARTITION, [(lease, b"{}")])
        case "dead":
            store.nack(PARTITION, [(lease, None, True, b'{"last":1}')])
        case "cancelled":
            store.release(PARTITION, [lease])
            store.cancel_in(PARTITION, [lease.id])
        case _:
            crash(store, claim_again(store, claim_again(store, lease)))
    lines = Attempts.decode(finished(store)[0]["attempts"]).history.splitlines()
    assert (lines[0], len(lines)) == (
        DETAIL,
        4 if end == "poison" else 1,
    )  # what ended it is the detail


def test_a_follower_begins_without_history(store: RedisStore) -> None:
    lease = claim(store)
    follow(store, lease.id)
    store.nack(PARTITION, [(lease, 0, True, DETAIL)])
    assert attempts(store, lease.id) is None


def line(n: int, length: int) -> bytes:
    """A line of this length, its end included."""
    return b'{"n":%02d,"x":"%s"}' % (n, b"x" * (length - 16))


@pytest.mark.parametrize(
    ("length", "kept"), [(1024, 8), (1000, 8), (4096, 2), (4097, 1), (8192, 1), (8193, 0)]
)
def test_the_newest_8_kib_of_whole_lines_are_kept(
    store: RedisStore, length: int, kept: int
) -> None:
    assert len(line(0, length)) + 1 == length
    lease = claim(store)
    for n in range(kept + 3):
        lease = fail(store, lease, line(n, length))
        assert history(store, lease.id) == [
            line(i, length) for i in range(max(0, n + 1 - kept), n + 1)
        ]
    assert len(attempts(store, lease.id).history) == kept * length <= LIMIT


def test_what_fits_exactly_is_not_cut(store: RedisStore) -> None:
    lease = fail(store, fail(store, claim(store), line(1, LIMIT - 20)), line(2, 20))
    assert len(lease.entry) == ATTEMPTS.size + LIMIT
    assert len(history(store, lease.id)) == 2


def test_a_crash_makes_room_for_its_line(store: RedisStore) -> None:
    lease = fail(store, fail(store, claim(store), line(1, 20)), line(2, LIMIT - 20))
    crash(store, lease)
    lines = history(store, lease.id)
    assert len(lines) == 1
    assert b"crashed" in lines[0]


def test_a_full_redis_remembers_too(store: RedisStore, server: Server) -> None:
    lease, other = claim(store), claim(store)
    end_leases(store, other.id)
    with full(server):
        store.nack(PARTITION, [(lease, 0, True, DETAIL)])
        store.reclaim(PARTITION)
    assert (history(store, lease.id), len(history(store, other.id))) == ([DETAIL], 1)
