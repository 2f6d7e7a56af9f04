"""Repairs what an audit has found in Redis and the outbox: by the store's scripts, which check
again, and by the relay.

No message is lost, and none that has ended runs a second time: where the right repair is not known,
the message becomes a dead letter for an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from ...store.keys import partition_of
from ...store.store import RedisStore
from .findings import OF_THE_LAKE, Finding, FindingKind
from .second_look import by_partition, lives_of, outbox_rows, was_sent

ACTION = "audit repair"


def repaired(store: RedisStore, found: Sequence[Finding], by: str) -> list[Finding]:
    """Repair confirmed findings about Redis and the outbox. Returns those that were repaired: the
    others were not there any more, or cannot be repaired."""
    return [
        finding
        for kind in FindingKind
        for findings in by_partition(one for one in found if one.kind == kind).values()
        for batch in chunked(findings, BATCH)
        for finding in recorded(batch, by, partial(_SPECIAL.get(kind, _mend), store))
    ]


def recorded(
    found: Sequence[Finding], by: str, repair: Callable[[Sequence[Finding]], Sequence[Finding]]
) -> list[Finding]:
    """Repair, with a record of each. It is there before anything changes, and is deleted when
    nothing was changed. Returns what was repaired."""
    # What it was about, as the page of the message looks for it.
    records = {
        finding: OperatorAction.new(
            ACTION,
            by,
            finding.kind.repair,
            selection=finding.kind.value,
            **(
                {"archived_id": finding.row}
                if finding.kind in OF_THE_LAKE
                else {"topic": finding.partition.topic, "message_id": finding.name}
            ),
        ).pk
        for finding in dict.fromkeys(found)
    }
    done = repair(list(records))
    actions = OperatorAction.objects.filter(pk__in=list(records.values()))
    was = [records[finding] for finding in done]
    actions.filter(pk__in=was).update(count=1, finished_at=timezone.now())
    actions.exclude(pk__in=was).delete()
    return list(done)


# All of one kind, in one partition. Each returns what it has repaired.


def _mend(
    store: RedisStore,
    found: Sequence[Finding],
    arguments: Mapping[Finding, bytes] | None = None,
    archive: str = "",
) -> list[Finding]:
    """In Redis. `arguments`: what its damage needs, by the finding (see store/repair.py)."""
    if not found:
        return []
    suspects = [finding.suspect((arguments or {}).get(finding, b"")) for finding in found]
    words = store.repair.mend(found[0].partition, found[0].kind.damage, suspects, archive)
    return [finding for finding, mended in zip(found, words, strict=True) if mended]


def _close(store: RedisStore, found: Sequence[Finding]) -> list[Finding]:
    """As the archiver closes the rows of what it archives."""
    rows = outbox_rows(found)
    there = [finding for finding in found if finding.life in rows]
    records = [outbox.record_of(rows[finding.life]) for finding in there]
    entries = [
        Entry(b"", finding.partition, finding.life.id, State.ACKED, 0, record, b"", b"{}")
        for finding, record in zip(there, records, strict=True)
    ]
    with transaction.atomic(using=get_settings().database):
        left = {entry.id for entry in closing.close(entries)}
    return [finding for finding in there if finding.life.id not in left]


def _take_out(store: RedisStore, found: Sequence[Finding]) -> list[Finding]:
    """The outbox first: else the reconciler would send it again."""
    _close(store, found)
    return _mend(store, found)


def _without_record(store: RedisStore, found: Sequence[Finding]) -> list[Finding]:
    """A message of the outbox is sent again; the others end as a claim would end them."""
    sent = {
        life.id: row for life, row in outbox_rows(found).items() if row.status == OutboxStatus.SENT
    }
    promised = _mend(store, [one for one in found if one.life.id in sent], archive="none")
    relay.send_again(store, [sent[finding.life.id] for finding in promised])
    return promised + _mend(store, [one for one in found if one.life.id not in sent])


def _place(store: RedisStore, found: Sequence[Finding]) -> list[Finding]:
    """Only the attempts and the outbox know when a message is due. One that could run too early
    ends as a dead letter."""
    rows = outbox_rows(found)
    due = {one: b"%d" % rows[one.life].due_at_ms for one in found if one.life in rows}
    return _mend(store, found, due)


def _end_as_dead(store: RedisStore, found: Sequence[Finding]) -> list[Finding]:
    """With the record that the outbox has; else only the stamp is known."""
    rows = outbox_rows(found)
    bare = bytes(6) + bytes((DURABLE | VERSION << 4 | Priority.NORMAL,))
    records = {
        one: outbox.record_of(rows[one.life]) if one.life in rows else one.suspect().stamp + bare
        for one in found
    }
    return _mend(store, found, records)


def _send_again(store: RedisStore, found: Sequence[Finding]) -> list[Finding]:
    archived, rows, now_ms = lives_of(found), outbox_rows(found), store.now_us() // 1000
    missing = [row for life, row in rows.items() if life not in archived and was_sent(row, now_ms)]
    sent = relay.send_again(store, missing)
    return [one for one in found if one.life in rows and rows[one.life].pk in sent]


def _move(store: RedisStore, found: Sequence[Finding]) -> list[Finding]:
    """From a partition where nobody looks for it to where it belongs today; not while it runs."""
    moved = []
    for finding in found:
        place, message_id = finding.partition, finding.life.id
        count = store.topics.configured(place.topic)
        target = (partition_of(place.topic, message_id, count), message_id)
        carried = carry(store, (place, message_id), target, stamp=finding.suspect().stamp)
        arrive(store, target, carried)
        if carried.word == "MOVED":
            moved.append(finding)
    return moved


_SPECIAL: Mapping[FindingKind, Callable[[RedisStore, Sequence[Finding]], list[Finding]]] = {
    FindingKind.UNCLOSED: _close,
    FindingKind.LIVE_AGAIN: _take_out,
    FindingKind.NO_RECORD: _without_record,
    FindingKind.NO_PLACE: _place,
    FindingKind.WRONG_PARTITION: _move,
    FindingKind.LOST_END: _end_as_dead,
    FindingKind.LOST: _send_again,
}
