"""Repairs what an audit has found in Redis and the outbox: by the store's scripts, which look
again, and by the relay.

Never loses a message and never has one run twice that has ended: what cannot be told becomes a dead
letter for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from django.db import transaction
from django.utils import timezone

from ...archive import closing
from ...client.moving import arrive, carry
from ...core.chunks import chunked
from ...core.conf import get_settings
from ...core.message import DURABLE, VERSION, Priority, State
from ...models import OperatorAction, OutboxStatus
from ...outbox import outbox, relay
from ...store.client import BATCH
from ...store.finished import Entry
from ...store.keys import Partition, partition_of
from ...store.repair import Damage
from ...store.store import RedisStore
from .confirm import archived, by_partition, outbox_rows
from .finding_kinds import OF_ROWS, Difference, Kind

ACTION = "audit repair"
#: What is done about each kind, for the record of it. In this order: what has ended is out of the
#: way first.
DEEDS: Mapping[Kind, str] = {
    Kind.UNCLOSED: "the row of the outbox was closed: the message is archived",
    Kind.LIVE_AGAIN: "it was taken out of Redis: it is archived, and must not run again",
    Kind.NO_RECORD: "it ended as dead, body_missing, or was sent again from the outbox",
    Kind.NO_PLACE: (
        "it was put back into its lane, or ended as dead, due_lost: nobody knows when it was due"
    ),
    Kind.TWO_LANES: "only its place in the right lane stays",
    Kind.LANE_AND_LEASE: "its place in the lane was removed: it is leased",
    Kind.WRONG_LANE: "it was put into the lane of its priority",
    Kind.WRONG_PARTITION: "it was moved to the partition where it is looked for",
    Kind.STRAY_ATTEMPTS: "they were removed",
    Kind.STRAY_FOLLOWER: "what was to follow was enqueued",
    Kind.LOST_END: "its end was told as dead, end_lost: nobody knows how it ended",
    Kind.STALE_END: "it is not remembered any more: it is archived",
    Kind.LOST: "it was sent again under its stamp",
}
#: What one call of mend.lua repairs, without an argument.
_MENDED: Mapping[Kind, Damage] = {
    Kind.TWO_LANES: "places",
    Kind.LANE_AND_LEASE: "places",
    Kind.WRONG_LANE: "places",
    Kind.STRAY_ATTEMPTS: "attempts",
    Kind.STRAY_FOLLOWER: "follower",
}
Done = list[bool]


class AuditRepair:
    """Of differences that a second look has confirmed."""

    def __init__(self, store: RedisStore, by: str) -> None:
        self._store = store
        self._by = by or "audit"

    def run(self, found: Sequence[Difference]) -> list[Difference]:
        """AuditRepair what can be repaired here. Returns what was; the rest was not so any more, or
        cannot be."""
        repaired: list[Difference] = []
        for kind, deed in DEEDS.items():
            for partition, some in by_partition(one for one in found if one.kind == kind).items():
                for batch in chunked(some, BATCH):
                    repaired += recorded(
                        batch, deed, self._by, partial(self._repair, kind, partition)
                    )
        return repaired

    def _repair(self, kind: Kind, partition: Partition, found: Sequence[Difference]) -> Done:
        special: dict[Kind, Callable[[Partition, Sequence[Difference]], Done]] = {
            Kind.UNCLOSED: self._close,
            Kind.LIVE_AGAIN: self._take_out,
            Kind.NO_RECORD: self._without_record,
            Kind.NO_PLACE: self._place,
            Kind.WRONG_PARTITION: self._move_all,
            Kind.LOST_END: self._tell_ends,
            Kind.STALE_END: self._forget_ends,
            Kind.LOST: self._send_again,
        }
        if kind in special:
            return special[kind](partition, found)
        return self._mend(partition, _MENDED[kind], [(one.id, b"") for one in found])

    def _mend(
        self,
        partition: Partition,
        damage: Damage,
        items: Sequence[tuple[bytes, bytes]],
        archive: str = "",
    ) -> Done:
        return list(self._store.repair.mend(partition, damage, items, archive))

    def _close(self, partition: Partition, found: Sequence[Difference]) -> Done:
        """As the archiver closes the rows of what it archives."""
        rows, alias = outbox_rows(found), get_settings().database
        entries = [
            Entry(
                b"", partition, one.id, State.ACKED, 0, outbox.record_of(rows[one.life]), b"", b"{}"
            )
            for one in found
            if one.life in rows
        ]
        with transaction.atomic(using=alias):
            left = {entry.id for entry in closing.close(entries, alias)}
        return [one.life in rows and one.id not in left for one in found]

    def _take_out(self, partition: Partition, found: Sequence[Difference]) -> Done:
        """The outbox first: else the reconciler would send it again."""
        self._close(partition, found)
        return self._mend(partition, "out", [(one.id, _stamp(one)) for one in found])

    def _without_record(self, partition: Partition, found: Sequence[Difference]) -> Done:
        """What the outbox has is sent again; the rest ends as a claim would end it."""
        ids = {message_id: row for (message_id, _), row in outbox_rows(found).items()}
        done = {}
        for one in found:
            has_row = one.id in ids and ids[one.id].status == OutboxStatus.SENT
            (done[one.id],) = self._mend(
                partition, "record", [(one.id, b"")], "none" if has_row else ""
            )
        relay.send_again(self._store, [row for message_id, row in ids.items() if done[message_id]])
        return [done[one.id] for one in found]

    def _place(self, partition: Partition, found: Sequence[Difference]) -> Done:
        """When it was due only the attempts tell and the outbox. What would run too early ends as a
        dead letter."""
        rows = outbox_rows(found)
        items = [
            (one.id, b"%d" % rows[one.life].due_at_ms if one.life in rows else b"") for one in found
        ]
        return self._mend(partition, "place", items)

    def _tell_ends(self, partition: Partition, found: Sequence[Difference]) -> Done:
        """With the record that the outbox has; else all that is known is which life it was."""
        rows = outbox_rows(found)
        bare = bytes((DURABLE | VERSION << 4 | Priority.NORMAL,))
        items = [
            (
                one.id,
                outbox.record_of(rows[one.life])
                if one.life in rows
                else _stamp(one) + bytes(6) + bare,
            )
            for one in found
        ]
        return self._mend(partition, "untold", items)

    def _forget_ends(self, partition: Partition, found: Sequence[Difference]) -> Done:
        return self._mend(partition, "stale", [(one.id, _stamp(one)) for one in found])

    # The outbox

    def _send_again(self, _: Partition, found: Sequence[Difference]) -> Done:
        known, rows = archived(found), outbox_rows(found)
        sent = relay.send_again(
            self._store, [row for life, row in rows.items() if life not in known]
        )
        return [one.life in rows and rows[one.life].pk in sent for one in found]

    # Moving

    def _move_all(self, partition: Partition, found: Sequence[Difference]) -> Done:
        return [self._move(partition, one) for one in found]

    def _move(self, partition: Partition, found: Difference) -> bool:
        """From a partition where nobody looks for it to where it belongs today; not while it
        runs."""
        target = (
            partition_of(found.topic, found.id, self._store.topics.configured(found.topic)),
            found.id,
        )
        carried = carry(self._store, (partition, found.id), target, stamp=_stamp(found))
        arrive(self._store, target, carried)
        return carried.word == "MOVED"


def recorded(
    found: Sequence[Difference], deed: str, by: str, repair: Callable[[Sequence[Difference]], Done]
) -> Iterator[Difference]:
    """Repair, with a record of each that is there before anything changes, and goes when nothing
    was changed."""
    records = [
        OperatorAction.new(ACTION, by, deed[0].upper() + deed[1:] + ".", **_fields_of(difference))
        for difference in found
    ]
    done = repair(found)
    was = [record.pk for record, mended in zip(records, done, strict=True) if mended]
    actions = OperatorAction.objects.all()
    actions.filter(pk__in=was).update(count=1, finished_at=timezone.now())
    actions.filter(pk__in=[record.pk for record in records if record.pk not in set(was)]).delete()
    return (one for one, mended in zip(found, done, strict=True) if mended)


def _fields_of(found: Difference) -> dict[str, Any]:
    """What it was about, as the page of the message looks for it."""
    if found.kind in OF_ROWS:
        return {"archived_id": found.row, "selection": found.kind.value}
    return {
        "topic": found.topic,
        "message_id": found.message_id or None,  # an altered batch has none
        "selection": found.kind.value,
    }


def _stamp(found: Difference) -> bytes:
    return (found.stamp or 0).to_bytes(8, "big")
