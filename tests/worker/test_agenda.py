"""Which partition comes next."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from django_delayq.store.keys import Partition
from django_delayq.worker.agenda import HEAP_PER_VISIT, Agenda

A, B, C = Partition("a", 0), Partition("b", 0), Partition("c", 0)


def agenda(*partitions: Partition, weights: dict[str, int] | None = None) -> Agenda:
    """Nothing planned."""
    made = Agenda(weights or {})
    for partition in partitions:
        made.add(partition)
    for turn in made.due(0):
        made.plan(turn, None)
    return made


def names(made: Agenda, now_ms: float) -> list[Partition]:
    turns = made.due(now_ms)
    for turn in turns:
        made.plan(turn, None)
    return [turn.partition for turn in turns]


def test_new_partition_is_looked_at_first() -> None:
    made = Agenda({})
    made.add(A)
    assert made.next_due_ms() == 0
    assert names(made, 0) == [A]


def test_partition_that_is_known_is_not_added_again() -> None:
    made = agenda(A)
    made.add(A)
    assert made.next_due_ms() is None


def test_earliest_due_time_of_all_counts() -> None:
    made = agenda(A, B, C)
    made.expect(A, 300)
    made.expect(B, 100)
    made.expect(C, 200)
    assert made.next_due_ms() == 100
    assert names(made, 200) == [B, C]
    assert made.next_due_ms() == 300


def test_nothing_is_due_too_early() -> None:
    made = agenda(A)
    made.expect(A, 100)
    assert names(made, 99.999) == []
    assert names(made, 100) == [A]


def test_hint_moves_a_look_forward_but_never_back() -> None:
    made = agenda(A)
    made.expect(A, 500)
    made.expect(A, 100)
    made.expect(A, 900)
    assert made.next_due_ms() == 100
    assert names(made, 1000) == [A]
    assert made.next_due_ms() is None


def test_plan_may_move_a_look_back() -> None:
    made = agenda(A)
    made.expect(A, 100)
    made.plan(made.visits[A], 500)
    assert made.next_due_ms() == 500


def test_hint_for_a_partition_that_is_not_served_is_ignored() -> None:
    made = agenda(A)
    made.expect(B, 100)
    assert made.next_due_ms() is None


def test_old_plans_do_not_pile_up() -> None:
    made = agenda(A)
    for due in range(1000, 0, -1):
        made.expect(A, due)
    assert names(made, 1000) == [A]
    assert made.next_due_ms() is None
    assert made._heap == []


def test_old_plans_do_not_pile_up_behind_what_is_far_away() -> None:
    """One message is due tomorrow, in another partition one in an hour; others run at once, one
    after the other."""
    made = agenda(A, B)
    made.plan(made.visits[A], 86_400_000)
    made.plan(made.visits[B], 3_600_000)
    for _ in range(10_000):
        made.expect(A, 0)
        (turn,) = made.due(0)
        made.plan(turn, 86_400_000)
    assert len(made._heap) <= HEAP_PER_VISIT * 2
    assert made.next_due_ms() == 3_600_000
    assert names(made, 3_600_000) == [B]
    assert names(made, 86_400_000) == [A]


def serve(weights: dict[str, int], rounds: int = 600) -> Counter[str]:
    """Who is served when all are always due and there is room for one."""
    made = agenda(A, B, C, weights=weights)
    served: Counter[str] = Counter()
    for _ in range(rounds):
        for partition in (A, B, C):
            made.expect(partition, 0)
        first, *others = made.due(0)
        made.charge(first.partition.topic, 10)
        served[first.partition.topic] += 1
        for turn in (first, *others):
            made.plan(turn, None)
    return served


def test_topics_are_served_in_proportion_to_their_weights() -> None:
    assert serve({}) == {"a": 200, "b": 200, "c": 200}
    served = serve({"a": 3, "b": 2, "c": 1})
    assert abs(served["a"] - 300) < 5 and abs(served["b"] - 200) < 5 and abs(served["c"] - 100) < 5


def test_topic_that_was_idle_does_not_save_up_its_turns() -> None:
    made = agenda(A, B)
    for _ in range(10_000):
        made.charge("a", 500)
    runs = 0
    while True:
        made.expect(A, 0)
        made.expect(B, 0)
        turns = made.due(0)
        for turn in turns:
            made.plan(turn, None)
        if turns[0].partition == A:
            break
        made.charge("b", 500)
        runs += 1
        assert runs < 10


@given(
    st.lists(st.tuples(st.sampled_from([A, B, C]), st.integers(0, 1000)), max_size=40),
    st.integers(0, 1000),
)
def test_every_look_is_taken_when_due(looks: list[tuple[Partition, int]], now: int) -> None:
    made = agenda(A, B, C)
    for partition, due in looks:
        made.expect(partition, due)
        assert len(made._heap) <= HEAP_PER_VISIT * 3
    first = {partition: min(d for p, d in looks if p == partition) for partition, _ in looks}
    assert sorted(names(made, now)) == sorted(
        partition for partition, due in first.items() if due <= now
    )
    assert made.next_due_ms() == min((due for due in first.values() if due > now), default=None)
