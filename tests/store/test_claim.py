"""claim.lua: delayed and due -> leased, or its end when it may not run."""

from __future__ import annotations

import os

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_delayq.core.message import HEADER_END, Priority
from django_delayq.store import keys
from django_delayq.store.client import BATCH, BATCH_BYTES
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    DAY_MS,
    LATER,
    PARTITION,
    PAST,
    TASKS,
    attempts,
    claim,
    corrupt,
    counter,
    dump,
    ends,
    enqueue,
    enqueue_many,
    finished,
    full,
    key,
    leased,
    live,
    nodes,
    outgoing,
    send,
    waiting,
)


def claimed_ids(store: RedisStore, limit: int = BATCH) -> list[bytes]:
    return [lease.id for lease in store.claim(PARTITION, limit).leases]


def test_a_due_message_is_leased(store: RedisStore) -> None:
    message_id = enqueue(store)
    (lease,) = store.claim(PARTITION, 10).leases
    assert (lease.id, lease.attempts.attempt, lease.attempts.crashes, lease.attempts.due_at_ms) == (
        message_id,
        1,
        0,
        int(PAST),
    )
    assert leased(store) == {message_id}
    assert waiting(store) == {}


def test_a_claimed_message_is_invisible_to_other_workers(store: RedisStore) -> None:
    enqueue(store)
    assert len(store.claim(PARTITION, 1).leases) == 1
    assert store.claim(PARTITION, 1).leases == []


def test_the_lease_ends_a_ttr_after_the_claim(store: RedisStore) -> None:
    enqueue(store, ttr_ms=30_000)
    claimed = store.claim(PARTITION, 1)
    (deadline,) = dump(store)["leased"].values()
    assert deadline == claimed.now_us // 1000 + 30_000
    assert claimed.leases[0].ttr_ms == 30_000


