"""Finds one message wherever it is: live in Redis or the outbox, or its newest row in the archive.
Never scans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, QuerySet

from ..client import finding
from ..core.exceptions import UndecodableMessage
from ..core.message import Message, State, check_key, ids_of_key, key_id, key_id_range, parse_id
from ..core.present import bare
from ..core.task_report import TaskProgress
from ..core.times import shown_instant
from ..models import ArchivedMessage, OutboxMessage, OutboxStatus
from ..models.one_statement import Query, read_together
from ..outbox.existing import check_existing, every_topic
from ..store import get_store
from ..tasks.naming import shown

Place = tuple[str, bytes]
"""A topic and an id."""


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Where a message is."""

    topic: str
    message_id: str
    """32 hexadecimal digits."""
    task: str
    key: str | None
    state: str
    at: datetime
    """When it is due, or for an archived one when it ended."""
    row: int | None = None
    """The row of the archive; None for a live one."""


@dataclass(frozen=True, kw_only=True)
class LiveMessage:
    """A live message."""

    message: Message
    problem: str = ""
    """Why it cannot be decoded; then the message has neither arguments nor headers."""
    outbox: str = ""
    """Status of its row in the outbox: waiting (only there), sent (in Redis too), or empty for
    none."""
    progress: TaskProgress | None = None
    """What its task has reported, while it runs."""


def by_id(message_id: str, topic: str = "", *, redis: bool = True) -> SearchResult | None:
    """The message with this id, in any topic unless one is given.

    Without `redis` only SQL is asked: the archive and what waits in the outbox. Raises
    InvalidMessage, UnknownTopic, or StoreUnavailable when Redis is to be asked and cannot.
    """
    identity = parse_id(message_id)
    there = _live([(name, identity) for name in _topics(topic, redis)], redis)
    waiting, ended = read_together(*_rows(topic, message_id=UUID(bytes=identity)))
    return next(iter(_hits(there, waiting, ended, redis)), None)


def by_key(key: str, topic: str = "", *, redis: bool = True) -> list[SearchResult]:
    """The message with this key in each topic, or in the one that is given; the live ones first.

    `redis` as in by_id(). Raises InvalidKey, UnknownTopic or StoreUnavailable.
    """
    return by_key_and(key, topic, redis=redis)[0]


def by_key_and(
    key: str, topic: str = "", *queries: Query, redis: bool = True
) -> tuple[list[SearchResult], Sequence[Any]]:
    """by_key(), and what these queries find: one statement reads all of it."""
    check_key(key)
    there = _live(ids_of_key(key, _topics(topic, redis)), redis)
    rows = (
        _rows(topic, message_id=UUID(bytes=key_id(topic, key)))
        if topic
        else _rows(message_id__range=key_id_range(key))
    )
    waiting, ended, *found = read_together(*rows, *queries)
    # Ids of other messages may lie between those of a key.
    waiting, ended = (
        [row for row in some if row.message_id.bytes == key_id(row.topic, key)]
        for some in (waiting, ended)
    )
    return _hits(there, waiting, ended, redis), found


def by_keys(keys: Sequence[tuple[str, str]]) -> list[SearchResult]:
    """The message with each of these topics and keys, some hundreds at most, the live ones first.
    The topics need not exist. Raises InvalidKey or StoreUnavailable."""
    places = [(topic, key_id(topic, check_key(key) or "")) for topic, key in keys]
    there = _live(places, redis=True)
    ids = [UUID(bytes=identity) for _, identity in places]
    waiting, ended = read_together(*_rows(message_id__in=ids))
    order = {place: at for at, place in enumerate(places)}

    def place_of(hit: SearchResult) -> tuple[bool, int]:
        return hit.row is not None, order[hit.topic, bytes.fromhex(hit.message_id)]

    return sorted(_hits(there, waiting, ended, redis=True), key=place_of)


def live(topic: str, message_id: str) -> LiveMessage | None:
    """The live message, also one that cannot be decoded. Raises UnknownTopic or InvalidMessage."""
    identity = parse_id(message_id)
    rows = OutboxMessage.objects.filter(message_id=UUID(bytes=identity), topic=topic)
    try:
        message = finding.get(topic, None, identity)
    except UndecodableMessage as error:
        # What is known of it without decoding it.
        if located := get_store().find(topic, identity):
            return LiveMessage(message=shown(*located), problem=str(error))
        if row := rows.first():
            known = bare(topic, identity, row.task, State("delayed"), row.due_at_ms)
            return LiveMessage(message=known, problem=str(error))
        return None
    if message is None:
        return None
    return LiveMessage(
        message=message,
        outbox=rows.values_list("status", flat=True).first() or "",
        progress=(
            get_store().reports.progress(topic, identity) if message.state == State.LEASED else None
        ),
    )


