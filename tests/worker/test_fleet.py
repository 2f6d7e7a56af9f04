"""Who looks after which partition, as one worker knows the others."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import pytest

from django_delayq.core.exceptions import DelayQError, StoreError
from django_delayq.store.hints import HintStream
from django_delayq.store.keys import FLEET_HINT, Partition
from django_delayq.store.store import RedisStore
from django_delayq.worker import fleet as module
from django_delayq.worker.executor import PUT_OFF_FIRST
from django_delayq.worker.fleet import ABSENT, EVERYBODY, FULL, GONE, UNFIT, Fleet
from django_delayq.worker.heartbeat import Heartbeat
from django_delayq.worker.shared import Shared

PARTITIONS = [Partition("default", number) for number in range(200)]
Say = Callable[..., Fleet]


class Crew(dict[str, Fleet]):
    """Workers that hear each other at once, without a server in between."""

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self._shared = shared
        self.said: list[tuple[str, int]] = []
        self.deaf: set[str] = set()

    def join(self, *names: str, joins: bool = True, topics: tuple[str, ...] = ()) -> list[Fleet]:
        joined = []
        for name in names:
            topics = topics or self._shared.topics
            fleet = Fleet(replace(self._shared, name=name, topics=topics), joins=joins)
            fleet._tell = self._pass_on  # type: ignore[method-assign]
            fleet.on_stranger = self._beat
            fleet.has_beat = True
            self[name] = fleet
            fleet.say(0)
            for each in [one for other, one in self.items() if other not in self.deaf]:
                each.say(each._said or 0)  # the answers to its call
            joined.append(fleet)
        return joined

    def _beat(self) -> None:
        beats = {
            name: {"at_ms": 10**15, "topics": fleet._shared.topics} for name, fleet in self.items()
        }
        for fleet in self.values():
            fleet.learn(beats, 10**15)

    def _pass_on(self, name: str, load: int) -> None:
        self.said.append((name, load))
        for hearer in [one for other, one in self.items() if other not in self.deaf]:
            if hearer.hear(name, load):
                hearer.learn({}, 0)
        self._beat()


@pytest.fixture
def crew(shared: Shared) -> Crew:
    return Crew(replace(shared, topics=("default",)))


def homes(crew: Crew) -> Counter[int]:
    """How many partitions have so many homes."""
    return Counter(sum(not one.rank(part) for one in crew.values()) for part in PARTITIONS)


def test_a_worker_that_knows_no_other_is_home_everywhere(shared: Shared) -> None:
    fleet = Fleet(shared)
    assert fleet.is_alone
    assert [fleet.rank(part) for part in PARTITIONS] == [0] * len(PARTITIONS)


def test_each_partition_has_one_home_and_workers_share_them_evenly(crew: Crew) -> None:
    fleets = crew.join("a", "b", "c", "d")
    assert homes(crew) == {1: len(PARTITIONS)}
    shares = [sum(not one.rank(part) for part in PARTITIONS) for one in fleets]
    assert min(shares) > 20
    assert max(shares) < 90


def test_when_one_leaves_only_its_partitions_move(crew: Crew) -> None:
    a, b, c = crew.join("a", "b", "c")
    before = {part: [one.rank(part) for one in (a, b)] for part in PARTITIONS}
    c.leave()
    del crew["c"]
    assert homes(crew) == {1: len(PARTITIONS)}
    for part, (rank_of_a, rank_of_b) in before.items():
        assert (a.rank(part) < b.rank(part)) == (rank_of_a < rank_of_b)


def test_one_that_joins_takes_over_from_all_others(crew: Crew) -> None:
    a, b = crew.join("a", "b")
    before = {part: (a.rank(part), b.rank(part)) for part in PARTITIONS}
    (c,) = crew.join("c")
    assert homes(crew) == {1: len(PARTITIONS)}
    for part in PARTITIONS:
        if c.rank(part):
            assert (a.rank(part) < b.rank(part)) == (before[part] < before[part][::-1])


def test_only_workers_of_the_topic_count(crew: Crew) -> None:
    (a,) = crew.join("a")
    crew.join("b", topics=("reports",))
    assert a.size == 2
    assert {a.rank(part) for part in PARTITIONS} == {0}


def test_after_any_changes_the_order_is_as_for_one_who_has_just_come(shared: Shared) -> None:
    """Ranks that are known move with each change, and are not computed anew."""
    dice = random.Random(7)
    parts = [*(Partition(topic, n) for topic in ("a", "b") for n in range(20))]
    served = {f"w{n}": dice.choice((["a"], ["b"], ["a", "b"])) for n in range(12)}
    beats = {name: {"at_ms": 10**15, "topics": topics} for name, topics in served.items()}
    fleet = Fleet(replace(shared, name="me"))
    for _ in range(200):
        fleet.hear(dice.choice([*served]), dice.choice((0, 3, FULL, ABSENT, GONE)))
        if not dice.randrange(5):
            fleet.learn(beats, 10**15)
        anew = Fleet(replace(shared, name="me"))
        anew._replace(fleet._others)
        chosen = dice.sample(parts, 10)  # not all are known at each change
        assert [fleet.rank(part) for part in chosen] == [anew.rank(part) for part in chosen]
        assert fleet.place() == anew.place()


def test_how_busy_others_are_moves_no_partition(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, *_ = crew.join("a", "b", "c")
    ranks = [fleet.rank(part) for part in PARTITIONS]
    monkeypatch.setattr(module, "score", None)  # nothing is computed
    fleet.hear("b", 5)
    fleet.hear("c", FULL)
    assert [fleet.rank(part) for part in PARTITIONS] == ranks


def test_a_change_computes_as_many_scores_as_partitions_and_not_as_workers(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = crew.join(*(f"w{number}" for number in range(20)))[0]
    for part in PARTITIONS:
        fleet.rank(part)
    computed, score = list[int](), module.score
    monkeypatch.setattr(module, "score", lambda *of: computed.append(1) or score(*of))
    fleet.hear("w7", ABSENT)
    for part in PARTITIONS:
        fleet.rank(part)
    assert len(computed) == 2 * len(PARTITIONS)


def test_a_worker_that_ends_by_itself_is_no_home_and_waits_for_nobody(crew: Crew) -> None:
    (a,) = crew.join("a")
    (burst,) = crew.join("b", joins=False)
    assert burst.is_alone
    assert a.is_alone
    assert ("b", 0) not in crew.said


def test_heartbeats_of_workers_that_never_answer_count_for_nothing(shared: Shared) -> None:
    """All were killed, and a new one starts: their heartbeats are fresh for a while."""
    fleet = Fleet(shared)
    beats = {name: {"at_ms": 1_000, "topics": ["default"]} for name in "abcdef"}
    fleet.learn(beats, 1_500)
    assert fleet.is_alone


def test_who_does_not_answer_a_roll_call_is_absent(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _, _ = crew.join("a", "b", "c")
    assert a.size == 3
    crew.deaf.add("b")  # it stands still
    monkeypatch.setattr(module, "CALL_AGAIN", 0.0)
    a.call()
    crew["c"].say(0)
    a.say(0)
    assert a.size == 3  # it may still answer
    a._answers_by = 0.0
    a.say(0)
    assert a.size == 2
    crew.deaf.clear()
    crew["b"]._is_accused = True
    crew["b"]._said_at = 0.0
    crew["b"].say(0)
    assert a.size == 3


def test_an_answer_that_redis_did_not_take_is_given_again(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = crew.join("a", "b")
    b.hear(EVERYBODY, 0)
    with monkeypatch.context() as away:
        away.setattr(b, "_tell", mock.Mock(side_effect=StoreError("away")))
        with pytest.raises(StoreError):
            b.say(0)
    a.hear("b", ABSENT)  # its answer did not come
    b.say(0)
    assert a.size == 2


def test_one_that_has_no_heartbeat_yet_says_nothing(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would find no topics, and not know it until it speaks again: idle, it does not."""
    said: list[int] = []
    monkeypatch.setattr(shared.store.workers, "tell_fleet", lambda name, load: said.append(load))
    fleet = Fleet(shared)
    assert (fleet.say(0), said) == (module.FIRST_BEAT_S, [])
    Heartbeat(shared, fleet, dict, lambda quiet: None).run_once()
    fleet.say(0)
    assert said == [0, 0]  # itself, and the roll call


