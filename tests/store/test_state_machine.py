"""The histories of machine.py with durable messages: a producer, a relay and an archiver that crash
and forget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from django_delayq.core.message import DURABLE, Priority, Record
from django_delayq.store import finished as module
from django_delayq.store.entries import Entry
from django_delayq.store.finished import FinishedStream
from django_delayq.store.store import RedisStore, replaces
from tests.servers import Server
from tests.store import factories
from tests.store.factories import PARTITION, accepted
from tests.store.machine import MODES, StoreMachine, bodies, ids, priorities, whens
from tests.store.model import Known, Row

contents = st.builds(
    Known,
    body=bodies,
    lane=priorities.map(int),
    due=whens.map(int),
    expires=st.sampled_from([0, 0, 0, 5]),
    durable=st.just(True),
)


class DurableMachine(StoreMachine):
    """What SQL answers for, too. `model.rows` is the outbox: the relay and the reconciler send what
    it holds."""

    @initialize()
    def nothing_is_archived(self) -> None:
        self.archived: dict[bytes, tuple[bytes, int]] = {}
        """Entry of the stream -> id and stamp (0: not durable) of what is committed."""
        self.seen: set[bytes] = set()
        self.last_stamp = 0

    # The outbox

    @rule(
        message_id=ids,
        mode=st.sampled_from([*MODES, "replace"]),
        content=contents,
        sent=st.booleans(),
    )
    def accept(self, message_id: bytes, mode: str, content: Known, sent: bool) -> None:
        """A producer commits a row, and sends it unless it crashes before."""
        row = self.model.rows.get(message_id)
        if row and not replaces(mode) and self._fate(row) != "DONE":
            return
        self.last_stamp = max(self.last_stamp + 1, int(self.store.clock_ms() * 1000))
        content.stamp = self.last_stamp
        self.model.rows[message_id] = Row(message_id, self.last_stamp, mode, content)
        if sent:
            self.send(message_id)

    @precondition(lambda self: self.model.rows)
    @rule(message_id=ids)
    def send_a_row(self, message_id: bytes) -> None:
        """The relay, or the reconciler, which knows less: the row may have been sent before."""
        if message_id in self.model.rows:
            self.send(message_id)

    @rule(
        message_id=ids,
        mode=st.sampled_from(MODES),
        content=contents,
        first=st.booleans(),
    )
    def an_outcome_is_unknown(
        self, message_id: bytes, mode: str, content: Known, first: bool
    ) -> None:
        """An enqueue whose answer was lost is spilled: Redis has it, and the relay sends it."""
        if first:
            self.accept(message_id, mode, content, False)
        self.enqueue(
            message_id,
            mode,
            str(content.due),
            content.body,
            Priority(content.lane),
            bool(content.expires),
        )
        if not first:
            self.accept(message_id, mode, content, False)
        self.send_a_row(message_id)

    @rule(
        outcome=st.sampled_from(["acked", "dead", "retried", "released"]),
        content=st.none() | contents,
    )
    def everything_runs(self, outcome: str, content: Known | None) -> None:
        """And is perhaps replaced meanwhile."""
        self.everything_falls_due()
        for lease in self.claim(3).values:
            if content:
                self.accept(lease.id, "replace", replace(content), True)
            if outcome == "acked":
                self.ack(lease, False)
            elif outcome == "released":
                self.release(lease, False)
            else:
                self.nack(lease, None if outcome == "dead" else 0, True, False)

    @precondition(lambda self: self.model.rows)
    @rule()
    def reconcile(self) -> None:
        """Redis is asked for every row; what is missing is sent again."""
        for message_id, row in list(self.model.rows.items()):
            if self._fate(row) == "MISSING":
                self.send(message_id)

    @rule(message_id=ids)
    def bury(self, message_id: bytes) -> None:
        """A row is cancelled that Redis does not know."""
        row = self.model.rows.get(message_id)
        if row is None:
            return
        fate = self._fate(row)
        word = self.store.tombstone(
            PARTITION, message_id, factories.stamped(row.stamp, row.known.body)
        )
        assert word == ("OK" if fate == "MISSING" else fate)
        if word == "OK":
            self.model.ended.append("cancelled")
            self.model.enqueued += 1
            self.model.tell(message_id, row.known, "cancelled")

    def send(self, message_id: bytes) -> None:
        row = self.model.rows[message_id]
        message = accepted(
            message_id,
            stamp=row.stamp,
            mode=row.mode,
            when=str(row.known.due),
            body=row.known.body,
            priority=Priority(row.known.lane),
            expires=str(row.known.expires or ""),
        )
        fate, before = self._fate(row), self._messages()
        word = self.model.send(row)
        assert factories.send(self.store, message) == ({0: word} if word else {})
        if fate != "MISSING" or word in ("OLDER", "DUPLICATE"):
            assert self._messages() == before  # what is live or done is never stored again
        if word == "OLDER" or (word == "DUPLICATE" and row.mode == "keep"):
            del self.model.rows[message_id]
        elif word not in ("DUPLICATE", "DONE"):
            assert self._fate(row) == "LIVE"

    def _fate(self, row: Row) -> str:
        (word,) = self.store.queries.durable_status(PARTITION, [(row.id, row.stamp)])
        assert word == self.model.fate(row.id, row.stamp)
        return word

    def _messages(self) -> dict[str, Any]:
        return {name: content for name, content in self._dump().items() if name != "meta"}

    # The archiver

    @rule(consumer=st.sampled_from(["a", "b"]), committed=st.booleans(), removed=st.booleans())
    def archive(self, consumer: str, committed: bool, removed: bool) -> None:
        """Read (or take over what another has read), commit, remove; a crash may come before each
        step."""
        stream = FinishedStream(self.store, PARTITION, consumer)
        entries = stream.read()
        assert not self.seen & {
            entry.entry for entry in entries
        }  # nobody reads twice what he may take over
        self.seen |= {entry.entry for entry in entries}
        entries = entries or stream.take_over()
        if not committed or not entries:
            return
        for entry in entries:
            self._commit(entry)
        if removed:
            left = stream.remove(entries)
            for entry in entries:
                self.model.remove(entry.id, entry.state, self._stamp(entry))
            assert left == len(self.model.finished)

    def _commit(self, entry: Entry) -> None:
        stamp = self._stamp(entry)
        if stamp and entry.entry not in self.archived:
            assert (entry.id, stamp) not in set(
                self.archived.values()
            )  # every life ends in one entry
        self.archived[entry.entry] = (entry.id, stamp)
        self.model.close(entry.id, stamp)

    def _stamp(self, entry: Entry) -> int:
        record = Record.decode(entry.record)
        return record.enqueued_at_us if record.flags & DURABLE else 0

    # Looking

    @invariant()
    def every_end_is_told_once(self) -> None:
        told = []
        for entry in factories.finished(self.store):
            record = Record.decode(entry["record"])
            told.append(
                (
                    entry["id"],
                    entry["state"].decode(),
                    record.enqueued_at_us if record.flags & DURABLE else 0,
                )
            )
        assert sorted(told) == sorted(self.model.finished)  # I1
        lives = [(i, stamp) for i, _, stamp in told if stamp]
        assert len(lives) == len(set(lives))
        assert not {(i, known.stamp) for i, known in self.model.live.items()} & set(lives)

    @invariant()
    def what_has_ended_is_remembered_until_its_entry_is_removed(self) -> None:
        markers = factories.markers(self.store)
        assert markers == self.model.markers
        lives = {(message_id, stamp) for message_id, _, stamp in self.model.finished}
        assert set(markers.items()) <= lives
        # One marker for an id is enough: SQL holds one row for it, the newest life's.
        assert markers.keys() == {
            message_id for message_id, stamp in lives if stamp and message_id in markers
        }


def test_every_history_is_one_that_the_model_allows(
    store: RedisStore, server: Server, histories: int, monkeypatch: Any
) -> None:
    monkeypatch.setattr(module, "TAKE_OVER_AFTER_MS", 0)
    run_state_machine_as_test(
        lambda: DurableMachine(store, server),
        settings=hypothesis_settings(
            max_examples=histories, stateful_step_count=40, deadline=None, derandomize=True
        ),
    )
