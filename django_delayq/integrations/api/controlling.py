"""Pauses and resumes topics, replays and discards dead letters over HTTP."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from ninja import Path

from ...archive.selection import Rows
from ...models import ApiRight
from ...operators import operations
from ...operators.replay import Replayed, discard, replay
from .bearer import caller_of
from .documents import (
    Changed,
    DeadLetterIds,
    DiscardOrder,
    PauseOrder,
    ReplayOrder,
    ResumeOrder,
    ShownTopic,
    TopicName,
)
from .idempotency import once
from .problems import answer
from .reading import open_dead_letters, topic_document
from .router import router
from .sending import REPEATABLE, parse_due_at


@router.post("/topics/{topic}/pause", tags=["operate"], response=ShownTopic)
def hold_topic(request: HttpRequest, topic: Path[TopicName], body: PauseOrder) -> HttpResponse:
    """Claim nothing more. Messages that are held go on."""
    caller = caller_of(request)
    whole = caller.topic(ApiRight.OPERATE, topic)
    until = None if body.until is None else parse_due_at(body.until)
    operations.pause(caller, whole, reason=body.reason, until=until)
    return answer(topic_document(caller, whole))


@router.post("/topics/{topic}/resume", tags=["operate"], response=ShownTopic)
def free_topic(request: HttpRequest, topic: Path[TopicName], body: ResumeOrder) -> HttpResponse:
    """Claim again."""
    caller = caller_of(request)
    whole = caller.topic(ApiRight.OPERATE, topic)
    operations.resume(caller, whole, reason=body.reason)
    return answer(topic_document(caller, whole))


@router.post(
    "/topics/{topic}/dead-letters/replay",
    tags=["operate"],
    response=Changed,
    openapi_extra=REPEATABLE,
)
@once
def replay_dead_letters(
    request: HttpRequest, topic: Path[TopicName], body: ReplayOrder
) -> HttpResponse:
    """Send dead letters again, each as a new durable message. The relay of a worker process brings
    them to Redis."""
    caller = caller_of(request)
    rows = _chosen(caller.topic(ApiRight.OPERATE, topic), body)
    by = caller.get_username()
    done = replay(rows, delay=body.delay, limit=body.limit, by=by, reason=body.reason)
    return answer(_changed(done))


@router.post(
    "/topics/{topic}/dead-letters/discard",
    tags=["operate"],
    response=Changed,
    openapi_extra=REPEATABLE,
)
@once
def discard_dead_letters(
    request: HttpRequest, topic: Path[TopicName], body: DiscardOrder
) -> HttpResponse:
    """Say that dead letters need no replay."""
    caller = caller_of(request)
    rows = _chosen(caller.topic(ApiRight.OPERATE, topic), body)
    done = discard(rows, limit=body.limit, by=caller.get_username(), reason=body.reason)
    return answer(_changed(done))


def _chosen(topic: str, body: DeadLetterIds) -> Rows:
    rows = open_dead_letters(topic)
    return rows if body.ids is None else rows.filter(pk__in=body.ids)


def _changed(done: Replayed) -> dict[str, object]:
    return {"count": done.count, "skipped": dict(done.skipped)}
