"""Says which worker looks after a partition: rendezvous hashing over the workers that live.

Nobody assigns anything. Each worker computes the same order from what the workers say about
themselves; their heartbeats have their topics, and a roll call finds out who lives. No guarantee
depends on it: where two workers disagree, both claim, and Redis decides; or a stand-in comes a
moment later.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from ..core.exceptions import StoreError
from ..store.beats import is_alive
from ..store.keys import Partition
from .shared import Shared

logger = logging.getLogger("delayq.worker")

#: Seconds after the due time until the next worker in the order looks whether the message is
#: claimed, and until one or two of the others do.
STEP_IN, STEP_IN_LATER = 0.3, 0.6
#: So many of the others look, on average.
LATER = 2
#: What a worker says about itself: its load, 0 (idle) to 8 (busy), or FULL; or one of the last two.
#: UNFIT is added to the load: its code could not run what it claimed, that of another worker may.
FULL, UNFIT, ABSENT, GONE = 9, 10, 98, 99
#: Seconds for which the same worker comes first of those whose code does not fit. A message that is
#: put off waits at least as long: each time chance decides which worker it meets.
UNFIT_ORDER_S = 5.0
#: Seconds between two changes of what a worker says, unless it is full.
SAY_AGAIN = 1.0
#: Seconds after which a worker that has just started looks again whether it has a heartbeat.
FIRST_BEAT_S = 0.02
#: In a roll call, in place of the name: everybody says how busy it is, in so many seconds. Nobody
#: calls again so soon.
EVERYBODY, ANSWER_S, CALL_AGAIN = "*", 0.7, 2.0
#: Seconds after which somebody calls the roll without a reason.
CALL_ALWAYS = 600.0
#: The order of the workers for what no partition has: who proves that hints arrive, for example.
OF_THE_FLEET = Partition("!fleet", 0)

_MASK = 2**64 - 1

#: Seed and topics of workers.
_Server = tuple[int, frozenset[str]]
_Servers = frozenset[_Server]


class Member(NamedTuple):
    """Another worker."""

    seed: int
    topics: frozenset[str]
    """Empty as long as its heartbeat has not been read."""
    load: int
    """0 to FULL, UNFIT to UNFIT + FULL, ABSENT (it was late, and has not answered) or GONE."""
    heard_at: float
    """When that was heard (local monotonic time)."""

    @property
    def is_present(self) -> bool:
        """Whether partitions may have their home there."""
        return self.load < ABSENT and bool(self.topics)


class Fleet:
    """The workers of this prefix as one of them knows them.

    The listener and the heartbeat tell it of the others. The dispatcher asks, and tells the others
    how busy this worker is.
    """

    def __init__(self, shared: Shared, *, joins: bool = True) -> None:
        self._shared = shared
        self._seed = seed_of(shared.name)
        self._joins = joins
        """False for workers that end by themselves: they claim all they can, and are no homes."""
        self._others: dict[str, Member] = {}
        self._present: Sequence[Member] = ()
        self._serving_now: _Servers = frozenset()
        """Of those present. Another object only when somebody has come or gone."""
        self._ranked: tuple[_Servers, dict[Partition, int]] = (frozenset(), {})
        """The ranks that have been asked for, with the workers they were computed for."""
        self._placed: tuple[_Servers, int] = (frozenset(), 0)
        """As place() has it, with the workers it was computed for."""
        self._changing = threading.Lock()
        self._said: int | None = None
        self._said_at = self._called_at = -math.inf
        self._answers_by = math.inf
        """When it is known who has not answered the roll call."""
        self._is_called = self._is_accused = self._anybody_busy = False
        self.has_beat = False
        """Whether there is a heartbeat of this worker. Others read its topics there once it has
        said something, and count it for nothing until it speaks again if they find none."""
        self.changes = 0
        """Another value means that the order may be another."""
        self.on_stranger: Callable[[], None] = lambda: None
        """Called when a worker speaks whose heartbeat has not been read."""

    # The order

    @property
    def size(self) -> int:
        """How many workers are there, this one included."""
        return 1 + len(self._present)

    @property
    def is_alone(self) -> bool:
        """Whether there is no other worker to share the partitions with."""
        return not self._present or not self._joins

    @property
    def is_full(self) -> bool:
        """Whether this worker has said that it is full."""
        return self._said is not None and says_full(self._said)

    def rank(self, partition: Partition) -> int:
        """How many workers come before this one for the partition: its home has 0."""
        if self.is_alone:
            return 0
        serving, ranks = self._ranked
        if serving is not self._serving_now:
            serving, ranks = self._ranked = self._moved_ranks()
        rank = ranks.get(partition)
        if rank is None:
            mine = score(self._seed, partition)
            rank = ranks[partition] = sum(_comes_before(mine, each, partition) for each in serving)
        return rank

    def _moved_ranks(self) -> tuple[_Servers, dict[Partition, int]]:
        """The ranks that are known, after some have gone and come. To compute them anew takes each
        of 64 workers with 1,000 partitions 50 ms: on a few cores so long that the next ones do not
        answer the roll call in time, and so on."""
        (before, ranks), now = self._ranked, self._serving_now
        gone, come, moved = before - now, now - before, {}
        for partition, rank in list(ranks.items()):  # another thread may add one
            mine = score(self._seed, partition)
            moved[partition] = (
                rank
                - sum(_comes_before(mine, each, partition) for each in gone)
                + sum(_comes_before(mine, each, partition) for each in come)
            )
        return now, moved

    def place(self) -> int:
        """How many workers come before this one for what no partition has. The listener asks again
        and again, so it moves no ranks."""
        if self.is_alone:
            return 0
        serving, place = self._placed
        if serving is not self._serving_now:
            serving, mine = self._serving_now, score(self._seed, OF_THE_FLEET)
            place = sum(score(seed, OF_THE_FLEET) > mine for seed, _ in serving)
            self._placed = serving, place
        return place

    def spread(self) -> int:
        """How many times as rarely as a lone worker this one tries what one of all has to do."""
        return 1 if self.place() < 2 else self.size

    def turn(self, partition: Partition) -> int:
        """As rank(), but busy workers come later, and those whose code does not fit come last. When
        all are full it is everybody's turn; when all whose code fits are full, it is theirs."""
        load = self._said or 0
        if not self._anybody_busy and not load:
            return self.rank(partition)
        others = self._serving(partition)
        moment = 0
        if load >= UNFIT:
            # All that are full get one moment, unless another one has let it pass already.
            loads = {other.load for other in others}
            moment = int(FULL in loads and UNFIT + FULL not in loads)
            others = [other for other in others if other.load != FULL]
        if self.is_full and all(other.load >= load for other in others):
            return moment
        mine = self._order(load, self._seed, partition)
        before = sum(self._order(other.load, other.seed, partition) < mine for other in others)
        return moment + before

    def _order(self, load: int, seed: int, partition: Partition) -> tuple[int, int]:
        """The worker with the lowest one comes first."""
        if load >= UNFIT:
            seed ^= int(self._shared.clock.now_ms() / (1000 * UNFIT_ORDER_S))
        return load, -score(seed, partition)

    def patience(self, partition: Partition, due_ms: float) -> float | None:
        """Seconds after the due time until this worker looks whether the message is claimed. 0: it
        claims itself; None: it leaves that to others."""
        turn = self.turn(partition)
        if turn < 2:
            return STEP_IN * turn
        return STEP_IN_LATER if self.is_drawn(int(due_ms)) else None

    def is_drawn(self, number: int, winners: int = LATER) -> bool:
        """A lottery that so many of all workers win for each number, on average."""
        return _mixed(self._seed ^ number) % max(1, self.size - 2) < winners

    def _serving(self, partition: Partition) -> list[Member]:
        return [other for other in self._present if partition.topic in other.topics]

    # What is heard

    def learn(self, beats: Mapping[str, Mapping[str, Any]], now_ms: float) -> None:
        """Read the topics of the others in their heartbeats."""
        with self._changing:
            others = {}
            for name, other in self._others.items():
                beat = beats.get(name)
                topics = other.topics or frozenset(beat.get("topics", ()) if beat else ())
                if other.is_present or (beat and is_alive(beat, now_ms)):
                    others[name] = other._replace(topics=topics)
            self._replace(others)

    def hear(self, name: str, load: int) -> bool:
        """A worker says how busy it is, or that another one is absent; or calls everybody. Returns
        whether the dispatcher has to do something."""
        if name == EVERYBODY:
            self._is_called, self._called_at = True, time.monotonic()
            self._answers_by = self._called_at + ANSWER_S
            return True
        if name == self._shared.name:
            self._is_accused = self._is_accused or load == ABSENT
            return load == ABSENT
        with self._changing:
            known = self._others.get(name) or Member(seed_of(name), frozenset(), GONE, 0.0)
            now = time.monotonic()
            other = known._replace(load=load, heard_at=now)
            others = {**self._others, name: other}
            if other.load == known.load:
                self._others = others
            else:
                self._replace(others)
        if not other.topics and load < ABSENT:
            self.on_stranger()
        return load != known.load

    def _replace(self, others: dict[str, Member]) -> None:
        self._others = others
        self._present = [other for other in others.values() if other.is_present]
        self._anybody_busy = any(other.load for other in self._present)
        serving = frozenset((other.seed, other.topics) for other in self._present)
        if serving != self._serving_now:
            self._serving_now = serving
        self.changes += 1

    def _end_roll_call(self) -> None:
        """Who has not answered is absent until it says something."""
        self._answers_by, silent = math.inf, []
        with self._changing:
            for name, other in self._others.items():
                if other.is_present and other.heard_at < self._called_at:
                    silent.append(name)
            if silent:
                absent = {name: self._others[name]._replace(load=ABSENT) for name in silent}
                self._replace(self._others | absent)
        if silent:
            logger.info("%s did not answer: others look after its partitions", ", ".join(silent))

    # What is said

    def say(self, load: int) -> float:
        """Tell the others how busy this worker is, if that has changed or they ask. Returns after
        how many seconds there may be something to do again. Raises StoreError."""
        if not self._joins:
            return math.inf
        if not self.has_beat:
            return FIRST_BEAT_S
        now = time.monotonic()
        if now >= self._answers_by:
            self._end_roll_call()
        again_in = self._said_at + SAY_AGAIN - now
        is_news = self._is_accused or (load != self._said and not self.is_alone)
        if (
            self._said is None
            or self._is_called
            or (is_news and (again_in <= 0 or (says_full(load) and not self.is_full)))
        ):
            is_first = self._said is None
            # First: what is heard from now on counts for the next time.
            self._is_called = self._is_accused = is_news = False
            try:
                self._tell(self._shared.name, load)
            except StoreError:  # nobody asks again for long
                self._is_called = True
                raise
            self._said, self._said_at = load, now
            if is_first:
                self.call()
        return min(self._answers_by - now, again_in if is_news else math.inf)

    @property
    def is_call_due(self) -> bool:
        """Whether nobody has called the roll for long: what was missed is made good by it."""
        return time.monotonic() - self._called_at >= CALL_ALWAYS

    def call(self) -> None:
        """Begin a roll call, unless somebody has just done so. Raises StoreError."""
        if self._said is not None and time.monotonic() - self._called_at >= CALL_AGAIN:
            self._called_at = time.monotonic()
            self._tell(EVERYBODY, 0)

    def leave(self, *, for_good: bool = False) -> None:
        """Tell the others that this worker claims nothing from now on; for good when it stops.
        Raises StoreError."""
        if for_good:
            self._joins = False  # the dispatcher must not say again that it is there
        said, self._said = self._said, None
        if said is not None:
            self._tell(self._shared.name, GONE)

    def report_late(self, partition: Partition) -> Collection[str]:
        """Those before this worker have not claimed what was due: they are absent until they say
        something, unless they are full. Returns their names. Raises StoreError."""
        mine = self._order(self._said or 0, self._seed, partition)
        late = [
            name
            for name, other in self._others.items()
            if other.is_present
            and partition.topic in other.topics
            and not says_full(other.load)
            and self._order(other.load, other.seed, partition) < mine
        ]
        for name in late:
            self._tell(name, ABSENT)
            self.hear(name, ABSENT)
        self.call()  # where one has gone, others may have
        return late

    def _tell(self, name: str, load: int) -> None:
        self._shared.store.workers.tell_fleet(name, load)


def says_full(load: int) -> bool:
    """Whether a worker that says this about itself is full, whether its code fits or not."""
    return load in (FULL, UNFIT + FULL)


def _mixed(number: int) -> int:
    """A number of 64 bits that looks random, as others do it (SplitMix64)."""
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


def score(seed: int, partition: Partition) -> int:
    """The worker with the highest one is the home."""
    return _mixed(seed ^ seed_of(f"{partition.topic}:{partition.number}"))


def _comes_before(mine: int, other: _Server, partition: Partition) -> bool:
    """Whether this other worker serves the partition, with a higher score than mine."""
    seed, topics = other
    return partition.topic in topics and score(seed, partition) > mine


@lru_cache(maxsize=16_384)
def seed_of(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