def archived_row(message_id: str) -> ArchivedMessage | None:
    """The row of the newest life with this id. Raises InvalidMessage."""
    return _rows(message_id=UUID(bytes=parse_id(message_id)))[1].first()


def _newest(rows: QuerySet[ArchivedMessage]) -> QuerySet[ArchivedMessage]:
    """Of these, the row of the newest life of each id: one step into the index for each of them."""
    lives = ArchivedMessage.objects.order_by()
    later = lives.filter(message_id=OuterRef("message_id"), enqueued_at__gt=OuterRef("enqueued_at"))
    return rows.order_by().filter(~Exists(later))


def _rows(topic: str = "", **ids: Any) -> tuple[QuerySet[OutboxMessage], QuerySet[ArchivedMessage]]:
    """Rows of the outbox, and the newest rows of the archive, with these ids, in a topic or in all.
    `ids`: a condition on message_id."""
    chosen = {**ids, "topic": topic} if topic else ids
    kept = OutboxMessage.objects.filter(**chosen)
    return kept, _newest(ArchivedMessage.objects.filter(**chosen))


def _topics(topic: str, redis: bool) -> Sequence[str]:
    """The topics in which Redis may have it, also topics that no code declares: they may still have
    messages. SQL finds ids in all topics."""
    if topic:
        return [check_existing(topic) if redis else topic]
    return every_topic(in_outbox=()) if redis else ()


def _live(places: Iterable[Place], redis: bool) -> dict[Place, SearchResult]:
    """Those that Redis has. It is asked before SQL: what ends in between is found there, and what
    the relay moves to it in between has a row of the outbox that says so."""
    found = get_store().find_many(places) if redis else ()
    return {(at.topic, one.id): live_hit(shown(at, one)) for at, one in found}


def _hits(
    there: Mapping[Place, SearchResult],
    waiting: Sequence[OutboxMessage],
    ended: Sequence[ArchivedMessage],
    redis: bool,
) -> list[SearchResult]:
    """The live ones first, by their topics. An id that is live has no row."""
    kept = {(row.topic, row.message_id.bytes): row for row in waiting}
    places = sorted({*there, *kept})
    hits = {place: there.get(place) or _kept_hit(kept.get(place), redis) for place in places}
    lives = [hit for hit in hits.values() if hit]
    live_ids = {identity for (_, identity), hit in hits.items() if hit}
    rows = [row for row in ended if row.message_id.bytes not in live_ids]
    return [*lives, *map(archived_hit, sorted(rows, key=lambda row: row.topic))]


def _kept_hit(row: OutboxMessage | None, redis: bool) -> SearchResult | None:
    """The hit of an outbox row whose message was not found in Redis, or None."""
    if row is None or row.status == OutboxStatus.CANCELLED or not row.record:
        return None
    if row.status == OutboxStatus.SENT:
        # It has ended and is not archived yet, or Redis has lost it.
        found = live(row.topic, row.message_id.hex) if redis else None
        return live_hit(found.message) if found else None
    is_due = row.due_at_ms <= get_store().now_us() // 1000
    return SearchResult(
        topic=row.topic,
        message_id=row.message_id.hex,
        task=row.task,
        key=row.key or None,
        state="ready" if is_due else "delayed",
        at=shown_instant(row.due_at_ms),
    )


def live_hit(message: Message) -> SearchResult:
    """Of a message that waits or runs."""
    return SearchResult(
        topic=message.topic,
        message_id=message.id,
        task=message.task,
        key=message.key,
        state=message.state.value,
        at=message.due_at,
    )


def archived_hit(row: ArchivedMessage) -> SearchResult:
    """Of a message that has ended."""
    return SearchResult(
        topic=row.topic,
        message_id=row.message_id.hex,
        task=row.task,
        key=row.key or None,
        state=row.state,
        at=row.finished_at,
        row=row.pk,
    )
