"""Reads topics, messages and dead letters over HTTP."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Annotated, Any

import msgspec
from django.db import Error, connections
from django.http import HttpRequest, HttpResponse
from ninja import Path, Query

from ...archive.endings import find_end
from ...archive.row_arguments import visible_arguments
from ...archive.selection import Rows, Selection
from ...client import finding
from ...client.topics import list_messages, topic_stats
from ...core.conf import get_settings
from ...core.cursors import cursor_of, numbers_of
from ...core.exceptions import DelayQError
from ...core.message import Message
from ...core.times import utc
from ...models import ApiRight, ArchivedMessage
from ...store import get_store
from ...store.keys import Partition
from ...store.topic_state import TopicStats, stats_of_topic
from ...tasks.redaction import shown_message
from .bearer import Caller, caller_of
from .documents import (
    DeadLetterPage,
    EndedMessage,
    Health,
    MessageId,
    ShownMessage,
    ShownTopic,
    TopicList,
    TopicName,
    Totals,
    Waiting,
)
from .problems import Problem, answer
from .router import router

logger = logging.getLogger("delayq.api")
#: Topics in one answer.
MOST_TOPICS = 1000
_Limit = Annotated[int, Query(ge=1, le=500)]
_Cursor = Annotated[str | None, Query(max_length=100)]


@router.get("/topics", tags=["inspect"], response=TopicList)
def list_topics(request: HttpRequest) -> HttpResponse:
    """The topics of the token that have, or had, messages: the first 1,000 by name."""
    caller = _reader(request)
    figures = _figures(caller)
    return answer({"topics": figures[:MOST_TOPICS], "more": len(figures) > MOST_TOPICS})


@router.get("/topics/{topic}", tags=["inspect"], response=ShownTopic)
def read_topic(request: HttpRequest, topic: Path[TopicName]) -> HttpResponse:
    """The sizes of one topic."""
    caller = caller_of(request)
    return answer(topic_document(caller, caller.topic(ApiRight.INSPECT, topic)))


@router.get("/stats", tags=["inspect"], response=Totals)
def read_totals(request: HttpRequest) -> HttpResponse:
    """Sums over all topics of the token."""
    figures = _figures(_reader(request))
    counters: Counter[str] = Counter()
    for each in figures:
        counters.update(each["counters"])
    sums = {name: sum(each[name] for each in figures) for name in ("delayed", "backlog", "leased")}
    lag = max((each["lag"] for each in figures), default=0.0)
    return answer({"topics": len(figures), **sums, "lag": lag, "counters": counters})


@router.get("/topics/{topic}/messages", tags=["inspect"], response=Waiting)
def peek_messages(
    request: HttpRequest,
    topic: Path[TopicName],
    limit: _Limit = 100,
    cursor: _Cursor = None,
) -> HttpResponse:
    """One page of waiting messages by due time. Nothing is claimed."""
    caller = caller_of(request)
    page = list_messages(caller.topic(ApiRight.INSPECT, topic), cursor=cursor, limit=limit)
    messages = [_shown_message(caller, message) for message in page.messages]
    return answer({"messages": messages, "cursor": page.cursor})


@router.get("/topics/{topic}/message", tags=["inspect"], response=ShownMessage | EndedMessage)
def read_message(
    request: HttpRequest,
    topic: Path[TopicName],
    id: Annotated[MessageId | None, Query()] = None,  # noqa: A002 - the name in the URL
    key: Annotated[str | None, Query(min_length=1, max_length=256)] = None,
) -> HttpResponse:
    """The message with this id or key: live, or as it has ended."""
    caller = caller_of(request)
    whole = caller.topic(ApiRight.INSPECT, topic)
    target = finding.Target.of(whole, key, id)
    live = finding.get(whole, key, id)
    if live is not None:
        return answer(_shown_message(caller, live))
    end = find_end(whole, target.identity)
    if end is None:
        raise target.not_live()
    return answer(_shown_row(caller, end.row))


@router.get("/topics/{topic}/dead-letters", tags=["inspect"], response=DeadLetterPage)
def list_dead_letters(
    request: HttpRequest,
    topic: Path[TopicName],
    limit: _Limit = 100,
    cursor: _Cursor = None,
) -> HttpResponse:
    """One page of the dead letters that were neither replayed nor discarded, the newest first."""
    caller = caller_of(request)
    rows = open_dead_letters(caller.topic(ApiRight.INSPECT, topic)).order_by("-pk")
    if cursor is not None:
        rows = rows.filter(pk__lt=numbers_of(cursor, 2**63)[0])
    page = list(rows[:limit])
    after = cursor_of(page[-1].pk) if len(page) == limit else None
    return answer({"messages": [_shown_row(caller, row) for row in page], "cursor": after})


@router.get("/health", tags=["inspect"], response={200: Health, 503: Health}, auth=None)
def read_health(request: HttpRequest) -> HttpResponse:
    """Whether Redis and the database answer. Needs no token."""
    found = {"redis": True, "database": True}
    try:
        get_store().clock_ms()
    except DelayQError:
        found["redis"] = False
    try:
        with connections[get_settings().database].cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:
        found["database"] = False
    return answer(found, 200 if all(found.values()) else 503)


def topic_document(caller: Caller, whole: str) -> dict[str, Any]:
    """The figures of a topic as the caller gets them. Raises UnknownTopic."""
    return _shown_topic(caller, topic_stats(whole))


def open_dead_letters(topic: str) -> Rows:
    """The dead letters of a topic that were neither replayed nor discarded."""
    return Selection(open=True, topic=topic).rows()


def _reader(request: HttpRequest) -> Caller:
    """A caller who may read. Raises Problem 403."""
    caller = caller_of(request)
    if ApiRight.INSPECT not in caller.rights:
        raise Problem(403, "forbidden", "This token may not inspect.")
    return caller


def _figures(caller: Caller) -> list[dict[str, Any]]:
    """The figures of all topics of the caller, by name."""
    store = get_store()
    by_topic: dict[str, list[Partition]] = {}
    for partition in store.topics.used_partitions():
        if caller.sees(partition.topic):
            by_topic.setdefault(partition.topic, []).append(partition)
    used = [partition for partitions in by_topic.values() for partition in partitions]
    parts = iter(store.queries.all_stats(used) if used else ())
    return [
        _shown_topic(caller, stats_of_topic(topic, [next(parts) for _ in partitions]))
        for topic, partitions in by_topic.items()
    ]


def _shown_topic(caller: Caller, stats: TopicStats) -> dict[str, Any]:
    paused = stats.paused
    return {
        "topic": caller.shown(stats.topic),
        "delayed": stats.delayed,
        "backlog": stats.backlog,
        "leased": stats.leased,
        "finished": stats.finished,
        "lag": round(stats.lag, 3),
        "next_due_at": stats.next_due_at,
        "paused": paused
        and {
            "by": paused.by,
            "reason": paused.reason,
            "since": paused.since,
            "until": paused.until,
        },
        "counters": stats.counters,
    }


def _shown_message(caller: Caller, message: Message) -> dict[str, Any]:
    message = shown_message(message)
    return {
        "id": message.id,
        "topic": caller.shown(message.topic),
        "task": message.task,
        "state": message.state.value,
        "args": list(message.args),
        "kwargs": dict(message.kwargs),
        "key": message.key,
        "headers": dict(message.headers),
        "priority": message.priority.name.lower(),
        "attempt": message.attempt,
        "enqueued_at": message.enqueued_at,
        "due_at": message.due_at,
        "expires_at": message.expires_at,
    }


def _shown_row(caller: Caller, row: ArchivedMessage) -> dict[str, Any]:
    arguments: dict[str, Any]
    try:
        seen = visible_arguments(row)
        arguments = {"args": seen.args, "kwargs": seen.kwargs}
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        arguments = {"args": None, "kwargs": None}
    return {
        "archived_id": row.pk or 0,
        "id": row.message_id.hex,
        "topic": caller.shown(row.topic),
        "task": row.task,
        "state": row.state,
        "key": row.key or None,
        **arguments,
        "attempt": row.attempts,
        "reason": row.reason,
        "error_class": row.error_class,
        "error": row.error_message,
        "finished_at": utc(row.finished_at),
        "replayed": row.replayed_at is not None,
        "discarded": row.discarded_at is not None,
    }
