"""Traces and metrics by OpenTelemetry: a span for each enqueue, one for each run that is linked to
it, and the metrics of its conventions for messaging.

MIDDLEWARE names `trace_runs`, ENQUEUE_HOOKS `trace_enqueue`. Exporters and providers are the
project's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, NamedTuple

from asgiref.sync import iscoroutinefunction
from django.utils.decorators import sync_and_async_middleware
from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import Counter, Histogram
from opentelemetry.trace import Link, Span, SpanKind, StatusCode
from opentelemetry.util.types import AttributeValue

from ..core import signals
from ..core.exceptions import Reject, Retry, Snooze
from ..core.signals import Event, Topic
from ..core.times import utc
from ..core.version import PACKAGE_VERSION
from ..tasks import redaction
from ..tasks.context import CurrentMessage, running_together

Run = Callable[[CurrentMessage], Any]

_SYSTEM = {"messaging.system": "delayq"}

_tracer = trace.get_tracer("django_delayq", PACKAGE_VERSION)


class _Instruments(NamedTuple):
    sent: Counter
    consumed: Counter
    duration: Histogram
    lateness: Histogram


@lru_cache(maxsize=1)
def _instruments() -> _Instruments:
    """Made at the first use, when the project has set its provider."""
    meter = metrics.get_meter("django_delayq", PACKAGE_VERSION)
    signals.enqueued.connect(_count_sent, dispatch_uid="delayq-opentelemetry")
    return _Instruments(
        meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that Redis has taken."
        ),
        meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Runs of tasks that have begun."
        ),
        meter.create_histogram("messaging.process.duration", "s", "How long runs took."),
        meter.create_histogram("delayq.lateness", "s", "Start of a run minus its due time."),
    )


def _count_sent(sender: Topic, events: Sequence[Event], **kwargs: Any) -> None:
    _instruments().sent.add(
        len(events),
        {**_SYSTEM, "messaging.destination.name": str(sender), "messaging.operation.name": "send"},
    )


def trace_enqueue(topic: str, task: str) -> Mapping[str, str]:
    """For ENQUEUE_HOOKS: a producer span, whose context becomes headers of the message. Without a
    provider it does nothing."""
    _instruments()
    attributes = {
        **_SYSTEM,
        "messaging.destination.name": topic,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "delayq.task": task,
    }
    headers: dict[str, str] = {}
    with _tracer.start_as_current_span(
        f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes
    ):
        propagate.inject(headers)
    return headers


@sync_and_async_middleware
def trace_runs(run: Run) -> Run:
    """For MIDDLEWARE: a consumer span around each run, linked to the span of its enqueue. It is the
    root of a trace of its own: a message may run days after its request, and several times."""
    if iscoroutinefunction(run):

        async def traced_async(message: CurrentMessage) -> Any:
            with _span(message):
                return await run(message)

        return traced_async

    def traced(message: CurrentMessage) -> Any:
        with _span(message):
            return run(message)

    return traced


@contextmanager
def _span(message: CurrentMessage) -> Iterator[None]:
    producer = trace.get_current_span(propagate.extract(message.headers, Context()))
    links = [Link(producer.get_span_context())] if producer.get_span_context().is_valid else []
    attributes: dict[str, AttributeValue] = {
        **_SYSTEM,
        "messaging.destination.name": message.topic,
        "messaging.operation.name": "process",
        "delayq.task": message.task,
    }
    lateness = (datetime.now(tz=timezone.utc) - utc(message.due_at)).total_seconds()
    instruments = _instruments()
    instruments.consumed.add(1, attributes)
    instruments.lateness.record(max(0.0, lateness), attributes)
    begun = time.perf_counter()
    of_span = {
        **attributes,
        "messaging.operation.type": "process",
        "messaging.message.id": message.id,
        "delayq.attempt": message.attempt,
        "delayq.lateness": lateness,
    }
    try:
        with _tracer.start_as_current_span(
            f"process {message.topic}",
            Context(),
            SpanKind.CONSUMER,
            of_span,
            links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                attributes |= _noted(span, error, message)
                raise
    finally:
        instruments.duration.record(time.perf_counter() - begun, attributes)


def _noted(span: Span, error: BaseException, message: CurrentMessage) -> dict[str, AttributeValue]:
    """Write to the span how a run ended that raised; what metrics are to have of it. Snooze is no
    failure."""
    if isinstance(error, Snooze):
        span.set_attribute("delayq.result", "snoozed")
        return {}
    if isinstance(error, Reject):
        span.set_attribute("delayq.result", "rejected")
    elif isinstance(error, Retry):
        span.set_attribute("delayq.result", "retried")
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    leases = running_together.get() or [message.lease]
    span.record_exception(redaction.safe_error(error, redaction.hidden_in(*leases)))
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR, kind)
    return {"error.type": kind}
