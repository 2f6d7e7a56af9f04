"""No call moves many large records at once, and nothing is left out because of that."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from django_delayq.core.limits import LimitRule, TopicLimits
from django_delayq.core.message import Priority
from django_delayq.core.times import When
from django_delayq.store.bulk_load import BulkLoad
from django_delayq.store.client import BATCH, BATCH_BYTES
from django_delayq.store.finished import READ_BYTES, FinishedStream
from django_delayq.store.keys import leased_key
from django_delayq.store.lease import Lease
from django_delayq.store.queries import Life
from django_delayq.store.store import RedisStore
from django_delayq.worker.outcome import Outcome, Result
from django_delayq.worker.settler import settle_parts
from tests.faults import scripts_run
from tests.servers import SINGLE
from tests.store.factories import (
    CODE,
    DETAIL,
    FAR,
    LIMIT,
    PARTITION,
    PAST,
    held_back,
    new_id,
    outgoing,
    record,
    rewind,
    send,
)

pytestmark = pytest.mark.parametrize("server_kind", SINGLE, indirect=True, scope="session")

SIZE, COUNT = 64 * 1024, 20
"""As many as two calls move, and a half."""
CALLS = (3, 4)
"""The first call of a script may be one more: Redis does not know it yet."""
LARGE = b"x" * (SIZE - 40)


class Called:
    """How many script calls there were."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._before = scripts_run(store)

    @property
    def count(self) -> int:
        return scripts_run(self._store) - self._before


@pytest.fixture
def called(store: RedisStore) -> Called:
    return Called(store)


def put(store: RedisStore, when: str = "1000000000000", size: int = SIZE) -> list[bytes]:
    messages = [outgoing(when=when, body=b"x" * (size - 40)) for _ in range(COUNT)]
    assert send(store, *messages) == {}
    return [message.id for message in messages]


def claims(store: RedisStore) -> Iterator[list[Lease]]:
    while leases := store.claim(PARTITION, BATCH).leases:
        yield leases


def size_of(leases: list[Lease]) -> int:
    return sum(len(lease.record) for lease in leases)


def test_enqueue_is_several_calls(store: RedisStore, called: Called) -> None:
    put(store)
    assert called.count in CALLS
    assert store.queries.stats(PARTITION).waiting == COUNT


def test_the_words_of_several_calls_are_for_the_right_messages(store: RedisStore) -> None:
    messages = [outgoing(body=LARGE) for _ in range(COUNT)]
    send(store, messages[1], messages[12], messages[19])
    others = [outgoing(message.id, body=LARGE[1:]) for message in messages]
    words = send(store, *others)
    assert words == {1: "DUPLICATE", 12: "DUPLICATE", 19: "DUPLICATE"}


def test_claims_take_what_the_bound_lets_them(store: RedisStore) -> None:
    ids = put(store)
    taken = list(claims(store))
    assert [size_of(leases) <= BATCH_BYTES for leases in taken] == [True] * len(taken)
    assert sorted(lease.id for leases in taken for lease in leases) == sorted(ids)


def test_a_message_that_is_larger_than_the_bound_is_claimed_alone(store: RedisStore) -> None:
    put(store, size=BATCH_BYTES + 1)
    assert [len(leases) for leases in claims(store)] == [1] * COUNT


