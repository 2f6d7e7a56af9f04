"""forecast.lua: how many waiting messages are due before each of some instants."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from django_delayq.core.message import Priority
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    DAY_MS,
    FAR,
    LATER,
    PARTITION,
    dump,
    enqueue,
    enqueue_many,
    nodes,
    outgoing,
    send,
    waiting,
)

MINUTE_MS = 60_000


def calls(server: Server) -> dict[str, int]:
    """How often the servers have executed each command so far."""
    counts: dict[str, int] = {}
    for node in nodes(server):
        with node:
            for name, stats in node.info("commandstats").items():
                counts[name] = counts.get(name, 0) + stats["calls"]
    return counts


def cost(store: RedisStore, server: Server) -> dict[str, int]:
    """The commands that one forecast executes on the keys of the partition."""
    before = calls(server)
    forecast(store, [n * MINUTE_MS for n in range(84)])
    after = calls(server)
    spent = {name: count - before.get(name, 0) for name, count in after.items()}
    return {
        name: count
        for name, count in spent.items()
        if count and name.startswith(("cmdstat_z", "cmdstat_hg", "cmdstat_hm"))
    }


def forecast(store: RedisStore, instants_ms: Sequence[int]) -> list[int]:
    return list(store.queries.snapshot([PARTITION], instants_ms, 1).forecast[PARTITION])


def due_within(store: RedisStore, *offsets_ms: int) -> list[int]:
    """How many are due so many ms from now, or sooner."""
    now_ms = int(store.clock_ms())
    return forecast(store, [now_ms + offset + 1 for offset in offsets_ms])


def test_an_empty_partition_expects_nothing(store: RedisStore) -> None:
    assert due_within(store, 0, MINUTE_MS, DAY_MS) == [0, 0, 0]


def test_nothing_asked_is_nothing_answered(store: RedisStore) -> None:
    enqueue(store)
    assert forecast(store, []) == []


def test_it_agrees_with_a_naive_count(store: RedisStore) -> None:
    chance = random.Random(7)
    begin = int(store.clock_ms())
    dues = [begin + (2 * chance.randrange(-20, 200) + 1) * MINUTE_MS // 2 for _ in range(1_000)]
    messages = [outgoing(when=str(due), priority=chance.choice(list(Priority))) for due in dues]
    send(store, *messages[:500])
    send(store, *messages[500:])
    instants = [chance.choice(dues) + chance.choice((-1, 0, 1)) for _ in range(100)]
    assert forecast(store, instants) == [sum(due < instant for due in dues) for instant in instants]


def test_every_lane_counts(store: RedisStore) -> None:
    for priority in Priority:
        enqueue(store, priority=priority, when="+30000")
    assert due_within(store, 0, MINUTE_MS) == [0, 3]


def test_what_is_due_at_the_very_instant_is_not_before_it(store: RedisStore) -> None:
    enqueue(store, when=FAR)
    assert forecast(store, [int(FAR) - 1, int(FAR), int(FAR) + 1]) == [0, 0, 1]


def test_only_what_waits_is_expected(store: RedisStore) -> None:
    enqueue_many(store, 4)
    store.claim(PARTITION, 1)
    store.cancel_in(PARTITION, [next(iter(waiting(store)))])
    assert due_within(store, 0) == [2]


def test_what_is_overdue_is_due_before_every_instant(store: RedisStore) -> None:
    enqueue(store)
    enqueue(store, when=LATER)
    assert due_within(store, 0, MINUTE_MS, 2 * DAY_MS) == [1, 1, 2]


def test_the_cost_does_not_depend_on_how_many_wait(store: RedisStore, server: Server) -> None:
    enqueue(store)
    enqueue(store, when=LATER)
    few = cost(store, server)
    enqueue_many(store, 3_000, when="+90000")
    assert cost(store, server) == few
    assert few["cmdstat_zcount"] <= 84 + 6  # none for the lanes that are empty


@pytest.mark.parametrize("count", [1, 100])
def test_looking_changes_nothing(store: RedisStore, count: int) -> None:
    enqueue(store)
    enqueue(store, when=LATER)
    before = dump(store)
    forecast(store, [MINUTE_MS] * count)
    assert dump(store) == before
