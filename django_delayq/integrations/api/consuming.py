"""Consumes over HTTP: claims with long polls, and settles what was claimed."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hmac import compare_digest
from typing import Any

from django.http import HttpRequest, HttpResponse

from ...core import signals
from ...core.exceptions import (
    MissingKey,
    NewerRecord,
    Retry,
    StoreUnavailable,
    UndecodableMessage,
    UndecryptableMessage,
    UnknownTopic,
)
from ...core.message import Body, Record, State, decode_body, task_code_of
from ...core.times import duration_ms, shown_instant
from ...models import ApiRight
from ...outbox import relay
from ...store import get_store
from ...store.keys import Partition
from ...store.lease import HTTP, Lease, new_token
from ...store.store import RedisStore
from ...tasks import redaction, registry
from ...tasks.foreign import foreign_task
from ...tasks.naming import kept_task_name
from ...tasks.registry import is_declared
from ...tasks.task import Task
from ...worker.claim_hold import ClaimHold
from ...worker.claims import Claims
from ...worker.outcome import Outcome, Result
from ...worker.settler import call_of, report_outcomes, write_outcomes
from ...worker.shared import Shared
from .arrivals import Arrivals
from .bearer import Caller, bearer, caller_of
from .documents import Consume, Held, Leased, LongerLease, Nack, Release, Settled
from .idempotency import once
from .lease_tokens import HeldMessage, lease_token_of, read_lease_token
from .problems import Problem, answer
from .router import router
from .sending import REPEATABLE

logger = logging.getLogger("delayq.api")
#: Seconds between two looks of a process at the leases of a partition that have ended.
RECLAIM_EVERY = 1.0
#: How long a message of a newer version waits for a server that can read it.
NEWER_DELAY_MS = 5_000


@router.post("/consume", tags=["consume"], response=Leased)
def consume(request: HttpRequest, body: Consume) -> HttpResponse:
    """Claim due messages, and hold them for `ttr` seconds each: ack, nack, extend or release them
    by their leases."""
    caller = caller_of(request)
    topics = [caller.topic(ApiRight.CONSUME, name) for name in dict.fromkeys(body.topics)]
    if not all(map(is_declared, topics)):
        raise UnknownTopic

    def is_gone() -> bool:
        bearer.identify(request)  # a token may end while its holder waits
        return _has_hung_up(request.META.get("gunicorn.socket"))

    consumer = _consumer(get_store())
    return answer({"messages": consumer.consume(caller, topics, body.count, body.wait, is_gone)})


@router.post("/leases/ack", tags=["consume"], response=Settled, openapi_extra=REPEATABLE)
@once
def ack_lease(request: HttpRequest, body: Held) -> HttpResponse:
    """The message is done."""
    with _held(request, body.lease) as (shared, lease, task):
        outcome = Outcome(lease, task, Result.ACKED, time.monotonic())
        return _settle(shared, outcome)


@router.post("/leases/nack", tags=["consume"], response=Settled, openapi_extra=REPEATABLE)
@once
def nack_lease(request: HttpRequest, body: Nack) -> HttpResponse:
    """The attempt has failed. The message runs again after a wait, or is dead."""
    with _held(request, body.lease) as (shared, lease, task):
        outcome = Outcome(lease, task, Result.DEAD, time.monotonic(), "failed")
        outcome.error_class = body.error_class or "Failed"
        hidden = redaction.hidden_in(lease)
        outcome.error_message = redaction.without(body.error, hidden)
        outcome.traceback = redaction.without(body.traceback, hidden)
        failures = lease.attempts.attempt - lease.attempts.crashes
        most = _body_of(lease).max_attempts
        if not body.dead and task.tries_again(Retry(), failures, most):
            wait = task.options.backoff(failures) if body.delay is None else body.delay
            outcome.result, outcome.delay_ms = Result.RETRIED, duration_ms(wait)
        return _settle(shared, outcome)


@router.post("/leases/release", tags=["consume"], response=Settled, openapi_extra=REPEATABLE)
@once
def release_lease(request: HttpRequest, body: Release) -> HttpResponse:
    """Give the message back: this attempt does not count."""
    with _held(request, body.lease) as (shared, lease, task):
        outcome = Outcome(lease, task, Result.RELEASED, time.monotonic())
        if body.delay is not None:
            outcome.delay_ms = duration_ms(body.delay)
        return _settle(shared, outcome)


@router.post("/leases/extend", tags=["consume"], response=LongerLease)
def extend_lease(request: HttpRequest, body: Held) -> HttpResponse:
    """Hold the message for another `ttr` seconds."""
    with _held(request, body.lease) as (shared, lease, _task):
        if shared.store.extend(lease.partition, [lease]):
            raise _lost()
        until = shared.store.now_us() / 1000 + lease.ttr_ms
        return answer({"id": lease.id.hex(), "lease_until": shown_instant(until)})


class Consumer:
    """What the calls of one process share: limits, and who waits for which topic."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._claims = Claims(store, store.client.settings)
        self._arrivals = Arrivals(store)
        self._freed = threading.Event()
        self._hold = ClaimHold(relay.before_claims, self._freed.set)
        self._reclaimed_at: dict[Partition, float] = {}

    def consume(
        self,
        caller: Caller,
        topics: Sequence[str],
        count: int,
        wait: float,
        is_gone: Callable[[], bool],
    ) -> list[dict[str, Any]]:
        """Claim up to `count` messages. Waits for the first one at most `wait` seconds, and claims
        nothing for a caller who has gone meanwhile. Raises Problem 401 when the token has ended."""
        until = time.monotonic() + wait
        bell = self._arrivals.hang_up(topics) if wait else threading.Event()
        try:
            while True:
                leased, next_due_ms = self._claim(caller, topics, count)
                left = until - time.monotonic()
                if leased or left <= 0:
                    return leased
                pause = min(left, self._store.client.settings.sweep_interval)
                if next_due_ms is not None:
                    due_in = next_due_ms / 1000 - self._store.now_us() / 1_000_000
                    pause = min(pause, max(due_in, 0.001))
                self._arrivals.wait(pause, bell)
                if is_gone():
                    return []
        finally:
            self._arrivals.take_down(bell)

    def _claim(
        self, caller: Caller, topics: Sequence[str], count: int
    ) -> tuple[list[dict[str, Any]], int | None]:
        """The messages that are due now, and when the next is due."""
        leased: list[dict[str, Any]] = []
        next_due: list[int] = []
        try:
            while self._hold.must_wait():
                self._freed.clear()  # it is set since the last outage
                self._freed.wait(0.05)
            for partition in self._partitions(topics):
                if len(leased) >= count:
                    break
                self._reclaim(partition)
                token = new_token(HTTP, self._store.now_us() / 1000)
                claimed = self._claims.claim(partition, count - len(leased), token)
                if claimed.next_due_ms is not None and not claimed.unarchived:
                    next_due.append(claimed.next_due_ms)
                signals.report_ids(signals.expired, partition.topic, claimed.over, "expired")
                shared = _shared(self._store, caller)
                shared.clock.sync(claimed.now_us)
                for lease in claimed.leases:
                    leased += _leased(shared, caller, lease, claimed.now_us // 1000)
        except StoreUnavailable:
            self._hold.needed = True  # cancels may wait in the outbox until Redis is back
            if not leased:
                raise
        return leased, min(next_due, default=None)

    def _partitions(self, topics: Sequence[str]) -> Iterator[Partition]:
        for topic in topics:
            served = list(self._claims.served(topic))
            start = random.randrange(len(served))
            yield from (*served[start:], *served[:start])

    def _reclaim(self, partition: Partition) -> None:
        """Take back what other consumers have left. In a topic that workers serve they do it
        too."""
        now = time.monotonic()
        if now - self._reclaimed_at.get(partition, -RECLAIM_EVERY) < RECLAIM_EVERY:
            return
        self._reclaimed_at[partition] = now
        ends_ms = self._store.queries.oldest_lease_ms(partition)
        if ends_ms is None or ends_ms > self._store.now_us() / 1000:
            return
        back, dead, _ = self._store.reclaim(partition)
        for signal, ids, reason in (
            (signals.reclaimed, back, "lease ended"),
            (signals.dead, dead, "poison"),
        ):
            signals.report_ids(signal, partition.topic, ids, reason)


@lru_cache(maxsize=4)
def _consumer(store: RedisStore) -> Consumer:
    return Consumer(store)


def _has_hung_up(connection: socket.socket | None) -> bool:
    """Whether the caller has closed the connection, where the web server passes it on: gunicorn
    does. Elsewhere a message that is claimed for nobody comes back when its lease ends."""
    if connection is None:
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except (BlockingIOError, InterruptedError, ValueError):  # ValueError: TLS cannot peek
        return False
    except OSError:
        return True


def _shared(store: RedisStore, caller: Caller) -> Shared:
    """The state that settling needs. The caller takes the place of the worker."""
    return Shared(store, store.client.settings, caller.get_username(), (), clock=store.client.clock)


def _leased(shared: Shared, caller: Caller, lease: Lease, now_ms: int) -> list[dict[str, Any]]:
    """The message as the caller gets it; nothing for one that cannot be read, which is settled."""
    partition = lease.partition
    try:
        record = Record.decode(lease.record)
        body = decode_body(record.flags, record.body, lease.id)
    except UndecodableMessage as error:
        reason = "undecryptable" if isinstance(error, UndecryptableMessage) else "undecodable"
        outcome = Outcome(lease, None, Result.DEAD, time.monotonic(), reason)
        outcome.error_class, outcome.error_message = type(error).__name__, str(error)
        if isinstance(error, NewerRecord | MissingKey):
            outcome.result, outcome.delay_ms = Result.PUT_OFF, NEWER_DELAY_MS
        lost = write_outcomes(shared, call_of(outcome), partition, [outcome])
        report_outcomes(shared, partition.topic, [outcome], lost)
        return []
    task = _task_of(lease)
    lease.started_at = lease.claimed_at
    if signals.started.receivers:
        event = Outcome(lease, task, Result.ACKED, lease.started_at).event(shared.clock)
        signals.report(signals.started, partition.topic, [event])
    held = HeldMessage(partition, lease.id, lease.token, now_ms)
    return [
        {
            "id": lease.id.hex(),
            "topic": caller.shown(partition.topic),
            "task": task.name,
            "args": body.args,
            "kwargs": body.kwargs,
            "key": body.key,
            "headers": body.headers,
            "attempt": lease.attempts.attempt,
            "enqueued_at": shown_instant(record.enqueued_at_us / 1000),
            "due_at": shown_instant(lease.attempts.due_at_ms),
            "lease": lease_token_of(held, caller.pk),
            "lease_until": shown_instant(now_ms + lease.ttr_ms),
            "ttr": lease.ttr_ms / 1000,
        }
    ]


@contextmanager
def _held(request: HttpRequest, text: str) -> Iterator[tuple[Shared, Lease, Task[..., Any]]]:
    """The lease behind a token of the caller. Raises Problem 409 when it has ended, was settled, or
    is not the caller's: one answer for all."""
    caller = caller_of(request)
    held = read_lease_token(text, caller.pk)
    if held is None or not caller.sees(held.partition.topic):
        raise _lost()
    caller.topic(ApiRight.CONSUME, caller.shown(held.partition.topic))
    store = get_store()
    (found,) = store.queries.find(held.partition, [held.message_id])
    if found is None or found.state != State.LEASED or found.attempts is None:
        raise _lost()
    if not compare_digest(found.attempts.token, held.token):
        raise _lost()
    lease = Lease.found(held.partition, found.id, found.record, found.attempts)
    held_for_ms = max(0.0, store.now_us() / 1000 - held.claimed_ms)
    lease.started_at = time.monotonic() - held_for_ms / 1000
    yield _shared(store, caller), lease, _task_of(lease)


def _settle(shared: Shared, outcome: Outcome) -> HttpResponse:
    """Write the outcome. Raises Problem 409 when the lease has ended."""
    partition = outcome.lease.partition
    lost = write_outcomes(shared, call_of(outcome), partition, [outcome])
    report_outcomes(shared, partition.topic, [outcome], lost)
    if lost:
        raise _lost()
    state = outcome.result.value
    document: dict[str, Any] = {"id": outcome.lease.id.hex(), "state": state}
    if outcome.delay_ms is not None:
        document["due_in"] = outcome.delay_ms / 1000
    return answer(document)


def _task_of(lease: Lease) -> Task[..., Any]:
    """The declared task, else one that stands for it."""
    code = task_code_of(lease.record)
    task = registry.by_code.get(code)
    if task is None:
        task = foreign_task(lease.partition.topic, kept_task_name(lease.partition, code))
    return task


def _body_of(lease: Lease) -> Body:
    record = Record.decode(lease.record)
    return decode_body(record.flags, record.body, lease.id)


def _lost() -> Problem:
    return Problem(409, "lease-lost", "The lease has ended, or the message was settled.")
