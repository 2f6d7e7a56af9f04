"""Which partition to look at next: one heap of due times, and weighted turns among those that are
due."""

from __future__ import annotations

import heapq
import itertools

from ..store.keys import Partition

#: The heap is made anew when it holds so many entries for each partition. Those that are planned
#: anew stay in it until they come to its top: with something far-future waiting, that would be one
#: for each claim until then.
HEAP_PER_TURN = 4


class Turn:
    """What the dispatcher knows of one partition."""

    __slots__ = ("due_ms", "finished", "partition", "wakeups")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.due_ms: float | None = None
        """When to look there; None: nothing waits there."""
        self.wakeups = -1
        """The counter as of the last look; another value means that there is something new."""
        self.finished = -1
        """How many messages had ended as of the last sweep."""


class Agenda:
    """Turns by due time. A topic that has had more than its weight's share comes later (stride
    scheduling)."""

    def __init__(self, weights: dict[str, int]) -> None:
        self._weights = weights
        self._served: dict[str, float] = {}
        """Messages claimed per topic, divided by its weight."""
        self._newest = 0.0
        self._heap: list[tuple[float, int, Turn]] = []
        self._order = itertools.count()
        self.turns: dict[Partition, Turn] = {}

    def add(self, partition: Partition) -> None:
        """Serve this partition too, beginning with a look at it."""
        if partition not in self.turns:
            self.turns[partition] = Turn(partition)
            self.look(partition, 0)

    def look(self, partition: Partition, due_ms: float) -> None:
        """Look at the partition at `due_ms`, or before if that was planned."""
        turn = self.turns.get(partition)
        if turn is not None and (turn.due_ms is None or due_ms < turn.due_ms):
            self.plan(turn, due_ms)

    def plan(self, turn: Turn, due_ms: float | None) -> None:
        """Look at it at `due_ms` and not before."""
        turn.due_ms = due_ms
        if due_ms is not None:
            heapq.heappush(self._heap, (due_ms, next(self._order), turn))
            if len(self._heap) > HEAP_PER_TURN * len(self.turns):
                self._forget_old_plans()

    def _forget_old_plans(self) -> None:
        planned = [(turn.due_ms, turn) for turn in self.turns.values() if turn.due_ms is not None]
        self._heap = [(due_ms, next(self._order), turn) for due_ms, turn in planned]
        heapq.heapify(self._heap)

    def next_due_ms(self) -> float | None:
        """The earliest time to look anywhere."""
        while self._heap and self._heap[0][2].due_ms != self._heap[0][0]:
            heapq.heappop(self._heap)  # planned anew since
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: float) -> list[Turn]:
        """The turns to take now, the most entitled topic first. They stay due until they are
        planned anew."""
        turns: list[Turn] = []
        while (head := self.next_due_ms()) is not None and head <= now_ms:
            turn = heapq.heappop(self._heap)[2]
            turn.due_ms = None
            turns.append(turn)
        for turn in turns:
            self.plan(turn, 0)
            # A topic that was idle does not save up turns to spend them all at once.
            topic = turn.partition.topic
            self._served[topic] = max(self._served.get(topic, 0.0), self._newest - 1000)
        turns.sort(key=lambda turn: self._served[turn.partition.topic])
        return turns

    def charge(self, topic: str, messages: int) -> None:
        """The topic has had so many messages."""
        self._served[topic] = self._served.get(topic, 0.0) + messages / self._weights.get(topic, 1)
        self._newest = max(self._newest, self._served[topic])
