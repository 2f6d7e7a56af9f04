"""claim_limited.lua: as claim, in a topic with limits. What may not start yet keeps its place."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core.limits import LimitRule, TopicLimits
from django_delayq.core.message import Priority, task_code
from django_delayq.core.times import When
from django_delayq.store import keys
from django_delayq.store.lease import Lease
from django_delayq.store.store import Claimed, RedisStore
from tests.servers import Server, wait_until
from tests.store.factories import (
    CODE,
    DETAIL,
    LIMIT,
    PARTITION,
    PAST,
    attempts,
    dump,
    end_leases,
    ends,
    enqueue,
    enqueue_many,
    finished,
    full,
    held_back,
    leased,
    make_due,
    outgoing,
    rewind,
    send,
    waiting,
    wakeups,
)

OTHER = b"a second"
SECOND = task_code("shop.second")
ONE = TopicLimits(tasks={CODE: LimitRule(concurrency=1)})
SLOW = TopicLimits(tasks={CODE: LimitRule("1/h")})
FREE = TopicLimits()


def claim(store: RedisStore, limits: TopicLimits, limit: int = 500) -> Claimed:
    return store.claim_limited(PARTITION, limit, None, limits)


def claimed_ids(store: RedisStore, limits: TopicLimits, limit: int = 500) -> list[bytes]:
    return [lease.id for lease in claim(store, limits, limit).leases]


def enqueue_in_order(store: RedisStore, count: int, limit: bytes = LIMIT) -> list[bytes]:
    """Messages under one limit, each due a millisecond after the one before."""
    return [enqueue(store, limit=limit, when=str(int(PAST) + n)) for n in range(count)]


def ack(store: RedisStore, *leases: Lease) -> None:
    assert store.ack(PARTITION, [(lease, DETAIL) for lease in leases]) == []


# A topic


def test_the_concurrency_of_a_topic_counts_all_that_is_leased(store: RedisStore) -> None:
    enqueue_many(store, 5)
    limits = TopicLimits(LimitRule(concurrency=3))
    first = claim(store, limits)
    assert len(first.leases) == 3
    assert claimed_ids(store, limits) == []
    ack(store, first.leases[0])
    assert len(claimed_ids(store, limits)) == 1


def test_what_waits_for_a_limit_burns_no_attempt_and_keeps_its_place(store: RedisStore) -> None:
    ids = enqueue_in_order(store, 3)
    assert claimed_ids(store, ONE) == ids[:1]
    assert held_back(store) == set(ids[1:])
    assert attempts(store, ids[1]) is None
    assert waiting(store) == {i: int(PAST) + n for n, i in enumerate(ids) if n}
    found = store.queries.find(PARTITION, ids)
    assert [(each.state, each.due_at_ms - int(PAST)) for each in found if each] == [
        ("leased", 0),
        ("ready", 1),
        ("ready", 2),
    ]


def test_a_rate_lets_so_many_start_and_says_when_the_next_may(store: RedisStore) -> None:
    enqueue_many(store, 90)
    limits = TopicLimits(LimitRule("100/s"))
    first = claim(store, limits)
    # What half a second gives, and one.
    assert len(first.leases) == 51
    wait_ms = (first.next_due_ms or 0) - first.now_us / 1000
    assert 0 < wait_ms <= 60
    rewind(store, PARTITION, 50)
    second = claim(store, limits)
    passed_ms = 50 + (second.now_us - first.now_us) / 1000
    assert abs(len(second.leases) - passed_ms / 10) <= 1


def test_a_slow_rate_lets_one_start(store: RedisStore) -> None:
    enqueue_many(store, 3)
    limits = TopicLimits(LimitRule("1/h"))
    assert len(claimed_ids(store, limits)) == 1
    assert claimed_ids(store, limits) == []
    rewind(store, PARTITION, 3_600_000)
    assert len(claimed_ids(store, limits)) == 1


@pytest.mark.parametrize(("rate", "at_once"), [("10/s", 6), ("3/s", 2), ("1/s", 1), ("1/h", 1)])
def test_what_half_a_second_gives_may_start_at_once(
    store: RedisStore, rate: str, at_once: int
) -> None:
    enqueue_many(store, 20)
    assert len(claimed_ids(store, TopicLimits(LimitRule(rate)))) == at_once
    rewind(store, PARTITION, 3_600_000)
    assert len(claimed_ids(store, TopicLimits(LimitRule(rate)))) == at_once


def test_a_dispatcher_that_comes_late_loses_nothing(store: RedisStore) -> None:
    enqueue_many(store, 90)
    limits = TopicLimits(LimitRule("20/s"))
    assert len(claimed_ids(store, limits)) == 11
    rewind(store, PARTITION, 450)
    assert 9 <= len(claimed_ids(store, limits)) <= 11


def test_another_rate_counts_at_once(store: RedisStore) -> None:
    """A bucket that a slow rate has emptied does not hold up a quick one for an hour."""
    enqueue_many(store, 5)
    assert len(claimed_ids(store, TopicLimits(LimitRule("1/h")))) == 1
    claimed = claim(store, TopicLimits(LimitRule("1/s")))
    assert (claimed.next_due_ms or 0) - claimed.now_us / 1000 <= 1050


def test_a_quicker_rate_does_not_wait_for_what_a_slow_one_has_used(store: RedisStore) -> None:
    enqueue_many(store, 5)
    assert len(claimed_ids(store, TopicLimits(LimitRule("1/h")))) == 1
    rewind(store, PARTITION, 1100)
    assert len(claimed_ids(store, TopicLimits(LimitRule("1/s")))) == 1


def test_a_slow_task_keeps_to_its_rate_beside_a_quick_one_of_the_same_key(
    store: RedisStore,
) -> None:
    rates = {CODE: LimitRule("1/h"), SECOND: LimitRule("10/s")}
    slow = enqueue_in_order(store, 2)
    assert claimed_ids(store, TopicLimits(tasks=rates)) == slow[:1]
    for n in range(3):
        quick = enqueue(store, limit=LIMIT, code=SECOND, when=str(int(PAST) - 9 + n))
        rewind(store, PARTITION, 2000)
        assert claimed_ids(store, TopicLimits(tasks=rates)) == [quick]


def test_no_clock_says_when_a_place_is_free(store: RedisStore) -> None:
    """The next look is a second or two later; the end of what runs wakes the dispatchers."""
    enqueue_many(store, 2)
    limits = TopicLimits(LimitRule(concurrency=1))
    claimed = claim(store, limits)
    assert 1000 <= (claimed.next_due_ms or 0) - claimed.now_us / 1000 <= 2000
    before = wakeups(store)
    ack(store, *claimed.leases)
    assert wakeups(store) == before + 1


def test_an_end_wakes_nobody_when_nothing_waits(store: RedisStore) -> None:
    enqueue_many(store, 1)
    claimed = claim(store, TopicLimits(LimitRule(concurrency=1)))
    assert claimed.next_due_ms is None
    before = wakeups(store)
    ack(store, *claimed.leases)
    assert wakeups(store) == before


def test_what_has_piled_up_leaves_slowly_and_what_is_punctual_passes_it(store: RedisStore) -> None:
    enqueue_many(store, 20)
    punctual = enqueue(store, when=str(int(store.clock_ms())))
    limits = TopicLimits(release_rate="1/s")
    claimed = claim(store, limits)
    assert len(claimed.leases) == 2
    assert punctual in [lease.id for lease in claimed.leases]
    assert 900 <= (claimed.next_due_ms or 0) - claimed.now_us / 1000 <= 1050
    rewind(store, PARTITION, 1000)
    assert len(claimed_ids(store, limits)) == 1


def test_the_next_visit_is_for_a_punctual_one_if_that_is_sooner(store: RedisStore) -> None:
    enqueue_many(store, 20)
    enqueue(store, when="+500")
    claimed = claim(store, TopicLimits(release_rate="1/s"))
    assert 400 <= (claimed.next_due_ms or 0) - claimed.now_us / 1000 <= 501


def test_what_is_too_late_ends_as_expired(store: RedisStore) -> None:
    late, punctual = enqueue(store), enqueue(store, when=str(int(store.clock_ms())))
    claimed = claim(store, TopicLimits(LimitRule(too_late_ms=60_000)))
    assert ([lease.id for lease in claimed.leases], claimed.over) == ([punctual], [late])
    assert ends(store) == [(late, "expired")]
    assert finished(store)[0]["detail"] == b'{"reason":"too_late"}'


def test_a_task_has_a_lateness_of_its_own(store: RedisStore) -> None:
    message_id = enqueue(store)
    rule = LimitRule(too_late_ms=60_000)
    assert claim(store, TopicLimits(tasks={b"else": rule})).over == []
    make_due_again(store, message_id)
    assert claim(store, TopicLimits(tasks={CODE: rule})).over == [message_id]


def make_due_again(store: RedisStore, message_id: bytes) -> None:
    end_leases(store, message_id)
    store.reclaim(PARTITION)
    make_due(store, message_id)


# Keys


def test_a_limit_holds_back_its_own_messages_only(store: RedisStore) -> None:
    mine = enqueue_in_order(store, 3)
    others = enqueue_in_order(store, 3, OTHER)
    free = [enqueue(store) for _ in range(3)]
    assert set(claimed_ids(store, ONE)) == {mine[0], others[0], *free}


def test_many_that_wait_do_not_keep_those_behind_them_waiting(store: RedisStore) -> None:
    mine = enqueue_in_order(store, 700)
    free = enqueue(store, when=str(int(PAST) + 5000))
    first = claim(store, ONE, limit=2)
    assert [lease.id for lease in first.leases] == mine[:1]
    # Each claim looks at 500 at most, and the next comes at once.
    assert (first.next_due_ms or 0) < first.now_us / 1000
    assert claimed_ids(store, ONE, limit=2) == [free]
    assert len(held_back(store)) == 699


def test_the_end_of_a_run_lets_the_first_that_waits_go(store: RedisStore) -> None:
    ids = enqueue_in_order(store, 3)
    (lease,) = claim(store, ONE).leases
    before = wakeups(store)
    ack(store, lease)
    assert (held_back(store), wakeups(store)) == ({ids[2]}, before + 1)
    assert claimed_ids(store, ONE) == ids[1:2]


@pytest.mark.parametrize("end", ["nack", "dead", "release", "put_off", "crash"])
def test_every_end_of_a_run_makes_room(store: RedisStore, end: str) -> None:
    ids = enqueue_in_order(store, 2)
    (lease,) = claim(store, ONE).leases
    if end == "crash":
        end_leases(store)
        store.reclaim(PARTITION)
    elif end == "release":
        store.release(PARTITION, [lease], delays_ms=[60_000])
    elif end == "put_off":
        store.put_off(PARTITION, [(lease, 60_000, DETAIL)])
    else:
        store.nack(PARTITION, [(lease, None if end == "dead" else 60_000, True, DETAIL)])
    assert claimed_ids(store, ONE) == ids[1:]


def test_a_stale_holder_makes_no_room(store: RedisStore) -> None:
    ids = enqueue_in_order(store, 2)
    (stale,) = claim(store, ONE).leases
    make_due_again(store, ids[0])
    assert claimed_ids(store, ONE, limit=1) == [ids[0]]
    store.ack(PARTITION, [(stale, DETAIL)])
    assert claimed_ids(store, ONE) == []


def test_several_may_run_under_a_limit(store: RedisStore) -> None:
    enqueue_in_order(store, 5)
    limits = TopicLimits(tasks={CODE: LimitRule(concurrency=3)})
    first = claim(store, limits)
    assert len(first.leases) == 3
    ack(store, *first.leases[:2])
    assert len(claimed_ids(store, limits)) == 2


def test_a_newer_message_does_not_overtake_one_that_waits(store: RedisStore) -> None:
    first, second = enqueue_in_order(store, 2)
    assert claimed_ids(store, SLOW) == [first]
    assert held_back(store) == {second}
    newer = enqueue(store, limit=LIMIT, when=str(int(PAST) + 9))
    rewind_buckets(store, 3_600_000)
    assert claimed_ids(store, SLOW) == [second]
    assert held_back(store) == {newer}


def rewind_buckets(store: RedisStore, milliseconds: float) -> None:
    """The tokens are there, and the timer has not come."""
    buckets, _ = keys.rate_keys(store.client.prefix, PARTITION)
    for member, score in store.client.redis.zrange(buckets, 0, -1, withscores=True):
        store.client.redis.zadd(buckets, {member: score - milliseconds})


def test_the_rate_of_a_key_brings_its_messages_back(store: RedisStore) -> None:
    ids = enqueue_in_order(store, 3)
    limits = TopicLimits(tasks={CODE: LimitRule("1/s")})
    claimed = claim(store, limits)
    assert [lease.id for lease in claimed.leases] == ids[:1]
    assert 850 <= (claimed.next_due_ms or 0) - claimed.now_us / 1000 <= 1050
    rewind(store, PARTITION, 1050)
    assert claimed_ids(store, limits) == ids[1:2]


def test_the_rate_of_a_task_brings_many_back_at_each_step(store: RedisStore) -> None:
    """Not one a second, as where only the end of a run makes room."""
    enqueue_in_order(store, 300)
    limits = TopicLimits(tasks={CODE: LimitRule("100/s")})
    claimed = first = claim(store, limits)
    started, rewound_ms = len(first.leases), 0.0
    for _ in range(10):
        wait_ms = (claimed.next_due_ms or 0) - claimed.now_us / 1000
        assert 0 < wait_ms <= 60
        rewind(store, PARTITION, wait_ms + 1)
        claimed = claim(store, limits)
        started, rewound_ms = started + len(claimed.leases), rewound_ms + wait_ms + 1
    passed_ms = rewound_ms + (claimed.now_us - first.now_us) / 1000
    assert 51 + 10 <= started <= 51 + passed_ms / 10 + 1


def test_where_only_an_end_makes_room_nobody_asks_at_each_step(store: RedisStore) -> None:
    enqueue_in_order(store, 5)
    claimed = claim(store, TopicLimits(tasks={CODE: LimitRule("100/s", 1)}))
    assert len(claimed.leases) == 1
    assert (claimed.next_due_ms or 0) - claimed.now_us / 1000 >= 1000


def test_a_cancel_before_the_claim_keeps_nobody_waiting_for_ever(store: RedisStore) -> None:
    """The one that was let go is cancelled: the next one is found at the next look."""
    ids = enqueue_in_order(store, 3)
    ack(store, *claim(store, ONE).leases)
    assert store.cancel_in(PARTITION, [ids[1]]) == ["OK"]
    assert claimed_ids(store, ONE) == []
    rewind(store, PARTITION, 3000)
    assert claimed_ids(store, ONE) == ids[2:]


def test_what_was_cancelled_while_it_waited_is_passed_over(store: RedisStore) -> None:
    ids = enqueue_in_order(store, 3)
    (lease,) = claim(store, ONE).leases
    assert store.cancel_in(PARTITION, [ids[1]]) == ["OK"]
    assert finished(store)[0]["due"] == str(int(PAST) + 1).encode()
    ack(store, lease)
    rewind(store, PARTITION, 3000)
    assert claimed_ids(store, ONE) == ids[2:]


@pytest.mark.parametrize("how", ["cancel", "purge", "reschedule"])
def test_many_that_went_while_they_waited_do_not_hold_up_those_behind_them(
    store: RedisStore, how: str
) -> None:
    ids = enqueue_in_order(store, 101)
    (lease,) = claim(store, ONE).leases
    if how == "cancel":
        assert set(store.cancel_in(PARTITION, ids[1:])) == {"OK"}
    elif how == "purge":
        assert set(store.purge(PARTITION)) == set(ids[1:])
    else:
        for message_id in ids[1:]:
            store.reschedule_in(PARTITION, message_id, When.after(600_000))
    newer = enqueue(store, limit=LIMIT, when=str(int(PAST) + 900))
    assert claimed_ids(store, ONE) == []
    ack(store, lease)
    assert claimed_ids(store, ONE) == [newer]


def test_very_many_that_went_are_forgotten_in_a_few_claims_that_come_at_once(
    store: RedisStore,
) -> None:
    enqueue_in_order(store, 400)
    (lease,) = claim(store, ONE).leases
    store.purge(PARTITION)
    newer = enqueue(store, limit=LIMIT, when=str(int(PAST) + 900))
    assert claimed_ids(store, ONE) == []
    ack(store, lease)
    rewind(store, PARTITION, 3000)
    for _ in range(5):
        claimed = claim(store, ONE)
        if claimed.leases:
            break
        assert (claimed.next_due_ms or 0) <= claimed.now_us / 1000
    assert [lease.id for lease in claimed.leases] == [newer]


@pytest.mark.parametrize("why", ["too late", "expired"])
def test_many_that_are_over_do_not_hold_up_those_behind_them(store: RedisStore, why: str) -> None:
    limits = TopicLimits(tasks={CODE: LimitRule(concurrency=1, too_late_ms=60_000)})
    now = int(store.clock_ms())
    first = enqueue(store, limit=LIMIT, when=str(now - 50_000))
    (lease,) = claim(store, limits).leases
    assert lease.id == first
    ends_at = int(store.clock_ms()) + 500
    doomed = [
        outgoing(limit=LIMIT, when=str(now - 40_000 + n), expires=str(ends_at)) for n in range(100)
    ]
    send(store, *doomed)
    gone = [message.id for message in doomed]
    punctual = enqueue(store, limit=LIMIT, when=str(now - 10))
    if why == "too late":
        limits = TopicLimits(tasks={CODE: LimitRule(concurrency=1, too_late_ms=30_000)})
    claim(store, ONE)
    wait_until(lambda: store.clock_ms() > ends_at, "they have expired")
    ack(store, lease)
    claimed = claim(store, limits)
    assert set(claimed.over) == set(gone)
    assert [lease.id for lease in claimed.leases] == [punctual]


def test_an_edited_message_does_not_wait_for_the_limit_of_its_old_arguments(
    store: RedisStore,
) -> None:
    ids = enqueue_in_order(store, 2)
    assert claimed_ids(store, ONE) == ids[:1]
    (found,) = store.queries.find(PARTITION, ids[1:])
    assert found
    before = wakeups(store)
    after = found.record.replace(LIMIT, OTHER)
    assert store.edit_in(PARTITION, ids[1], found.record, after) == "OK"
    assert (held_back(store), wakeups(store)) == (set(), before + 1)
    assert claimed_ids(store, ONE) == ids[1:]


def test_a_place_whose_message_runs_no_more_is_found_free(store: RedisStore) -> None:
    ids = enqueue_in_order(store, 2)
    assert claimed_ids(store, ONE) == ids[:1]
    store.client.command("ZREM", keys.leased_key(store.client.prefix, PARTITION), ids[0])
    rewind(store, PARTITION, 3000)
    assert claimed_ids(store, ONE) == ids[1:]


def test_new_messages_of_a_busy_key_do_not_put_off_the_look_at_it(store: RedisStore) -> None:
    enqueue_in_order(store, 1)
    (ended,) = claimed_ids(store, ONE)
    store.client.command("ZREM", keys.leased_key(store.client.prefix, PARTITION), ended)
    started: list[bytes] = []
    for _ in range(6):
        enqueue_in_order(store, 1)
        started += claimed_ids(store, ONE)
        rewind(store, PARTITION, 500)
    assert len(started) == 1


def test_a_place_that_is_left_over_does_not_stay_when_the_limit_is_gone(store: RedisStore) -> None:
    (message_id,) = enqueue_in_order(store, 1)
    lease = claim(store, ONE).leases[0]
    (other,) = enqueue_in_order(store, 1, OTHER)
    running = claim(store, ONE).leases[0]
    store.client.redis.zrem(keys.leased_key(store.client.prefix, PARTITION), message_id)
    assert store.queries.holding_back([PARTITION]) == {PARTITION}
    claim(store, FREE)
    assert (lease.id, running.id) == (message_id, other)
    assert {member[9:] for member in dump(store)["limits"]} == {other}
    ack(store, running)
    assert store.queries.holding_back([PARTITION]) == set()


def test_without_a_rule_everything_that_waits_goes(store: RedisStore) -> None:
    """A deploy has taken the limit away."""
    ids = enqueue_in_order(store, 5)
    assert claimed_ids(store, ONE) == ids[:1]
    assert store.queries.holding_back([PARTITION]) == {PARTITION}
    rewind(store, PARTITION, 3000)
    assert claimed_ids(store, FREE) == ids[1:]


def test_a_waiting_message_can_be_moved_to_another_time(store: RedisStore) -> None:
    ids = enqueue_in_order(store, 2)
    (lease,) = claim(store, ONE).leases
    make_due(store, ids[1])
    assert held_back(store) == set()
    ack(store, lease)
    assert claimed_ids(store, ONE) == ids[1:]


def test_a_list_has_what_waits_in_its_order(store: RedisStore) -> None:
    ids = enqueue_in_order(store, 4)
    free = [enqueue(store, when=str(int(PAST) + n)) for n in (1, 5)]
    claim(store, ONE, limit=1)
    claim(store, TopicLimits(LimitRule(concurrency=1), tasks=ONE.tasks))
    for _ in range(2):
        store.claim_limited(PARTITION, 1, None, ONE)
    expected = sorted(waiting(store).items(), key=lambda pair: (pair[1], pair[0]))
    listed: list[Any] = []
    after = None
    while page := store.queries.list(PARTITION, Priority.NORMAL, after, 1):
        listed += [(each.id, each.due_at_ms) for each in page]
        after = page[-1].due_at_ms, page[-1].id
    assert listed == expected
    assert held_back(store) < {*ids, *free}


def test_figures_count_what_waits_as_ready(store: RedisStore) -> None:
    enqueue_in_order(store, 4)
    claim(store, ONE)
    stats = store.queries.stats(PARTITION)
    assert (stats.waiting, stats.ready, stats.leased, stats.held) == (3, 3, 1, 3)
    assert stats.next_due_ms == int(PAST) + 1
    snapshot = store.queries.snapshot([PARTITION], [int(PAST) + 2, int(PAST) + 9], 1)
    assert snapshot.forecast[PARTITION] == [1, 3]


def test_nothing_that_waits_is_damaged(store: RedisStore) -> None:
    ids = enqueue_in_order(store, 4)
    claim(store, ONE)
    assert store.repair.diagnose(PARTITION, ids) == []


def test_a_purge_takes_what_waits_with_its_due_time(store: RedisStore) -> None:
    ids = enqueue_in_order(store, 2)
    claim(store, ONE)
    assert store.purge(PARTITION) == ids[1:]
    assert finished(store)[0]["due"] == str(int(PAST) + 1).encode()


def test_a_plain_claim_leaves_what_waits(store: RedisStore) -> None:
    enqueue_in_order(store, 2)
    claim(store, ONE)
    claimed = store.claim(PARTITION, 10)
    assert (claimed.leases, claimed.next_due_ms) == ([], None)


def test_a_full_redis_still_gives_messages_away(store: RedisStore, server: Server) -> None:
    ids = enqueue_in_order(store, 2)
    with full(server):
        assert claimed_ids(store, ONE) == ids[:1]
        before = leased(store)
    assert before == {ids[0]}


def test_a_limit_that_nobody_knows_holds_nothing_back(store: RedisStore) -> None:
    ids = enqueue_in_order(store, 3)
    assert claimed_ids(store, FREE) == ids
    assert dump(store)["limits"] == {}
