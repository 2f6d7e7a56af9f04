"""Spans of enqueues and runs, linked to each other, and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from django_delayq.store.keys import Partition
from django_delayq.worker.batches.batch_executor import BatchExecutor, Gathered
from tests.app.batch_tasks import then
from tests.app.tasks import act, act_async, close_order, record
from tests.hands import ORDERS, Hands

MODES = Partition("modes", 0)


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """Providers can be set once in a process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture(scope="module")
def reader() -> InMemoryMetricReader:
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    return reader


@pytest.fixture
def traced(
    exporter: InMemorySpanExporter, reader: InMemoryMetricReader, settings: Any
) -> Iterator[InMemorySpanExporter]:
    """For usefixtures before `hands`: a project that traces."""
    module = "django_delayq.integrations.opentelemetry"
    settings.DELAYQ = {
        **settings.DELAYQ,
        "MIDDLEWARE": [f"{module}.trace_runs"],
        "ENQUEUE_HOOKS": [f"{module}.trace_enqueue"],
    }
    exporter.clear()
    yield exporter


def spans(traced: InMemorySpanExporter, kind: SpanKind) -> list[ReadableSpan]:
    return [span for span in traced.get_finished_spans() if span.kind == kind]


def points(reader: InMemoryMetricReader, name: str) -> list[Any]:
    """The data points of a metric."""
    data = reader.get_metrics_data()
    return [
        point
        for resource in (data.resource_metrics if data else [])
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]


def test_a_run_is_linked_to_its_enqueue_in_a_trace_of_its_own(
    traced: InMemorySpanExporter, hands: Hands
) -> None:
    with trace.get_tracer("shop").start_as_current_span("request") as request:
        handle = close_order.enqueue(7)
    hands.work(ORDERS)
    (send,), (run,) = spans(traced, SpanKind.PRODUCER), spans(traced, SpanKind.CONSUMER)
    assert send.parent is not None
    assert send.parent.span_id == request.get_span_context().span_id
    assert [link.context.span_id for link in run.links] == [send.context.span_id]
    assert run.parent is None and run.context.trace_id != send.context.trace_id
    assert (send.name, run.name) == ("send orders", "process orders")
    assert run.attributes is not None and send.attributes is not None
    assert send.attributes["messaging.operation.type"] == "send"
    expected = {
        "messaging.system": "delayq",
        "messaging.destination.name": "orders",
        "messaging.operation.type": "process",
        "messaging.message.id": handle.id,
        "delayq.task": "tests.app.tasks.close_order",
        "delayq.attempt": 1,
    }
    assert expected.items() <= dict(run.attributes).items()
    assert run.status.status_code is StatusCode.UNSET


def test_each_attempt_is_a_span_and_what_it_enqueues_belongs_to_it(
    traced: InMemorySpanExporter, hands: Hands, declared: dict[str, Any]
) -> None:
    from django_delayq import delayed_task

    @delayed_task(name="parent.task")
    def parent() -> None:
        record.enqueue(1)

    parent.enqueue()
    hands.work()
    (run,) = spans(traced, SpanKind.CONSUMER)
    *_, of_child = spans(traced, SpanKind.PRODUCER)
    assert of_child.parent is not None and of_child.parent.span_id == run.context.span_id


@pytest.mark.parametrize("task", [act, act_async])
@pytest.mark.parametrize(
    ("mode", "error", "result"),
    [
        ("return", None, None),
        ("fail", "ValueError", None),
        ("retry", "django_delayq.core.exceptions.Retry", "retried"),
        ("reject", "django_delayq.core.exceptions.Reject", "rejected"),
        ("snooze", None, "snoozed"),
    ],
)
def test_how_a_run_ended_is_in_its_span(
    traced: InMemorySpanExporter,
    hands: Hands,
    task: Any,
    mode: str,
    error: str | None,
    result: str | None,
) -> None:
    task.enqueue(mode)
    leases = hands.claim(MODES)
    if task is act:
        hands.run(*leases)
    else:
        asyncio.run(hands.executor.run_async(leases[0]))
        hands.settler.run_once()
    (run,) = spans(traced, SpanKind.CONSUMER)
    assert run.attributes is not None
    assert run.status.status_code is (StatusCode.ERROR if error else StatusCode.UNSET)
    assert run.attributes.get("error.type") == error
    assert run.attributes.get("delayq.result") == result
    assert len(run.events) == bool(error)


def test_a_message_that_was_enqueued_without_a_span_has_no_link(
    traced: InMemorySpanExporter, hands: Hands, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "ENQUEUE_HOOKS": []}
    record.enqueue(1)
    hands.work()
    (run,) = spans(traced, SpanKind.CONSUMER)
    assert run.links == ()


def test_metrics_follow_the_conventions(
    traced: InMemorySpanExporter, reader: InMemoryMetricReader, hands: Hands
) -> None:
    def total(name: str) -> float:
        return sum(getattr(p, "value", 0) or getattr(p, "count", 0) for p in points(reader, name))

    names = (
        "messaging.client.sent.messages",
        "messaging.client.consumed.messages",
        "messaging.process.duration",
        "delayq.lateness",
    )
    record.enqueue(0)
    hands.work()
    before = [total(name) for name in names]
    record.enqueue_many([(n,) for n in range(3)])
    hands.work()
    act.enqueue("fail")
    hands.work(MODES)
    assert [total(name) for name in names] == [value + 4 for value in before]
    errors = [dict(p.attributes).get("error.type") for p in points(reader, names[2])]
    assert "ValueError" in errors


def test_who_does_not_name_it_imports_nothing() -> None:
    import subprocess
    import sys

    code = (
        "import os, sys; os.environ['DJANGO_SETTINGS_MODULE'] = 'tests.acceptance.settings'\n"
        "import django; django.setup()\n"
        "from django_delayq.management.commands import run_delayq\n"
        "names = ('sentry_sdk', 'prometheus_client', 'django_delayq.integrations.opentelemetry', "
        "'django_delayq.integrations.run_counts', 'django_delayq.stats.alerts.alerter')\n"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("traced")
def test_the_span_of_a_batch_tells_no_secret_of_any_message(
    gather_cards: Any, hands: Hands, exporter: InMemorySpanExporter
) -> None:
    def refuse(messages: Any) -> None:
        raise SystemExit(", ".join(message.args[0] for message in messages))

    gather_cards.enqueue_many([("4111-2222",), ("4111-3333",)])
    gathered = Gathered(gather_cards, 0.0)
    gathered.leases = hands.claim(Partition("gathers", 0))
    then.append(refuse)
    BatchExecutor(hands.shared, hands.executor, hands.settler.put_all).run(gathered)
    then.clear()
    (span,) = spans(exporter, SpanKind.CONSUMER)
    assert "[redacted], [redacted]" in span.to_json()
    assert "4111" not in span.to_json()
