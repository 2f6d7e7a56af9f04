"""Random histories over a real server, compared after every step with a model that is a few plain dicts.

Invariants (field/reliability.md 3.1): each id is in exactly one place (I1), bodies and entries exist only for what is
live (I2), a lease belongs to one token and only that token moves it (I3), a repeated call changes nothing (I6), and the
counters equal the sizes of the sets (I7). The ids are few, so that they meet; leases that ended stay in the hands of
their holders, so that the stale ones are tried; time is moved by composite rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_delayq.exceptions import MessageNotFound, MessageRunning
from django_delayq.message import HEADER_END, Attempts, Priority
from django_delayq.store.lease import Lease
from django_delayq.store.redis import RedisStore
from tests.servers import Server
from tests.store import factories
from tests.store.factories import DAY_MS, DETAIL, PARTITION, dump, ends, on_all_nodes, outgoing

IDS = [bytes([n]) * 16 for n in (1, 2, 3)]
AGEING_MS = 60_000
POISON = 3
#: Due, due a little later (within the ageing of the lanes), and not due at all.
WHENS = ("1000000000000", "1000000030000", "1000000090000", "9000000000000")

ids = st.sampled_from(IDS)
whens = st.sampled_from(WHENS)
bodies = st.sampled_from([b"[1]", b"[2]"])
priorities = st.sampled_from(Priority)
leases = Bundle("leases")


@dataclass
class Known:
    """What the model knows of a live message."""

    body: bytes
    lane: int
    due: int
    expires: int = 0
    token: bytes | None = None
    """Of the lease, while it is leased."""
    entry: tuple[int, int, bytes] | None = None
    """Attempts, crashes, newest token; once it has been claimed."""
    follower: Known | None = None


@dataclass
class Model:
    """The state that the server must have."""

    live: dict[bytes, Known] = field(default_factory=dict)
    ended: list[tuple[bytes, str]] = field(default_factory=list)
    enqueued: int = 0

    def holds(self, lease: Lease) -> bool:
        known = self.live.get(lease.id)
        return known is not None and known.token == lease.token

    def refusal(self, lease: Lease) -> str:
        known = self.live.get(lease.id)
        if known is None or known.entry is None:
            return "GONE"
        return "SETTLED" if known.entry[2] == lease.token else "LEASE_LOST"

    def end(self, message_id: bytes, state: str) -> None:
        """A run or a wait has ended for good; a follower takes the place."""
        self.ended.append((message_id, state))
        follower = self.live.pop(message_id).follower
        if follower:
            self.live[message_id] = follower
            self.enqueued += 1

    def again(self, message_id: bytes, due: int, entry: tuple[int, int, bytes]) -> None:
        """A run has ended and another is to come: the follower's, if there is one."""
        known = self.live[message_id]
        known.token, known.due, known.entry = None, due, entry
        if known.follower:
            self.live[message_id] = known.follower

    def next_claims(self, limit: int, now: int) -> list[bytes]:
        due = {i: known for i, known in self.live.items() if known.token is None and known.due <= now}
        return sorted(due, key=lambda i: (due[i].due + due[i].lane * AGEING_MS, due[i].lane, i))[:limit]


