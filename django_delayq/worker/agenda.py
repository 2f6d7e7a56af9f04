"""Which partition to claim from next: a heap of due times, and weights among those that are due."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

from ..store.keys import Partition

#: The heap is rebuilt when it holds so many entries for each partition. When a visit is planned
#: anew, its old entry stays until it comes to the top. With a message that is due in the far
#: future, the heap would grow by one entry for each claim.
HEAP_PER_VISIT = 4


@dataclass(slots=True, eq=False)
class Visit:
    """The dispatcher's knowledge of one partition."""

    partition: Partition
    due_ms: float | None = None
    """When to claim there; None: nothing waits."""
    wakeups: int = -1
    """The counter as of the last visit. Another value means that there is something new."""
    finished: int = -1
    """How many messages had ended as of the last sweep."""
    may_be_leased: bool = True
    """Whether a message may be leased there, by whatever worker: something was due."""
    to_sweep: bool = True
    """Whether something may have happened since the last sweep."""
    rank: int = 0
    """How many workers come before this one (fleet.py), as of its last change."""
    is_own: bool = False
    """Whether it was this worker's turn when the visit was planned. Perhaps nobody else knows."""
    backlog: bool = False
    """Whether this worker knows that more is due than it could take."""


class Agenda:
    """Visits by due time. A topic that has had more than its weight's share comes later (stride
    scheduling)."""

    def __init__(self, weights: dict[str, int]) -> None:
        self._weights = weights
        self._served: dict[str, float] = {}
        """Messages claimed per topic, divided by its weight."""
        self._newest = 0.0
        self._heap: list[tuple[float, int, Visit]] = []
        self._order = itertools.count()
        self.visits: dict[Partition, Visit] = {}

    def add(self, partition: Partition, rank: int = 0) -> None:
        """Serve this partition too, beginning with a visit."""
        if partition not in self.visits:
            self.visits[partition] = Visit(partition, rank=rank)
            self.expect(partition, 0)

    def expect(self, partition: Partition, due_ms: float) -> None:
        """Visit the partition at `due_ms`, or before if that was planned."""
        visit = self.visits.get(partition)
        if visit is not None and (visit.due_ms is None or due_ms < visit.due_ms):
            self.plan(visit, due_ms)

    def plan(self, visit: Visit, due_ms: float | None) -> None:
        """Visit it at `due_ms` and not before."""
        visit.due_ms = due_ms
        if due_ms is not None:
            heapq.heappush(self._heap, (due_ms, next(self._order), visit))
            if len(self._heap) > HEAP_PER_VISIT * len(self.visits):
                self._heap = [
                    (each.due_ms, next(self._order), each)
                    for each in self.visits.values()
                    if each.due_ms is not None
                ]
                heapq.heapify(self._heap)

    def next_due_ms(self) -> float | None:
        """The time of the earliest visit."""
        while self._heap and self._heap[0][2].due_ms != self._heap[0][0]:
            heapq.heappop(self._heap)  # planned anew since
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: float) -> list[Visit]:
        """The visits to make now, the most entitled topic first. They stay due until they are
        planned anew."""
        visits: list[Visit] = []
        while (head := self.next_due_ms()) is not None and head <= now_ms:
            visit = heapq.heappop(self._heap)[2]
            visit.due_ms = None
            visits.append(visit)
        for visit in visits:
            self.plan(visit, 0)
            # A topic that was idle does not save up visits to spend them all at once.
            topic = visit.partition.topic
            self._served[topic] = max(self._served.get(topic, 0.0), self._newest - 1000)
        visits.sort(key=lambda visit: self._served[visit.partition.topic])
        return visits

    def charge(self, topic: str, messages: int) -> None:
        """The topic has had so many messages."""
        self._served[topic] = self._served.get(topic, 0.0) + messages / self._weights.get(topic, 1)
        self._newest = max(self._newest, self._served[topic])
