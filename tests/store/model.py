"""What a partition must hold, as a few plain dicts: the model that test_state_machine.py compares
with the server.

A durable message has a row in `rows`, as in the outbox: one per id, closed by the archiver.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from django_delayq.core.message import Attempts
from django_delayq.store.lease import Lease
from django_delayq.store.store import replaces

AGEING_MS = 60_000


@dataclass
class Known:
    """What the model knows of a live message."""

    body: bytes
    lane: int
    due: int
    expires: int = 0
    stamp: int = 0
    durable: bool = False
    token: bytes | None = None
    """Of the lease, while it is leased."""
    entry: Attempts | None = None
    """Once it has been claimed; only attempt, crashes and token are set."""
    follower: Known | None = None

    def claimed(self, token: bytes) -> None:
        attempt, crashes = (self.entry.attempt, self.entry.crashes) if self.entry else (0, 0)
        self.token, self.entry = token, entry_of(attempt + 1, crashes, token)


@dataclass
class Row:
    """What the outbox knows of a durable message."""

    id: bytes
    stamp: int
    mode: str
    known: Known


def entry_of(attempt: int, crashes: int, token: bytes) -> Attempts:
    return Attempts(attempt, crashes, 0, 0, token)


@dataclass
class Model:
    """The state that the server must have."""

    archive: str = "all"
    live: dict[bytes, Known] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    """The state of every message that has ended, as the counters count them."""
    finished: list[tuple[bytes, str, int]] = field(default_factory=list)
    """Id, state and, of durable ones, stamp of every end that is told and not yet removed."""
    markers: dict[bytes, int] = field(default_factory=dict)
    """Per id the stamp of the newest durable life that has ended and whose entry is not removed."""
    rows: dict[bytes, Row] = field(default_factory=dict)
    enqueued: int = 0

    def holds(self, lease: Lease) -> bool:
        known = self.live.get(lease.id)
        return known is not None and known.token == lease.token

    def refusal(self, lease: Lease) -> str:
        known = self.live.get(lease.id)
        if known is None or known.entry is None:
            return "GONE"
        return "SETTLED" if known.entry.token == lease.token else "LEASE_LOST"

    def tell(self, message_id: bytes, known: Known, state: str) -> None:
        """An entry of the finished stream, if the policy wants one; of a durable message always."""
        newest = self.markers.get(message_id, 0)
        if known.durable and newest < known.stamp:
            self.markers[message_id] = known.stamp
        if known.durable or self.archive == "all" or (self.archive == "dead" and state == "dead"):
            self.finished.append((message_id, state, known.stamp if known.durable else 0))

    def end(self, message_id: bytes, state: str) -> None:
        """A run or a wait has ended for good; a follower takes the place."""
        known = self.live.pop(message_id)
        self.ended.append(state)
        self.tell(message_id, known, state)
        if known.follower:
            self.live[message_id] = known.follower
            self.enqueued += 1

    def end_follower(self, message_id: bytes) -> None:
        """The follower is taken back; its run goes on."""
        known = self.live[message_id]
        if known.follower:
            self.ended.append("cancelled")
            self.tell(message_id, known.follower, "cancelled")
            self.enqueued += 1
            known.follower = None

    def again(self, message_id: bytes, due: int, entry: Attempts) -> None:
        """A run has ended and another is to come: the follower's, if there is one."""
        known = self.live[message_id]
        known.token, known.due, known.entry = None, due, entry
        if known.follower:
            self.supersede(message_id, known, known.follower)
            self.live[message_id] = known.follower

    def supersede(self, message_id: bytes, old: Known | None, new: Known) -> None:
        """A durable message is replaced by one that nobody would send again: SQL has to hear of
        it."""
        if old and old.durable and not new.durable:
            self.tell(message_id, old, "cancelled")

    def next_claims(self, limit: int, now: int) -> list[bytes]:
        due = {
            i: known for i, known in self.live.items() if known.token is None and known.due <= now
        }
        return sorted(due, key=lambda i: (due[i].due + due[i].lane * AGEING_MS, due[i].lane, i))[
            :limit
        ]

    # Producers

    def enqueue(self, message_id: bytes, mode: str, new: Known) -> str:
        """The word with which an enqueue ends, '' when it is simply new."""
        known = self.live.get(message_id)
        if known is None:
            self.live[message_id] = new
            self.enqueued += 1
            return ""
        if not replaces(mode):
            return "SAME" if (known.body, known.lane) == (new.body, new.lane) else "DUPLICATE"
        if known.token is not None:
            word = self.take_the_place(message_id, "FOLLOWS", mode, known.follower, new)
            known.follower = new
            return word
        self.live[message_id] = new
        return self.take_the_place(message_id, "REPLACED", mode, known, new)

    def take_the_place(
        self, message_id: bytes, word: str, mode: str, old: Known | None, new: Known
    ) -> str:
        """The new one takes the place of the old, and with some modes its due time."""
        self.supersede(message_id, old, new)
        if old is None or mode == "replace":
            return word
        new.due = max(new.due, old.due) if mode == "extend" else min(new.due, old.due)
        return f"{word}:{new.due}"

    def fate(self, message_id: bytes, stamp: int) -> str:
        """What is known of a life of a durable message."""
        known = self.live.get(message_id)
        if known and stamp in (known.stamp, known.follower.stamp if known.follower else 0):
            return "LIVE"
        return "DONE" if self.markers.get(message_id) == stamp else "MISSING"

    def send(self, row: Row) -> str:
        """The word with which the relay's or the reconciler's enqueue of a row ends."""
        fate, known = self.fate(row.id, row.stamp), self.live.get(row.id)
        if fate != "MISSING":
            return "SAME" if fate == "LIVE" else fate
        if known and replaces(row.mode) and (known.follower or known).stamp > row.stamp:
            self.forget_older(row)
            return "OLDER"
        word = self.enqueue(row.id, row.mode, replace(row.known))
        if word == "SAME" and known:
            known.durable, row.stamp = True, known.stamp
            return f"ADOPTED:{known.stamp}"
        if word == "DUPLICATE" and row.mode == "keep":
            self.forget_older(row)
        return word

    def forget_older(self, row: Row) -> None:
        """SQL ends the row: nobody asks for the lives before it any more."""
        if self.markers.get(row.id, row.stamp) < row.stamp:
            del self.markers[row.id]

    def close(self, message_id: bytes, stamp: int) -> None:
        """The archiver has committed an end: the outbox row of this life goes."""
        if message_id in self.rows and self.rows[message_id].stamp == stamp:
            del self.rows[message_id]

    def remove(self, message_id: bytes, state: str, stamp: int) -> None:
        """The archiver has removed an entry."""
        self.finished.remove((message_id, state, stamp))
        if stamp and self.markers.get(message_id) == stamp:
            del self.markers[message_id]