def test_each_lease_of_a_claim_has_the_ttr_of_its_message(store: RedisStore) -> None:
    ids = [enqueue(store, ttr_ms=ttr) for ttr in (30_000, 2_000, 30_000)]
    claimed = store.claim(PARTITION, 3)
    deadlines = [dump(store)["leased"][message_id] for message_id in ids]
    assert [end - claimed.now_us // 1000 for end in deadlines] == [30_000, 2_000, 30_000]


def test_every_lease_of_a_claim_has_the_token_of_the_caller(store: RedisStore) -> None:
    enqueue_many(store, 3)
    token = os.urandom(16)
    assert {lease.token for lease in store.claim(PARTITION, 3, token).leases} == {token}


def test_the_first_claim_of_a_message_that_was_replaced_within_a_limit_is_its_own(
    store: RedisStore,
) -> None:
    """Its attempts entry says since when its id waits, and that it was never claimed."""
    message_id = enqueue(store)
    enqueue(store, message_id, mode="replace:60000")
    lease = claim(store, message_id)
    assert abs(lease.attempts.first_claimed_at_ms - store.clock_ms()) < 60_000


def test_the_first_claim_is_remembered(store: RedisStore) -> None:
    first = claim(store)
    store.nack(PARTITION, [(first, 0, True, b"{}")])
    store.reschedule_in(PARTITION, first.id, PAST)
    second = claim(store, first.id)
    assert (second.attempts.attempt, second.attempts.first_claimed_at_ms) == (
        2,
        first.attempts.first_claimed_at_ms,
    )
    assert abs(first.attempts.first_claimed_at_ms - store.clock_ms()) < 60_000


def test_a_message_that_is_not_due_stays(store: RedisStore) -> None:
    message_id = enqueue(store, when=LATER)
    claimed = store.claim(PARTITION, 10)
    assert claimed.leases == []
    assert claimed.next_due_ms == waiting(store)[message_id]


def test_nothing_waits_and_nothing_is_due(store: RedisStore) -> None:
    claimed = store.claim(PARTITION, 10)
    assert (claimed.leases, claimed.over, claimed.next_due_ms, claimed.wakeups, claimed.paused) == (
        [],
        [],
        None,
        0,
        False,
    )


def test_the_next_due_time_is_of_what_stays(store: RedisStore) -> None:
    for when in ("1000", "3000", "2000"):
        enqueue(store, when=when)
    assert [store.claim(PARTITION, 1).next_due_ms for _ in range(3)] == [2000, 3000, None]


def test_the_next_due_time_is_the_earliest_of_all_lanes(store: RedisStore) -> None:
    now = int(store.clock_ms())
    enqueue(store, priority=Priority.HIGH, when=str(now + DAY_MS + 5))
    enqueue(store, priority=Priority.LOW, when=str(now + DAY_MS))
    assert store.claim(PARTITION, 1).next_due_ms == now + DAY_MS


def test_the_wakeups_are_what_a_sweep_reads(store: RedisStore) -> None:
    enqueue(store)
    claimed = store.claim(PARTITION, 1)
    assert store.queries.counters([PARTITION]) == [(claimed.wakeups, 1, 0)] == [(1, 1, 0)]


# Never early


@hypothesis_settings(max_examples=60)
@given(offset=st.integers(1, 999))
@example(1)
@example(999)
def test_a_message_is_never_early_at_any_fraction_of_a_second(
    store: RedisStore, offset: int
) -> None:
    partition = Partition("orders", int.from_bytes(os.urandom(4), "big"))
    due = int(store.clock_ms()) + offset
    store.enqueue(partition, TASKS, [outgoing(when=str(due))])
    early = store.claim(partition, 1)
    if early.leases:
        assert early.now_us >= due * 1000
    else:
        assert early.now_us < due * 1000
        assert early.next_due_ms == due


def test_a_message_is_claimed_in_the_very_millisecond_that_it_is_due(store: RedisStore) -> None:
    due = int(store.clock_ms()) + 20
    enqueue(store, when=str(due))
    misses = []
    while not (claimed := store.claim(PARTITION, 1)).leases:
        misses.append(claimed.now_us)
    assert max(misses, default=0) < due * 1000 <= claimed.now_us


@hypothesis_settings(max_examples=30)
@given(offset=st.integers(1, 999))
def test_what_was_due_by_any_fraction_of_a_second_is_claimed(
    store: RedisStore, offset: int
) -> None:
    message_id = enqueue(store, when=str(int(store.clock_ms()) - offset))
    assert claimed_ids(store) == [message_id]


# Order


def test_messages_come_by_due_time_and_then_by_id(store: RedisStore) -> None:
    ids = [bytes([n]) * 16 for n in (9, 3, 200, 0)]
    send(store, *(outgoing(i, when="2000") for i in ids), outgoing(b"z" * 16, when="1999"))
    assert claimed_ids(store) == [b"z" * 16, *sorted(ids)]


def test_a_short_delay_sent_later_comes_first(store: RedisStore) -> None:
    late, soon = enqueue(store, when="2000"), enqueue(store, when="1000")
    assert claimed_ids(store) == [soon, late]


def test_a_retry_stands_in_the_same_order_as_fresh_messages(store: RedisStore) -> None:
    fresh_before, lease = enqueue(store, when="3000"), claim(store, when="1000")
    fresh_after = enqueue(store, when="5000")
    store.release(PARTITION, [lease])
    store.reschedule_in(PARTITION, lease.id, "4000")
    assert claimed_ids(store) == [fresh_before, lease.id, fresh_after]


def test_a_higher_priority_goes_first(store: RedisStore) -> None:
    ids = {
        p: enqueue(store, priority=p, when=PAST)
        for p in (Priority.LOW, Priority.NORMAL, Priority.HIGH)
    }
    assert claimed_ids(store) == [ids[Priority.HIGH], ids[Priority.NORMAL], ids[Priority.LOW]]


@pytest.mark.parametrize(
    ("head_start_ms", "first"), [(119_999, "high"), (120_000, "high"), (120_001, "low")]
)
def test_a_low_message_ages_past_a_high_one(
    store: RedisStore, head_start_ms: int, first: str
) -> None:
    low = enqueue(store, priority=Priority.LOW, when=str(int(PAST) - head_start_ms))
    high = enqueue(store, priority=Priority.HIGH, when=PAST)
    assert claimed_ids(store, 1) == [{"high": high, "low": low}[first]]


def test_the_lanes_are_merged_within_one_claim(store: RedisStore) -> None:
    order = [
        ("high", 0),
        ("normal", -10_000),
        ("low", -60_000),
        ("normal", 50_000),
        ("high", 200_000),
    ]
    ids = [
        enqueue(store, priority=Priority.parse(name), when=str(int(PAST) + due))
        for name, due in order
    ]
    assert claimed_ids(store, 4) == ids[:4]
    assert claimed_ids(store, 4) == ids[4:]


# Limits


def test_the_limit_of_the_caller_holds(store: RedisStore) -> None:
    ids = enqueue_many(store, 7)
    assert [claimed_ids(store, 3) for _ in range(4)] == [ids[:3], ids[3:6], ids[6:], []]


def test_no_claim_takes_more_than_a_batch(store: RedisStore) -> None:
    enqueue_many(store, BATCH + 1)
    assert [len(claimed_ids(store, 10_000)) for _ in range(2)] == [BATCH, 1]


def test_a_limit_of_zero_takes_nothing(store: RedisStore) -> None:
    enqueue(store)
    assert claimed_ids(store, 0) == []


def test_a_backlog_of_twenty_thousand_drains_in_order(store: RedisStore) -> None:
    ids, drained = enqueue_many(store, 20_000), []
    while leases := store.claim(PARTITION, BATCH).leases:
        drained += [lease.id for lease in leases]
        assert store.ack(PARTITION, [(lease, b"{}") for lease in leases]) == []
    assert drained == ids
    stats = store.queries.stats(PARTITION)
    assert (stats.waiting, stats.leased, stats.meta["acked"]) == (0, 0, "20000")


def test_no_more_than_the_bound_leaves_at_once(store: RedisStore) -> None:
    ids = sorted(enqueue(store, body=b"x" * 150_000) for _ in range(8))
    assert [claimed_ids(store) for _ in range(3)] == [ids[:3], ids[3:6], ids[6:]]


def test_a_message_larger_than_the_bound_leaves_alone(store: RedisStore) -> None:
    ids = sorted(enqueue(store, body=b"x" * 1_100_000) for _ in range(2))
    assert [claimed_ids(store) for _ in range(2)] == [ids[:1], ids[1:]]


# Paused


def test_a_paused_partition_gives_nothing(store: RedisStore) -> None:
    enqueue(store)
    store.topics.pause(PARTITION.topic, '{"by": "me"}')
    before = dump(store)
    claimed = store.claim(PARTITION, 10)
    assert (claimed.leases, claimed.paused, claimed.next_due_ms) == ([], True, None)
    assert dump(store) == before


def test_a_resumed_partition_goes_on_and_its_workers_are_woken(store: RedisStore) -> None:
    message_id = enqueue(store)
    store.topics.pause(PARTITION.topic, "{}")
    before = store.claim(PARTITION, 1).wakeups
    store.topics.resume(PARTITION.topic)
    claimed = store.claim(PARTITION, 1)
    assert [lease.id for lease in claimed.leases] == [message_id]
    assert claimed.wakeups == before + 1


# Expiry


@pytest.mark.parametrize("expires", ["1000000000001", "+1"])
def test_an_expired_message_ends_as_expired(store: RedisStore, expires: str) -> None:
    message_id = enqueue(store, when=PAST, expires=expires)
    claimed = store.claim(PARTITION, 1)
    assert (claimed.leases, claimed.over) == ([], [message_id])
    assert ends(store) == [(message_id, "expired")]
    assert finished(store)[0]["detail"] == b'{"reason":"expired"}'
    assert (live(store), waiting(store), counter(store, "expired")) == (set(), {}, 1)


@pytest.mark.parametrize("expires", ["9000000000000", f"+{9 * 10**12}"])
def test_a_message_that_has_not_expired_runs(store: RedisStore, expires: str) -> None:
    assert claim(store, expires=expires).attempts.attempt == 1


def test_a_retry_expires_too_and_keeps_its_attempts_for_the_archive(store: RedisStore) -> None:
    expires = int(store.clock_ms()) + 60_000
    lease = claim(store, expires=str(expires))
    store.nack(PARTITION, [(lease, 0, True, b"{}")])
    raw = dump(store)["messages"][lease.id]
    corrupt(store, lease.id, raw[:8] + (1).to_bytes(6, "big") + raw[14:])
    store.reschedule_in(PARTITION, lease.id, PAST)
    assert store.claim(PARTITION, 1).over == [lease.id]
    assert finished(store)[0]["attempts"] == lease.entry + b"{}\n"
    assert attempts(store, lease.id) is None


def test_expired_messages_do_not_stop_the_others(store: RedisStore) -> None:
    expired = enqueue(store, when="1000", expires="+1")
    good = enqueue(store, when="2000")
    claimed = store.claim(PARTITION, 10)
    assert ([lease.id for lease in claimed.leases], claimed.over) == ([good], [expired])


# Damage


def test_a_message_without_a_record_is_dead(store: RedisStore) -> None:
    lost, good = enqueue(store, when="1000"), enqueue(store, when="2000")
    corrupt(store, lost, None)
    claimed = store.claim(PARTITION, 10)
    assert ([lease.id for lease in claimed.leases], claimed.over) == ([good], [lost])
    assert ends(store) == [(lost, "dead")]
    assert finished(store)[0]["detail"] == b'{"reason":"body_missing"}'
    assert (counter(store, "dead"), waiting(store)) == (1, {})


@pytest.mark.parametrize(
    "raw", [b"", b"\0", b"x" * 14, b"\xff" * 15, b"x" * 22, b"\xff" * 23, os.urandom(200)]
)
def test_a_damaged_record_can_be_claimed_and_buried_beside_its_neighbours(
    store: RedisStore, raw: bytes
) -> None:
    damaged, good = enqueue(store, when="1000"), enqueue(store, when="2000")
    corrupt(store, damaged, raw[:8] + b"\0" * len(raw[8:14]) + raw[14:])  # never expired by chance
    first, second = store.claim(PARTITION, 10).leases
    assert (first.id, second.id) == (damaged, good)
    assert store.nack(PARTITION, [(first, None, True, b"{}")]) == []
    assert ends(store) == [(damaged, "dead")]


def test_a_truncated_record_has_a_lease_of_a_minute(store: RedisStore) -> None:
    message_id = enqueue(store)
    corrupt(store, message_id, b"short")
    claimed = store.claim(PARTITION, 1)
    assert dump(store)["leased"] == {message_id: claimed.now_us // 1000 + 60_000}
    assert claimed.leases[0].ttr_ms == 60_000


@pytest.mark.parametrize("end", ["ack", "nack", "release", "reclaim", "extend"])
def test_every_end_of_a_run_takes_a_damaged_record(store: RedisStore, end: str) -> None:
    message_id = enqueue(store)
    corrupt(store, message_id, b"\1\2\3")
    (lease,) = store.claim(PARTITION, 1).leases
    {
        "ack": lambda: store.ack(PARTITION, [(lease, b"{}")]),
        "nack": lambda: store.nack(PARTITION, [(lease, 0, True, b"{}")]),
        "release": lambda: store.release(PARTITION, [lease]),
        "reclaim": lambda: store.reclaim(PARTITION),
        "extend": lambda: store.extend(PARTITION, [lease]),
    }[end]()
    assert not lease.lost


# Full


def test_a_full_redis_still_hands_out_messages(store: RedisStore, server: Server) -> None:
    message_id = enqueue(store)
    with full(server):
        assert claimed_ids(store) == [message_id]
    assert leased(store) == {message_id}


def test_a_full_redis_still_ends_expired_messages(store: RedisStore, server: Server) -> None:
    message_id = enqueue(store, expires="+1")
    with full(server):
        assert store.claim(PARTITION, 1).over == [message_id]
    assert ends(store) == [(message_id, "expired")]


def test_a_full_redis_drains_to_empty(store: RedisStore, server: Server) -> None:
    enqueue_many(store, 50)
    with full(server):
        store.partitions.forget()
        for partition in store.partitions.all("orders"):
            while leases := store.claim(partition, 20).leases:
                assert store.extend(partition, leases) == []
                assert store.ack(partition, [(lease, b"{}") for lease in leases]) == []
    assert (live(store), waiting(store), leased(store)) == (set(), {}, set())


# A lost answer


def test_what_a_claim_took_is_found_by_its_token_when_its_answer_was_lost(
    store: RedisStore,
) -> None:
    ids, token = enqueue_many(store, 1200), os.urandom(16)
    for _ in range(3):
        store.claim(PARTITION, 400, token)
    assert store.queries.leased_under(PARTITION, token) == ids


def test_a_claim_does_not_look_beyond_its_partition(store: RedisStore) -> None:
    enqueue(store)
    assert store.claim(Partition("orders", 1), 10).leases == []
    assert store.claim(Partition("order", 0), 10).leases == []


def test_no_finished_entry_is_written_when_the_archive_is_switched_off(store: RedisStore) -> None:
    store.client.settings = type(store.client.settings)(
        prefix=store.client.prefix, finished_limit=0
    )
    enqueue(store, expires="+1")
    store.claim(PARTITION, 1)
    assert not store.client.command("EXISTS", keys.finished_key(store.client.prefix, PARTITION))


def test_bodies_that_are_not_handed_out_are_not_read_either(
    store: RedisStore, server: Server
) -> None:
    """500 bodies of 64 KiB, the default limit of a body: reading all of them held everybody up for
    50 ms."""

    def spent_us() -> int:
        stats = [node.info("commandstats") for node in nodes(server)]
        return sum(
            stat[name]["usec"]
            for stat in stats
            for name in ("cmdstat_eval", "cmdstat_evalsha")
            if name in stat
        )

    def quickest(count: int = BATCH_BYTES // 65_027) -> int:
        times = []
        for _ in range(5):
            before = spent_us()
            leases = store.claim(PARTITION, 500).leases
            times.append(spent_us() - before)
            assert len(leases) == count
            store.release(PARTITION, leases)
        return min(times)

    big = b'["%s"]' % (b"x" * 65_000)
    send(store, *(outgoing(body=big) for _ in range(20)))
    few = quickest()
    for _ in range(6):
        send(store, *(outgoing(body=big) for _ in range(80)))
    assert quickest() < 4 * few
    send(
        store, *(outgoing(when="5") for _ in range(4))
    )  # what comes first says little of what follows
    assert quickest(4 + BATCH_BYTES // 65_027) < 6 * few


def test_what_fills_a_claim_exactly_leaves_whole(store: RedisStore) -> None:
    ids = sorted(
        enqueue(store, body=b'["%s"]' % (b"x" * (BATCH_BYTES // 4 - HEADER_END - 4)))
        for _ in range(5)
    )
    assert claimed_ids(store) == ids[:4]


def test_what_is_remembered_of_the_runs_counts_too(store: RedisStore) -> None:
    """Nearly 8 KiB of history each: not many of them leave at once."""
    ids = enqueue_many(store, 300)
    for message_id in ids:
        store.client.command("HSET", key(store, "attempts"), message_id, bytes(38) + b"x" * 8_000)
    assert len(store.claim(PARTITION, 500).leases) == BATCH_BYTES // (
        8_038 + len(dump(store)["messages"][ids[-1]])
    )


def test_one_message_leaves_however_big_it_is(store: RedisStore) -> None:
    ids = sorted(enqueue(store, body=b'["%s"]' % (b"x" * 1_200_000)) for _ in range(3))
    assert claimed_ids(store) == ids[:1]


def test_missing_records_do_not_end_a_claim(store: RedisStore) -> None:
    ids = enqueue_many(store, 60)
    for message_id in ids[:50]:
        corrupt(store, message_id, None)
    claimed = store.claim(PARTITION, 500)
    assert (claimed.over, [lease.id for lease in claimed.leases]) == (ids[:50], ids[50:])
