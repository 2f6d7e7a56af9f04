"""Random histories over a real server, compared after every step with a model that is a few plain
dicts.

Invariants (field/reliability.md 3.1): each id is in exactly one place (I1), bodies and entries
exist only for what is live (I2), a lease belongs to one token and only that token moves it (I3), a
repeated call changes nothing (I6), and the counters equal the sizes of the sets (I7). Of durable
messages: what is live or done is never stored again, every life ends in one entry of the finished
stream, and is remembered as done until that is removed. The ids are few, so that they meet; leases
that ended stay in the hands of their holders, so that the stale ones are tried; time is moved by
composite rules. The durable part is in test_state_machine.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
)

from django_delayq.core.exceptions import MessageNotFound, MessageRunning
from django_delayq.core.message import DURABLE, HEADER_END, Attempts, Priority, Record
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore, replaces
from tests.servers import Server
from tests.store import factories
from tests.store.factories import DAY_MS, DETAIL, PARTITION, dump, on_all_nodes, outgoing
from tests.store.model import Known, Model, entry_of

IDS = [bytes([n]) * 16 for n in (1, 2, 3)]
POISON = 3
#: Due, due a little later (within the ageing of the lanes), and not due at all.
WHENS = ("1000000000000", "1000000030000", "1000000090000", "9000000000000")

ids = st.sampled_from(IDS)
MODES = ("raise", "keep", "replace", "extend", "earliest")
whens = st.sampled_from(WHENS)
bodies = st.sampled_from([b"[1]", b"[2]"])
priorities = st.sampled_from(Priority)
leases = Bundle("leases")


class StoreMachine(RuleBasedStateMachine):
    """Every public transition of the store."""

    limit = b""
    """Every message is under this limit."""

    def __init__(self, store: RedisStore, server: Server) -> None:
        super().__init__()
        self.shared, self.server = store, server
        self.model = Model()

    @initialize(archive=st.sampled_from(["all", "all", "dead", "none"]))
    def begin(self, archive: str) -> None:
        """Each history has a prefix of its own."""
        self.model.archive = archive
        settings = replace(
            self.shared.client.settings,
            prefix=f"{self.shared.client.prefix}-{id(self)}",
            archive=archive,
        )
        self.store = RedisStore(self.shared.client.redis, settings)
        for name in factories.NAMES:
            self.store.client.command("DEL", factories.key(self.store, name))

    # Producers

    @rule(
        message_id=ids,
        mode=st.sampled_from(MODES),
        when=whens,
        body=bodies,
        priority=priorities,
        expired=st.sampled_from([False, False, False, True]),
    )
    def enqueue(
        self,
        message_id: bytes,
        mode: str,
        when: str,
        body: bytes,
        priority: Priority,
        expired: bool,
    ) -> None:
        message = outgoing(
            message_id,
            mode=mode,
            when=when,
            body=body,
            priority=priority,
            expires="5" if expired else "",
            limit=self.limit,
        )
        word = self.model.enqueue(
            message_id, mode, Known(body, int(priority), int(when), 5 if expired else 0)
        )
        assert factories.send(self.store, message) == ({0: word} if word else {})
        before = self._dump()
        again = factories.send(self.store, message)
        if not replaces(mode):
            assert again[0] in ("SAME", "DUPLICATE")
            assert self._dump() == before
        else:
            assert again[0].partition(":")[0] in ("REPLACED", "FOLLOWS")
        self._learn_stamps()

    @rule(message_id=ids)
    def cancel(self, message_id: bytes) -> None:
        known = self.model.live.get(message_id)
        word = "NOT_FOUND" if known is None else "RUNNING" if known.token is not None else "OK"
        assert self.store.cancel_in(PARTITION, [message_id]) == [word]
        if word == "OK":
            self.model.end(message_id, "cancelled")
        elif known is not None:
            self.model.end_follower(message_id)

    @rule(message_id=ids, when=whens)
    def reschedule(self, message_id: bytes, when: str) -> None:
        known = self.model.live.get(message_id)
        try:
            moved = self.store.reschedule_in(PARTITION, message_id, when)
        except MessageNotFound:
            assert known is None
        except MessageRunning:
            assert known is not None and known.token is not None and known.follower is None
        else:
            assert known is not None
            assert moved == int(when)
            target = known.follower if known.token is not None else known
            assert target is not None
            target.due = int(when)

    @rule(message_id=ids, body=bodies)
    def edit(self, message_id: bytes, body: bytes) -> None:
        """Other arguments for what waits; a running message and its follower stay as they are."""
        known, before = self.model.live.get(message_id), self._dump()
        header = HEADER_END + len(self.limit)
        record = before["messages"].get(message_id, bytes(header))
        after = record[:header] + body
        word = self.store.edit_in(PARTITION, message_id, record, after)
        if known is None:
            assert word == "NOT_FOUND"
        elif known.token is not None:
            assert word == ("OK" if known.body == body else "RUNNING")
        else:
            assert word == "OK"
            known.body = body
            before["messages"][message_id] = after
            if after != record and message_id in factories.held_back_in(before):
                # It may be under another limit now: the next claim sees to it.
                for lane in ("high", "normal", "low"):
                    if message_id in before[lane]:
                        before[lane][message_id] = factories.due_in(before[lane][message_id])
                before["meta"][b"wakeups"] = self._dump()["meta"][b"wakeups"]
        assert self._dump() == before
        assert self.store.edit_in(PARTITION, message_id, record, after) == word
        assert self._dump() == before

    @rule(end=st.sampled_from([None, int(WHENS[-1])]))
    def a_pause_holds_what_is_due(self, end: int | None) -> None:
        """It is resumed, or its end comes: what is claimed next is what would have been claimed
        before."""
        self.store.topics.pause(PARTITION.topic, "{}", end)
        before = self._dump()
        claimed = self.store.claim(PARTITION, 3)
        assert (claimed.leases, claimed.over, claimed.next_due_ms, claimed.paused) == (
            [],
            [],
            end,
            True,
        )
        assert self._dump() == before
        if end is None:
            self.store.topics.resume(PARTITION.topic)
        else:
            self.store.client.command(
                "HSET", factories.key(self.store, "meta"), "paused_until", WHENS[0]
            )

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
            known.claimed(lease.token)
            assert known.entry
            assert (lease.attempts.attempt, lease.attempts.crashes, lease.attempts.due_at_ms) == (
                known.entry.attempt,
                known.entry.crashes,
                known.due,
            )
        return multiple(*claimed.leases)

    @rule(lease=leases, repeated=st.booleans())
    def ack(self, lease: Lease, repeated: bool) -> None:
        mine = self.model.holds(lease)
        self._settle(
            lease,
            repeated,
            lambda again: self.store.ack(PARTITION, [(lease, DETAIL)], repeated=again),
        )
        if mine:
            self.model.end(lease.id, "acked")

    @rule(
        lease=leases,
        delay=st.sampled_from([None, 0, DAY_MS]),
        counts=st.booleans(),
        repeated=st.booleans(),
    )
    def nack(self, lease: Lease, delay: int | None, counts: bool, repeated: bool) -> None:
        mine = self.model.holds(lease)
        self._settle(
            lease,
            repeated,
            lambda again: self.store.nack(
                PARTITION, [(lease, delay, counts, DETAIL)], repeated=again
            ),
        )
        if mine and delay is None:
            self.model.end(lease.id, "dead")
        elif mine:
            self._again(lease.id, self._due(lease.id), attempts=-(not counts))

    @rule(lease=leases, repeated=st.booleans())
    def release(self, lease: Lease, repeated: bool) -> None:
        mine = self.model.holds(lease)
        self._settle(
            lease, repeated, lambda again: self.store.release(PARTITION, [lease], repeated=again)
        )
        if mine:
            self._again(lease.id, lease.attempts.due_at_ms, attempts=-1)

    @rule(lease=leases, repeated=st.booleans())
    def put_off(self, lease: Lease, repeated: bool) -> None:
        mine = self.model.holds(lease)
        self._settle(
            lease,
            repeated,
            lambda again: self.store.put_off(PARTITION, [(lease, 0, DETAIL)], repeated=again),
        )
        if mine:
            self._again(lease.id, self._due(lease.id), attempts=-1)

    @rule(lease=leases)
    def extend(self, lease: Lease) -> None:
        before = self._dump()
        lost = self.store.extend(PARTITION, [lease])
        assert lost == (
            [lease]
            if not self.model.holds(lease) and self.model.refusal(lease) == "LEASE_LOST"
            else []
        )
        after = self._dump()
        if not self.model.holds(lease):
            assert after == before
        else:
            assert after.pop("leased").keys() == before.pop("leased").keys()
            assert after == before

    @rule(lease=leases)
    def cancel_running(self, lease: Lease) -> None:
        known = self.model.live.get(lease.id)
        before = self._dump()
        word = self.store.cancel_running_in(PARTITION, lease.id)
        runs = known is not None and known.token is not None
        assert word == ("OK" if runs else "WAITING" if known else "NOT_FOUND")
        if not runs:
            assert self._dump() == before
        else:
            self.model.end_follower(lease.id)
            self.model.end(lease.id, "cancelled")

    @rule(lease=consumes(leases))
    def crash(self, lease: Lease) -> None:
        """The holder is never heard of again."""

    @precondition(lambda self: any(known.token is not None for known in self.model.live.values()))
    @rule()
    def leases_end_and_are_reclaimed(self) -> None:
        held = {i: known for i, known in self.model.live.items() if known.token is not None}
        factories.end_leases(self.store)
        back, dead, _ = self.store.reclaim(PARTITION)
        poisoned = {
            i for i, known in held.items() if known.entry and known.entry.crashes + 1 >= POISON
        }
        assert (set(back), set(dead)) == (set(held) - poisoned, poisoned)
        for message_id in dead:
            self.model.end(message_id, "dead")
        for message_id in back:
            self._again(message_id, self._due(message_id), crashed=True)
        assert self.store.reclaim(PARTITION)[:2] == ([], [])

    @precondition(lambda self: self.model.live)
    @rule()
    def everything_falls_due(self) -> None:
        for message_id, known in self.model.live.items():
            if known.token is None:
                known.due = self.store.reschedule_in(PARTITION, message_id, WHENS[0])

    @rule()
    def the_script_cache_is_flushed(self) -> None:
        on_all_nodes(self.server, "SCRIPT", "FLUSH")

    def _again(
        self, message_id: bytes, due: int, *, attempts: int = 0, crashed: bool = False
    ) -> None:
        entry = self.model.live[message_id].entry
        assert entry
        token = bytes(16) if crashed else entry.token
        self.model.again(
            message_id, due, entry_of(entry.attempt + attempts, entry.crashes + crashed, token)
        )

    def _settle(self, lease: Lease, repeated: bool, call: Any) -> None:
        """A settlement, and once more as after a lost answer (I6)."""
        before, mine = self._dump(), self.model.holds(lease)
        refused = not mine and not (repeated and self.model.refusal(lease) in ("GONE", "SETTLED"))
        assert call(repeated) == ([lease] if refused else [])
        after = self._dump()
        assert (after == before) == (not mine)
        assert call(True) == (
            [lease] if not mine and self.model.refusal(lease) == "LEASE_LOST" else []
        )
        assert self._dump() == after

    # Looking

    def _dump(self) -> dict[str, Any]:
        return dump(self.store)

    def _learn_stamps(self) -> None:
        """The stamps that the server's clock gave."""
        content = self._dump()
        for message_id, known in self.model.live.items():
            if not known.durable:
                known.stamp = int.from_bytes(content["messages"][message_id][:8], "big")
            if known.follower and not known.follower.durable:
                known.follower.stamp = int.from_bytes(content["followers"][message_id][6:14], "big")

    def _due(self, message_id: bytes) -> int:
        """The due time that the server's clock gave."""
        return int(factories.waiting(self.store)[message_id])

    @invariant()
    def the_server_holds_what_the_model_knows(self) -> None:
        content, live = self._dump(), self.model.live
        for lane, name in enumerate(("high", "normal", "low")):
            here = {
                i: known.due
                for i, known in live.items()
                if known.token is None and known.lane == lane
            }
            assert {i: factories.due_in(score) for i, score in content[name].items()} == here  # I1
        assert content["leased"].keys() == {
            i for i, known in live.items() if known.token is not None
        }  # I1, I3
        records = {i: Record.decode(raw) for i, raw in content["messages"].items()}
        assert {
            i: (record.body, record.enqueued_at_us, bool(record.flags & DURABLE))
            for i, record in records.items()
        } == {  # I2
            i: (known.body, known.stamp, known.durable) for i, known in live.items()
        }
        entries = {i: Attempts.decode(raw) for i, raw in content["attempts"].items()}
        assert {
            i: (entry.attempt, entry.crashes, entry.token) for i, entry in entries.items()
        } == {  # I2, I3
            i: (known.entry.attempt, known.entry.crashes, known.entry.token)
            for i, known in live.items()
            if known.entry
        }
        followers = {i: Record.decode(raw[6:]) for i, raw in content["followers"].items()}
        assert {
            i: (record.body, record.enqueued_at_us, bool(record.flags & DURABLE))
            for i, record in followers.items()
        } == {
            i: (known.follower.body, known.follower.stamp, known.follower.durable)
            for i, known in live.items()
            if known.follower
        }

    @invariant()
    def the_counters_equal_the_sets(self) -> None:
        stats, ended = self.store.queries.stats(PARTITION), self.model.ended
        for state in ("acked", "dead", "cancelled", "expired"):
            assert int(stats.meta.get(state, 0)) == ended.count(state)  # I7
        assert int(stats.meta.get("enqueued", 0)) == self.model.enqueued  # I7
        assert self.model.enqueued == len(self.model.live) + len(ended)
        assert stats.waiting + stats.leased == len(self.model.live)