def test_one_large_message_does_not_keep_the_small_ones_behind_it(store: RedisStore) -> None:
    send(store, outgoing(when="1000", body=b"x" * (BATCH_BYTES // 2)))
    send(store, *(outgoing() for _ in range(100)))
    assert len(store.claim(PARTITION, BATCH).leases) > 20


def test_what_a_limit_holds_back_is_bounded_too(store: RedisStore) -> None:
    limits = TopicLimits(tasks={CODE: LimitRule(concurrency=1)})
    send(
        store,
        *(outgoing(when=f"{int(PAST) + n}", body=LARGE, limit=LIMIT) for n in range(COUNT)),
    )
    seen, leases, is_over = [0], list[Lease](), False
    while not is_over:
        claimed = store.claim_limited(PARTITION, BATCH, None, limits)
        leases += claimed.leases
        seen.append(len(leases) + len(held_back(store)))
        is_over = (claimed.next_due_ms or 0) > claimed.now_us / 1000
    assert (len(leases), seen[-1]) == (1, COUNT)
    most = max(after - before for before, after in pairwise(seen))
    assert most * SIZE <= BATCH_BYTES + SIZE


def test_limits_of_large_messages_are_looked_at_one_call_after_the_other(store: RedisStore) -> None:
    limits = TopicLimits(tasks={CODE: LimitRule("1/h")})
    for n in range(COUNT):
        same = {"body": LARGE, "limit": b"%8d" % n}
        send(store, *(outgoing(when=f"{int(PAST) + again}", **same) for again in range(2)))
    while len(held_back(store)) < COUNT:
        store.claim_limited(PARTITION, BATCH, None, limits)
    rewind(store, PARTITION, 3_600_050)
    left = [COUNT]
    while left[-1]:
        store.claim_limited(PARTITION, BATCH, None, limits)
        left.append(len(held_back(store)))
    most = max(before - after for before, after in pairwise(left))
    assert most * SIZE <= BATCH_BYTES + SIZE


@pytest.mark.parametrize("result", [Result.ACKED, Result.RETRIED, Result.RELEASED])
def test_results_are_settled_in_parts(store: RedisStore, result: Result) -> None:
    put(store)
    leases = [lease for some in claims(store) for lease in some]
    parts = list(settle_parts([Outcome(lease, None, result, 0.0) for lease in leases]))
    assert len(parts) in CALLS
    assert max(size_of([one.lease for one in part]) for part in parts) <= BATCH_BYTES
    assert [one.lease for part in parts for one in part] == leases


def test_small_results_are_settled_together(store: RedisStore) -> None:
    send(store, *(outgoing() for _ in range(BATCH)))
    leases = [lease for some in claims(store) for lease in some]
    assert len(list(settle_parts([Outcome(one, None, Result.ACKED, 0.0) for one in leases]))) == 1


def test_reclaim_says_that_there_is_more(store: RedisStore) -> None:
    ids = put(store)
    held = [lease for some in claims(store) for lease in some]
    key = leased_key(store.client.prefix, PARTITION)
    store.client.redis.zadd(key, {lease.id: 1 for lease in held})
    found, more = list[bytes](), True
    calls = 0
    while more:
        back, _, more = store.reclaim(PARTITION)
        found += back
        calls += 1
    assert calls in CALLS
    assert sorted(found) == sorted(ids)


def test_cancel_answers_for_all(store: RedisStore, called: Called) -> None:
    ids = put(store, FAR)
    before = called.count
    words = store.cancel_in(PARTITION, [*ids, new_id()])
    assert words == ["OK"] * COUNT + ["NOT_FOUND"]
    assert called.count - before in CALLS


def test_shift_answers_for_all(store: RedisStore, called: Called) -> None:
    ids = put(store, FAR)
    found = store.queries.find(PARTITION, ids)
    lives = [Life(one.id, int.from_bytes(one.record[:8], "big")) for one in found if one]
    before = called.count
    moves = [(life, int(FAR), int(FAR) + 5) for life in lives]
    assert store.shift(PARTITION, moves) == ["OK"] * COUNT
    assert called.count - before in CALLS
    assert store.shift(PARTITION, moves) == ["SAME"] * COUNT


def test_find_finds_all(store: RedisStore, called: Called) -> None:
    ids = put(store, FAR)
    before = called.count
    found = store.queries.find(PARTITION, [*ids, new_id()])
    assert [one.id if one else None for one in found] == [*ids, None]
    assert called.count - before in CALLS
    located = store.find_many((PARTITION.topic, message_id) for message_id in ids)
    assert [one.found.id for one in located] == ids


def test_a_page_of_the_list_is_whole(store: RedisStore, called: Called) -> None:
    ids = put(store, FAR)
    before = called.count
    page = store.queries.list(PARTITION, Priority.NORMAL, None, COUNT - 1)
    assert [one.id for one in page] == sorted(ids)[:-1]
    assert called.count - before in CALLS


def test_purge_goes_on_until_nothing_waits(store: RedisStore) -> None:
    ids, gone = put(store, FAR), list[bytes]()
    while some := store.purge(PARTITION):
        assert len(some) * SIZE <= BATCH_BYTES
        gone += some
    assert sorted(gone) == sorted(ids)


def test_a_bulk_load_is_several_calls(store: RedisStore, called: Called) -> None:
    ids = sorted(new_id() for _ in range(COUNT))
    messages = [(message_id, When(FAR), "", record(LARGE)) for message_id in ids]
    load = BulkLoad("large", "these")
    before = called.count
    done = store.bulk_load.load(PARTITION, load, 0, {}, messages)()()
    assert (done.new, done.skipped) == (COUNT, 0)
    assert called.count - before in CALLS
    again = store.bulk_load.load(PARTITION, load, 0, {}, messages)()()
    assert (again.new, again.skipped, again.began_ms) == (0, COUNT, done.began_ms)


def test_the_finished_stream_is_read_by_the_sizes_that_were_met(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_delayq.store.finished.READ_BYTES", READ_BYTES // 8)
    put(store)
    leases = [lease for some in claims(store) for lease in some]
    store.ack(PARTITION, [(lease, DETAIL) for lease in leases])
    stream = FinishedStream(store, PARTITION, "test")
    entries = stream.read()
    assert len(entries) == COUNT
    assert stream._batch * SIZE <= READ_BYTES // 8
    stream.remove(entries)
    send(store, *(outgoing() for _ in range(BATCH)))
    store.ack(PARTITION, [(one, DETAIL) for some in claims(store) for one in some])
    assert len(stream.read()) == BATCH
    assert stream._batch > BATCH // 2
