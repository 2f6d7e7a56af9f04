"""Enqueues, cancels and reschedules over HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from itertools import chain, islice
from operator import attrgetter
from typing import Any, cast

import msgspec
from django.http import HttpRequest, HttpResponse
from django.utils.dateparse import parse_datetime
from ninja import Path

from ...client import changes
from ...client.enqueue import enqueue_built, in_chunks
from ...core.exceptions import DuplicateMessage, InvalidMessage, UnknownTopic
from ...core.times import When, from_ms
from ...models import ApiRight
from ...store.client import BATCH
from ...store.store import base_mode, of_call
from ...tasks.builder import Item, build
from ...tasks.foreign import task_to_send
from ...tasks.options import CallOptions, ChangeOptions
from ...tasks.registry import is_declared
from ...tasks.task import Call, Receipt, Task
from .bearer import Caller, caller_of
from .documents import (
    ByName,
    CancelAnswer,
    NewMessage,
    NewTime,
    Rescheduled,
    Sent,
    SentBatch,
    TopicName,
    json_schema_of,
)
from .idempotency import KEPT, call_ids, once
from .problems import Problem, answer
from .router import router
from .strict_json import read_strict

NDJSON = "application/x-ndjson"
#: Redis decides at once, and no transaction of the caller's is open.
_AT_ONCE = ChangeOptions(after_commit=False)
#: The options of a message by their names, as using() takes them.
_OPTIONS = (
    "on_duplicate", "max_wait", "window", "priority", "ttr", "max_attempts", "expires", "durable",
)  # fmt: skip
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    "description": "The call is carried out once; the same call gets the first answer for a day.",
}
#: For the OpenAPI document of a call that may have an Idempotency-Key.
REPEATABLE = {"parameters": [_IDEMPOTENCY_KEY]}

_decode = msgspec.json.Decoder(NewMessage).decode
_given = attrgetter(*_OPTIONS)


def _documented(body: dict[str, Any], answer_type: type[msgspec.Struct], status: int) -> Any:
    """The OpenAPI part of a call whose body and answer msgspec knows."""
    content = {"application/json": {"schema": json_schema_of(answer_type)}}
    return {
        **REPEATABLE,
        "requestBody": {"required": True, "content": body},
        "responses": {status: {"description": "OK", "content": content}},
    }


@router.post(
    "/topics/{topic}/messages",
    tags=["send"],
    openapi_extra=_documented(
        {"application/json": {"schema": json_schema_of(NewMessage)}}, Sent, 201
    ),
)
@once
def enqueue_message(request: HttpRequest, topic: Path[TopicName]) -> HttpResponse:
    """Enqueue a message."""
    caller = caller_of(request)
    whole = _known_topic(caller.topic(ApiRight.SEND, topic))
    (fixed_id,) = call_ids(request, whole, 1)
    call = _call(whole, _read(request.body), fixed_id)
    (receipt,) = enqueue_built([_by_call([fixed_id], build([call]))])
    return answer(_sent(receipt, fixed_id), 201)


@router.post(
    "/topics/{topic}/messages/batch",
    tags=["send"],
    openapi_extra=_documented(
        {
            NDJSON: {
                "schema": {
                    "type": "array",
                    "description": "Each message on a line of its own.",
                    "minItems": 1,
                    "maxItems": BATCH,
                    "items": json_schema_of(NewMessage),
                }
            }
        },
        SentBatch,
        200,
    ),
)
@once
def enqueue_batch(request: HttpRequest, topic: Path[TopicName]) -> HttpResponse:
    """Enqueue up to 500 messages: one line of JSON each, as for a single one. When one is refused,
    none is sent; a duplicate is an outcome of its own."""
    caller = caller_of(request)
    whole = _known_topic(caller.topic(ApiRight.SEND, topic))
    lines = request.body.splitlines()
    if not 1 <= len(lines) <= BATCH:
        raise Problem(422, "invalid", f"A batch has 1 to {BATCH} lines, not {len(lines):,}.")
    ids = call_ids(request, whole, len(lines))
    items = _items(whole, lines, ids, caller)
    with suppress(DuplicateMessage):  # each message says of itself that it is one
        enqueue_built(items)
    sent: list[Sent] = []
    for item, fixed_id in zip(chain.from_iterable(items), ids, strict=True):
        sent.append(_sent(item.receipt, fixed_id))
        if sent[-1].outcome == "kept" and base_mode(item.message.mode) == "raise":
            sent[-1].outcome = "duplicate"
    return answer(SentBatch(messages=sent))


@router.post(
    "/topics/{topic}/cancel", tags=["send"], response=CancelAnswer, openapi_extra=REPEATABLE
)
@once
def cancel_message(request: HttpRequest, topic: Path[TopicName], body: ByName) -> HttpResponse:
    """Take a waiting message back."""
    whole = caller_of(request).topic(ApiRight.SEND, topic)
    changes.cancel(whole, body.key, body.id, _AT_ONCE)
    return answer({"state": "cancelled"})


@router.post(
    "/topics/{topic}/reschedule", tags=["send"], response=Rescheduled, openapi_extra=REPEATABLE
)
@once
def reschedule_message(request: HttpRequest, topic: Path[TopicName], body: NewTime) -> HttpResponse:
    """Give a waiting message another due time."""
    whole = caller_of(request).topic(ApiRight.SEND, topic)
    when = When.given(body.delay, None if body.due_at is None else parse_due_at(body.due_at))
    due_at = changes.reschedule(whole, body.key, body.id, when, _AT_ONCE)
    return answer({"due_at": due_at})


def _items(
    topic: str, lines: Sequence[bytes], ids: Sequence[bytes | None], caller: Caller
) -> list[list[Item]]:
    """What the lines of a batch say, in chunks for enqueue_built(). Raises Problem with the number
    of the line."""
    calls: list[Call] = []
    try:
        for line, fixed_id in zip(lines, ids, strict=True):
            calls.append(_call(topic, _read(line), fixed_id))
        places = iter(ids)
        return [_by_call(islice(places, len(chunk)), build(chunk)) for chunk in in_chunks(calls)]
    except Problem as problem:
        problem.members["line"] = len(calls) + 1
        raise
    except InvalidMessage as error:
        raise _of_line(error, calls, len(lines), caller.namespace) from error


def parse_due_at(text: str) -> datetime:
    """The datetime of a caller. Raises InvalidMessage."""
    try:
        parsed = parse_datetime(text)
    except ValueError:
        parsed = None
    if parsed is None:
        raise InvalidMessage(f"{text!r:.80} is no date and time, such as 2026-01-31T12:00:00Z.")
    return parsed


def _known_topic(topic: str) -> str:
    """The topic, if a message may be sent there. Raises UnknownTopic."""
    if not is_declared(topic):
        raise UnknownTopic
    return topic


def _read(raw: bytes) -> NewMessage:
    try:
        return read_strict(raw, _decode)
    except msgspec.ValidationError as error:
        raise Problem(422, "invalid", f"{error}") from None


def _call(topic: str, message: NewMessage, fixed_id: bytes | None = None) -> Call:
    """What the client of this package would be called with. `fixed_id`: of a message that would
    get a fresh one. Raises InvalidMessage."""
    task = task_to_send(topic, message.task)
    given = _given(message)
    if message.headers is None and message.id is None:
        task = _with_options(task, given)
    else:
        extra: CallOptions = {"headers": message.headers or {}, "id": message.id}
        task = _changed(task, given, extra)
    if fixed_id is not None and not (message.id or message.key or message.window or _has_key(task)):
        task = _stored_once(task, fixed_id)
    call = Call(task, message.args, message.kwargs)
    if message.key is None and message.delay is None and message.due_at is None:
        return call
    due_at = None if message.due_at is None else parse_due_at(message.due_at)
    return call.using(key=message.key, delay=message.delay, due_at=due_at)


def _has_key(task: Task[..., Any]) -> bool:
    return bool(task.options.key or task.options.key_maker)


@lru_cache(maxsize=1024)
def _with_options(task: Task[..., Any], given: tuple[Any, ...]) -> Task[..., Any]:
    """A copy of the task, made once for all messages with the same options."""
    return _changed(task, given, {})


def _changed(task: Task[..., Any], given: tuple[Any, ...], extra: CallOptions) -> Task[..., Any]:
    options = dict(zip(_OPTIONS, given, strict=True))
    if not options["durable"]:
        options["after_commit"] = False  # a durable message is its own transaction
    changed = {name: value for name, value in {**options, **extra}.items() if value is not None}
    return Task(task.definition, task.options.changed(cast(CallOptions, changed)))


def _stored_once(task: Task[..., Any], identity: bytes) -> Task[..., Any]:
    """A copy of the task whose message is stored once under the id, also when it has ended
    meanwhile. What it says now does not count: hooks write other headers the second time."""
    options = replace(
        task.options,
        id=identity,
        on_duplicate="keep",
        max_wait_ms=None,
        window_ms=1000 * KEPT,
    )
    return Task(task.definition, options)


def _by_call(ids: Iterable[bytes | None], items: Sequence[Item]) -> list[Item]:
    """The same items; those of a call with an Idempotency-Key that have another id than the call
    gives them are stored once all the same. SQL does not keep that of what goes to the outbox."""
    return [
        item
        if call is None or item.message.id == call or item.template.durable
        else item._replace(
            message=item.message._replace(mode=of_call(item.message.mode, call, 1000 * KEPT))
        )
        for call, item in zip(ids, items, strict=True)
    ]


def _of_line(error: InvalidMessage, calls: Sequence[Call], lines: int, namespace: str) -> Problem:
    """The refusal of a batch, with the line that it is about."""
    line = len(calls) + 1
    if len(calls) == lines:  # all could be read: one of them does not fit its task
        for line, call in enumerate(calls, 1):  # noqa: B007 - it is the line that is left
            try:
                build([call])
            except InvalidMessage as of_line:
                error = of_line
                break
    problem = Problem.of(error, namespace)
    problem.members["line"] = line
    return problem


def _sent(receipt: Receipt, fixed_id: bytes | None) -> Sent:
    sent = Sent(id=receipt.id, outcome=receipt.outcome)
    if receipt.identity == fixed_id and sent.outcome == "kept":
        sent.outcome = "stored"  # by this call, the first time
    if receipt.due_ms is not None:
        sent.due_at = from_ms(receipt.due_ms).isoformat()
    return sent