class StoreMachine(RuleBasedStateMachine):
    """Every public transition of the store."""

    def __init__(self, store: RedisStore, server: Server) -> None:
        super().__init__()
        self.shared, self.server = store, server
        self.model = Model()

    @initialize()
    def begin(self) -> None:
        """Each history has a prefix of its own."""
        settings = type(self.shared.settings)(prefix=f"{self.shared.prefix}-{id(self)}", redis=self.server.url)
        self.store = RedisStore(self.shared.client, settings)
        for name in factories.NAMES:
            self.store.command("DEL", factories.key(self.store, name))

    # Producers

    @rule(
        message_id=ids,
        mode=st.sampled_from(["raise", "keep", "replace"]),
        when=whens,
        body=bodies,
        priority=priorities,
        expired=st.sampled_from([False, False, False, True]),
    )
    def enqueue(self, message_id: bytes, mode: str, when: str, body: bytes, priority: Priority, expired: bool) -> None:
        message = outgoing(
            message_id, mode=mode, when=when, body=body, priority=priority, expires="5" if expired else ""
        )
        new = Known(body, int(priority), int(when), 5 if expired else 0)
        assert factories.send(self.store, message) == self._expected_words(message_id, mode, new)
        before = self._dump()
        again = factories.send(self.store, message)
        if mode != "replace":
            assert again[0] in ("SAME", "DUPLICATE")
            assert self._dump() == before
        else:
            assert again[0] in ("REPLACED", "FOLLOWS")

    def _expected_words(self, message_id: bytes, mode: str, new: Known) -> dict[int, str]:
        known = self.model.live.get(message_id)
        if known is None:
            self.model.live[message_id] = new
            self.model.enqueued += 1
            return {}
        if mode != "replace":
            return {0: "SAME" if (known.body, known.lane) == (new.body, new.lane) else "DUPLICATE"}
        if known.token is not None:
            known.follower = new
            return {0: "FOLLOWS"}
        self.model.live[message_id] = new
        return {0: "REPLACED"}

    @rule(message_id=ids)
    def cancel(self, message_id: bytes) -> None:
        known = self.model.live.get(message_id)
        word = "NOT_FOUND" if known is None else "RUNNING" if known.token is not None else "OK"
        assert self.store.cancel(PARTITION, [message_id]) == [word]
        if word == "OK":
            self.model.end(message_id, "cancelled")
        elif known is not None and known.follower:
            known.follower = None
            self.model.ended.append((message_id, "cancelled"))
            self.model.enqueued += 1

    @rule(message_id=ids, when=whens)
    def reschedule(self, message_id: bytes, when: str) -> None:
        known = self.model.live.get(message_id)
        try:
            assert self.store.reschedule(PARTITION, message_id, when) == int(when)
        except MessageNotFound:
            assert known is None
        except MessageRunning:
            assert known is not None and known.token is not None
        else:
            assert known is not None and known.token is None
            known.due = int(when)

    @rule(limit=st.integers(0, 1))
    def purge(self, limit: int) -> None:
        waiting = {i: known for i, known in self.model.live.items() if known.token is None}
        first = sorted(waiting, key=lambda i: (waiting[i].lane, waiting[i].due, i))[:limit]
        assert len(self.store.purge(PARTITION, limit)) == len(first)
        for message_id in first:
            self.model.end(message_id, "cancelled")

    # Workers

    @rule(target=leases, limit=st.integers(1, 3))
    def claim(self, limit: int) -> Any:
        claimed = self.store.claim(PARTITION, limit)
        expected = self.model.next_claims(limit, claimed.now_us // 1000)
        expired = [i for i in expected if self.model.live[i].expires]
        assert claimed.over == expired
        assert [lease.id for lease in claimed.leases] == [i for i in expected if i not in expired]
        for message_id in expired:
            self.model.end(message_id, "expired")
        for lease in claimed.leases:
            known = self.model.live[lease.id]
            attempt, crashes, _ = known.entry or (0, 0, b"")
            known.token, known.entry = lease.token, (attempt + 1, crashes, lease.token)
            assert (lease.attempt, lease.crashes, lease.due_at_ms) == (attempt + 1, crashes, known.due)
        return multiple(*claimed.leases)

    @rule(lease=leases, repeated=st.booleans())
    def ack(self, lease: Lease, repeated: bool) -> None:
        mine = self.model.holds(lease)
        self._settle(lease, repeated, lambda again: self.store.ack(PARTITION, [(lease, DETAIL)], repeated=again))
        if mine:
            self.model.end(lease.id, "acked")

    @rule(lease=leases, delay=st.sampled_from([None, 0, DAY_MS]), counts=st.booleans(), repeated=st.booleans())
    def nack(self, lease: Lease, delay: int | None, counts: bool, repeated: bool) -> None:
        mine = self.model.holds(lease)
        self._settle(
            lease, repeated, lambda again: self.store.nack(PARTITION, [(lease, delay, counts, DETAIL)], repeated=again)
        )
        if mine and delay is None:
            self.model.end(lease.id, "dead")
        elif mine:
            attempt, crashes, token = self.model.live[lease.id].entry or (0, 0, b"")
            self.model.again(lease.id, self._due(lease.id), (attempt - (not counts), crashes, token))

    @rule(lease=leases, repeated=st.booleans())
    def release(self, lease: Lease, repeated: bool) -> None:
        mine = self.model.holds(lease)
        self._settle(lease, repeated, lambda again: self.store.release(PARTITION, [lease], repeated=again))
        if mine:
            attempt, crashes, token = self.model.live[lease.id].entry or (0, 0, b"")
            self.model.again(lease.id, lease.due_at_ms, (attempt - 1, crashes, token))

    @rule(lease=leases)
    def extend(self, lease: Lease) -> None:
        before = self._dump()
        lost = self.store.extend(PARTITION, [lease])
        assert lost == ([lease] if not self.model.holds(lease) and self.model.refusal(lease) == "LEASE_LOST" else [])
        after = self._dump()
        if not self.model.holds(lease):
            assert after == before
        else:
            assert after.pop("leased").keys() == before.pop("leased").keys()
            assert after == before

    @rule(lease=consumes(leases))
    def crash(self, lease: Lease) -> None:
        """The holder is never heard of again."""

    @precondition(lambda self: any(known.token is not None for known in self.model.live.values()))
    @rule()
    def leases_end_and_are_reclaimed(self) -> None:
        held = {i: known for i, known in self.model.live.items() if known.token is not None}
        factories.end_leases(self.store)
        back, dead = self.store.reclaim(PARTITION)
        poisoned = {i for i, known in held.items() if known.entry and known.entry[1] + 1 >= POISON}
        assert (set(back), set(dead)) == (set(held) - poisoned, poisoned)
        for message_id in dead:
            self.model.end(message_id, "dead")
        for message_id in back:
            attempt, crashes, _ = held[message_id].entry or (0, 0, b"")
            self.model.again(message_id, self._due(message_id), (attempt, crashes + 1, bytes(16)))
        assert self.store.reclaim(PARTITION) == ([], [])

    @precondition(lambda self: self.model.live)
    @rule()
    def everything_falls_due(self) -> None:
        for message_id, known in self.model.live.items():
            if known.token is None:
                known.due = self.store.reschedule(PARTITION, message_id, WHENS[0])

    @rule()
    def the_script_cache_is_flushed(self) -> None:
        on_all_nodes(self.server, "SCRIPT", "FLUSH")

    def _settle(self, lease: Lease, repeated: bool, call: Any) -> None:
        """A settlement, and once more as after a lost answer (I6)."""
        before, mine = self._dump(), self.model.holds(lease)
        refused = not mine and not (repeated and self.model.refusal(lease) in ("GONE", "SETTLED"))
        assert call(repeated) == ([lease] if refused else [])
        after = self._dump()
        assert (after == before) == (not mine)
        assert call(True) == ([lease] if not mine and self.model.refusal(lease) == "LEASE_LOST" else [])
        assert self._dump() == after

    # Looking

    def _dump(self) -> dict[str, Any]:
        return dump(self.store)

    def _due(self, message_id: bytes) -> int:
        """The due time that the server's clock gave."""
        return int(factories.waiting(self.store)[message_id])

    @invariant()
    def the_server_holds_what_the_model_knows(self) -> None:
        content, live = self._dump(), self.model.live
        for lane, name in enumerate(("high", "normal", "low")):
            here = {i: known.due for i, known in live.items() if known.token is None and known.lane == lane}
            assert content[name] == here  # I1
        assert content["leased"].keys() == {i for i, known in live.items() if known.token is not None}  # I1, I3
        assert {i: raw[HEADER_END:] for i, raw in content["messages"].items()} == {  # I2
            i: known.body for i, known in live.items()
        }
        entries = {i: Attempts.decode(raw) for i, raw in content["attempts"].items()}
        assert {i: (entry.attempt, entry.crashes, entry.token) for i, entry in entries.items()} == {  # I2, I3
            i: known.entry for i, known in live.items() if known.entry
        }
        assert {i: raw[6 + HEADER_END :] for i, raw in content["followers"].items()} == {
            i: known.follower.body for i, known in live.items() if known.follower
        }
        assert sorted(ends(self.store)) == sorted(self.model.ended)  # I1

    @invariant()
    def the_counters_equal_the_sets(self) -> None:
        stats, ended = self.store.stats(PARTITION), [state for _, state in self.model.ended]
        for state in ("acked", "dead", "cancelled", "expired"):
            assert int(stats.meta.get(state, 0)) == ended.count(state)  # I7
        assert int(stats.meta.get("enqueued", 0)) == self.model.enqueued == len(self.model.live) + len(ended)  # I7
        assert stats.waiting + stats.leased == len(self.model.live)


def test_every_history_is_one_that_the_model_allows(store: RedisStore, server: Server) -> None:
    run_state_machine_as_test(
        lambda: StoreMachine(store, server),
        settings=hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True),
    )