def test_two_roll_calls_in_a_moment_are_one(crew: Crew) -> None:
    a, b = crew.join("a", "b")
    calls = crew.said.count((EVERYBODY, 0))
    for _ in range(3):
        a.call()
        b.call()
    assert crew.said.count((EVERYBODY, 0)) == calls


def test_who_stops_says_nothing_after_its_farewell(crew: Crew) -> None:
    a, b = crew.join("a", "b")
    b.leave(for_good=True)
    b.say(0)
    assert crew.said[-1] == ("b", GONE)
    assert a.is_alone


def test_somebody_calls_the_roll_after_a_long_time(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was busy for too long to hear the answers believes that it is alone."""
    a, _ = crew.join("a", "b")
    assert not a.is_call_due
    a.hear("b", ABSENT)
    monkeypatch.setattr(module, "CALL_ALWAYS", 0.0)
    monkeypatch.setattr(module, "CALL_AGAIN", 0.0)
    assert a.is_call_due
    a.call()
    crew["b"].say(0)
    assert a.size == 2


def test_a_busy_worker_comes_after_the_others(crew: Crew) -> None:
    a, b = crew.join("a", "b")
    mine = [part for part in PARTITIONS if not a.rank(part)]
    a._said_at = 0.0
    a.say(3)
    assert {a.turn(part) for part in PARTITIONS} == {1}
    assert {b.turn(part) for part in PARTITIONS} == {0}
    assert [part for part in PARTITIONS if not a.rank(part)] == mine  # the homes stay


def test_when_all_are_full_it_is_everybodys_turn(crew: Crew) -> None:
    a, b = crew.join("a", "b")
    a.say(FULL)
    assert b.turn(PARTITIONS[0]) == 0
    b.say(FULL)
    assert (a.turn(PARTITIONS[0]), b.turn(PARTITIONS[0])) == (0, 0)


def test_whose_code_does_not_fit_comes_after_all_others(crew: Crew) -> None:
    a, b, c = crew.join("a", "b", "c")
    a._said_at = b._said_at = 0.0
    a.say(UNFIT)
    b.say(FULL)
    for part in PARTITIONS[:20]:
        assert (c.turn(part), b.turn(part), a.turn(part)) == (0, 1, 2)


def test_workers_whose_code_does_not_fit_help_full_ones_a_moment_later(crew: Crew) -> None:
    a, b = crew.join("a", "b")
    a._said_at = 0.0
    a.say(UNFIT)
    b.say(FULL)
    assert (a.patience(PARTITIONS[0], 0), b.patience(PARTITIONS[0], 0)) == (module.STEP_IN, 0)
    assert not a.report_late(PARTITIONS[0])  # b is there
    c = crew.join("c")[0]
    c.say(FULL)
    assert (b.turn(PARTITIONS[0]), c.turn(PARTITIONS[0])) == (0, 0)


def test_many_full_ones_count_as_one(crew: Crew) -> None:
    """Else the lot may decide that the only worker with a free thread does not look."""
    *full, idle = crew.join(*"abcdefgh")
    for one in full:
        one.say(FULL)
    say_unfit(idle)
    assert {idle.patience(part, 0) for part in PARTITIONS} == {module.STEP_IN}


def test_once_one_of_them_is_full_they_all_help(crew: Crew) -> None:
    fits, full, *others = crew.join(*"abcdef")
    fits.say(FULL)
    full.say(UNFIT + FULL)
    say_unfit(*others)
    assert min(one.turn(PARTITIONS[0]) for one in others) == 0
    for one in others:
        one.say(UNFIT + FULL)
    assert {one.turn(PARTITIONS[0]) for one in (full, *others)} == {0}


def say_unfit(*fleets: Fleet) -> None:
    for fleet in fleets:
        fleet._said_at = 0.0
        fleet.say(UNFIT)


def first(crew: Crew, partition: Partition) -> list[str]:
    return [name for name, fleet in crew.items() if not fleet.turn(partition)]


def test_where_no_code_fits_one_comes_first(crew: Crew) -> None:
    """Else each of many workers would claim each message for as long as one of them is put off."""
    say_unfit(*crew.join("a", "b", "c"))
    firsts = [first(crew, part) for part in PARTITIONS]
    assert {len(names) for names in firsts} == {1}
    assert {name for (name,) in firsts} == {"a", "b", "c"}


def test_where_no_code_fits_each_comes_first_at_times(crew: Crew, shared: Shared) -> None:
    """In a deploy that renames a task each code may lack one of two tasks. Both messages are put
    off again and again, and reach each worker."""
    say_unfit(*crew.join("a", "b", "c"))
    at_s, came = 1_000_000, list[str]()
    for _ in range(50):
        at_s += int(PUT_OFF_FIRST)
        shared.clock.forget()
        shared.clock.sync(at_s * 1_000_000)
        came += first(crew, PARTITIONS[0])
    assert len(came) == 50
    assert min(came.count(name) for name in "abc") > 5


def test_where_no_code_fits_busy_workers_come_later(crew: Crew) -> None:
    a, b = crew.join("a", "b")
    say_unfit(a, b)
    a.say(UNFIT + FULL)
    assert {b.turn(part) for part in PARTITIONS} == {0}
    b.say(UNFIT + FULL)
    assert {fleet.turn(part) for fleet in (a, b) for part in PARTITIONS} == {0}


def test_small_changes_are_told_once_a_second_and_full_at_once(crew: Crew) -> None:
    a, _ = crew.join("a", "b")
    said = len(crew.said)
    assert 0 < a.say(1) <= 1
    assert len(crew.said) == said
    a.say(FULL)
    assert crew.said[said:] == [("a", FULL)]
    a._said_at = 0.0
    a.say(2)
    assert crew.said[-1] == ("a", 2)
    said = len(crew.said)
    a.say(2)
    assert len(crew.said) == said


def test_a_lone_worker_says_nothing_after_its_first_words(crew: Crew) -> None:
    (a,) = crew.join("a")
    said = len(crew.said)
    a._said_at = 0.0
    for load in (1, FULL, 0):
        a.say(load)
    assert len(crew.said) == said


def test_those_who_left_a_message_are_absent_until_they_speak(crew: Crew) -> None:
    fleets = crew.join("a", "b", "c")
    part = PARTITIONS[0]
    home, second, third = sorted(fleets, key=lambda one: one.rank(part))
    assert second.report_late(part) == [home._shared.name]
    assert (second.rank(part), third.rank(part)) == (0, 1)
    assert home.say(0) > 0  # it was accused a moment ago
    home._said_at = 0.0
    home.say(0)
    assert (home.rank(part), second.rank(part), third.rank(part)) == (0, 1, 2)


def test_second_looks_soon_a_few_look_later_and_the_rest_never(crew: Crew) -> None:
    fleets = crew.join(*(f"w{number}" for number in range(20)))
    looks: Counter[float | None] = Counter()
    for part in PARTITIONS:
        looks.update(one.patience(part, 5_000) for one in fleets)
    assert looks[0.0] == looks[module.STEP_IN] == len(PARTITIONS)
    drawn = sum(one.is_drawn(number) for one in fleets for number in range(500)) / 500
    assert 1.5 < drawn < 3


def test_what_is_said_is_heard_through_redis(shared: Shared, delayq: RedisStore) -> None:
    stream = HintStream(delayq)
    stream.connect()
    stream.read(0.2)
    fleet = Fleet(shared)
    fleet.has_beat = True
    fleet.say(3)
    heard = [hint for _ in range(20) if (hint := stream.read(0.2))]
    stream.close()
    said = [(part.topic, part.number) for part, _ in heard if part]
    assert said == [(f"{FLEET_HINT}{shared.name}", 3), (f"{FLEET_HINT}{EVERYBODY}", 0)]


def test_absent_is_not_present() -> None:
    assert FULL < ABSENT < GONE


def test_what_cannot_be_said_is_an_error(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(shared)
    fleet.has_beat = True

    def refuse(*args: object) -> None:
        raise DelayQError("away")

    monkeypatch.setattr(shared.store.workers, "tell_fleet", refuse)
    with pytest.raises(DelayQError):
        fleet.say(0)
