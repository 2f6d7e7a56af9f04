"""Repairs what an audit has found in Redis and the outbox: by the store's scripts, which check
again, and by the relay.

No message is lost, and none that has ended runs a second time: where the right repair is not known,
the message becomes a dead letter for an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

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
from ...store.entries import Entry
from ...store.keys import Partition, partition_of
from ...store.store import RedisStore
from .confirm import by_partition, lives_of, outbox_rows
from .findings import OF_THE_LAKE, Finding, FindingKind

ACTION = "audit repair"
Done = list[bool]


class AuditRepair:
    """Of confirmed findings about Redis and the outbox."""

    def __init__(self, store: RedisStore, by: str) -> None:
        self._store = store
        self._by = by
        self._special: Mapping[FindingKind, Callable[[Partition, Sequence[Finding]], Done]] = {
            FindingKind.UNCLOSED: self._close,
            FindingKind.LIVE_AGAIN: self._take_out,
            FindingKind.NO_RECORD: self._without_record,
            FindingKind.NO_PLACE: self._place,
            FindingKind.WRONG_PARTITION: self._move,
            FindingKind.LOST_END: self._end_as_dead,
            FindingKind.LOST: self._send_again,
        }

    def run(self, found: Sequence[Finding]) -> list[Finding]:
        """Repair, and return what was repaired. The other findings were not there any more, or
        cannot be repaired."""
        repaired: list[Finding] = []
        for kind in FindingKind:
            repair = self._special.get(kind, self._mend)
            for partition, findings in by_partition(
                finding for finding in found if finding.kind == kind
            ).items():
                for batch in chunked(findings, BATCH):
                    repaired += recorded(batch, kind.repair, self._by, partial(repair, partition))
        return repaired

    def _mend(
        self,
        partition: Partition,
        found: Sequence[Finding],
        arguments: Mapping[Finding, bytes] | None = None,
        archive: str = "",
    ) -> Done:
        """In Redis. `arguments`: what its damage needs, by the finding (see store/repair.py)."""
        damage = found[0].kind.damage
        assert damage
        suspects = [finding.suspect((arguments or {}).get(finding, b"")) for finding in found]
        return list(self._store.repair.mend(partition, damage, suspects, archive))

    def _close(self, partition: Partition, found: Sequence[Finding]) -> Done:
        """As the archiver closes the rows of what it archives."""
        rows = outbox_rows(found)
        entries = [
            Entry(
                b"",
                partition,
                finding.id,
                State.ACKED,
                0,
                outbox.record_of(rows[finding.life]),
                b"",
                b"{}",
            )
            for finding in found
            if finding.life in rows
        ]
        with transaction.atomic(using=get_settings().database):
            left = {entry.id for entry in closing.close(entries)}
        return [finding.life in rows and finding.id not in left for finding in found]

    def _take_out(self, partition: Partition, found: Sequence[Finding]) -> Done:
        """The outbox first: else the reconciler would send it again."""
        self._close(partition, found)
        return self._mend(partition, found)

    def _without_record(self, partition: Partition, found: Sequence[Finding]) -> Done:
        """A message of the outbox is sent again; the others end as a claim would end them."""
        rows = {message_id: row for (message_id, _), row in outbox_rows(found).items()}
        sent = {
            finding
            for finding in found
            if finding.id in rows and rows[finding.id].status == OutboxStatus.SENT
        }
        done: dict[bytes, bool] = {}
        for archive, findings in (
            ("none", [finding for finding in found if finding in sent]),
            ("", [finding for finding in found if finding not in sent]),
        ):
            if findings:
                mended = self._mend(partition, findings, archive=archive)
                done |= zip((finding.id for finding in findings), mended, strict=True)
        relay.send_again(self._store, [row for message_id, row in rows.items() if done[message_id]])
        return [done[finding.id] for finding in found]

    def _place(self, partition: Partition, found: Sequence[Finding]) -> Done:
        """Only the attempts and the outbox know when a message is due. One that could run too early
        ends as a dead letter."""
        rows = outbox_rows(found)
        due = {
            finding: b"%d" % rows[finding.life].due_at_ms
            for finding in found
            if finding.life in rows
        }
        return self._mend(partition, found, due)

    def _end_as_dead(self, partition: Partition, found: Sequence[Finding]) -> Done:
        """With the record that the outbox has; else only the stamp is known."""
        rows = outbox_rows(found)
        bare = bytes(6) + bytes((DURABLE | VERSION << 4 | Priority.NORMAL,))
        records = {
            finding: outbox.record_of(rows[finding.life])
            if finding.life in rows
            else finding.suspect().stamp + bare
            for finding in found
        }
        return self._mend(partition, found, records)

    def _send_again(self, _: Partition, found: Sequence[Finding]) -> Done:
        archived, rows = lives_of(found), outbox_rows(found)
        missing = [row for life, row in rows.items() if life not in archived]
        sent = relay.send_again(self._store, missing)
        return [finding.life in rows and rows[finding.life].pk in sent for finding in found]

    def _move(self, partition: Partition, found: Sequence[Finding]) -> Done:
        """From a partition where nobody looks for it to where it belongs today; not while it
        runs."""
        done = []
        for finding in found:
            count = self._store.topics.configured(finding.topic)
            target = (partition_of(finding.topic, finding.id, count), finding.id)
            stamp = finding.suspect().stamp
            carried = carry(self._store, (partition, finding.id), target, stamp=stamp)
            arrive(self._store, target, carried)
            done.append(carried.word == "MOVED")
        return done


def recorded(
    found: Sequence[Finding], repair_text: str, by: str, repair: Callable[[Sequence[Finding]], Done]
) -> Iterator[Finding]:
    """Repair, with a record of each. It is there before anything changes, and is deleted when
    nothing was changed."""
    text = repair_text[0].upper() + repair_text[1:] + "."
    # What it was about, as the page of the message looks for it.
    records = [
        OperatorAction.new(
            ACTION,
            by,
            text,
            selection=finding.kind.value,
            **(
                {"archived_id": finding.row}
                if finding.kind in OF_THE_LAKE
                else {"topic": finding.topic, "message_id": finding.message_id or None}
            ),
        )
        for finding in found
    ]
    done = repair(found)
    was = {record.pk for record, mended in zip(records, done, strict=True) if mended}
    actions = OperatorAction.objects.all()
    actions.filter(pk__in=was).update(count=1, finished_at=timezone.now())
    actions.filter(pk__in=[record.pk for record in records if record.pk not in was]).delete()
    return (finding for finding, mended in zip(found, done, strict=True) if mended)
