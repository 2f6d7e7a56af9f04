"""What happens, as one Redis stream."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq.core import signals
from django_delayq.core.signals import Event
from django_delayq.integrations import event_stream
from django_delayq.integrations.event_stream import NAMES, EventWriter
from django_delayq.store.keys import Partition, events_key
from tests.app.tasks import act, record
from tests.faults import unreachable
from tests.hands import Hands

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def writer(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[EventWriter]:
    settings.DELAYQ = {**settings.DELAYQ, "EVENT_STREAM": 10_000}
    monkeypatch.setattr(EventWriter, "_begin", lambda self: None)  # the test flushes
    writer = EventWriter()
    writer.connect()
    yield writer
    for name, receiver in zip(NAMES, writer._receivers, strict=True):
        uid = f"delayq event stream {name}"
        assert getattr(signals, name).disconnect(receiver, dispatch_uid=uid)


def entries(hands: Hands) -> list[dict[str, str]]:
    client = hands.store.client
    return [
        {name.decode(): value.decode() for name, value in fields.items()}
        for _, fields in client.redis.xrange(events_key(client.prefix))
    ]


def test_every_signal_is_known() -> None:
    declared = {name for name, value in vars(signals).items() if hasattr(value, "receivers")}
    assert declared == set(NAMES)


def test_the_life_of_a_message_can_be_read(hands: Hands, writer: EventWriter) -> None:
    handle = record.using(key="anna@example.com").enqueue(1)
    hands.work()
    writer.flush()
    found = entries(hands)
    assert [entry["event"] for entry in found] == ["enqueued", "started", "acked"]
    assert {entry["id"] for entry in found} == {handle.id}
    acked = found[-1]
    assert (acked["topic"], acked["task"], acked["attempt"]) == ("default", record.name, "1")
    assert float(acked["run_ms"]) >= 0
    assert "anna" not in str(found)


def test_of_an_error_only_the_class_is_told(hands: Hands, writer: EventWriter) -> None:
    act.enqueue("fail")
    hands.work(Partition(act.options.topic, 0))
    writer.flush()
    failed = [entry for entry in entries(hands) if entry["event"] in ("retried", "dead")]
    assert [":" in entry["reason"] for entry in failed] == [False]


@pytest.mark.parametrize(
    ("reason", "seen"),
    [
        ("poison", "poison"),
        ("", ""),
        ("StoreUnavailable: Redis is away", "StoreUnavailable"),
        ("Anna has moved", "told"),
        ("anna@example.com: has moved", "told"),
        ("Anna: has moved", "told"),
    ],
)
def test_no_sentence_is_told(hands: Hands, writer: EventWriter, reason: str, seen: str) -> None:
    """A task says such to Reject, and an operator when a topic is paused."""
    signals.report(signals.dead, "default", [Event("f" * 32, reason=reason)])
    writer.flush()
    assert [entry["reason"] for entry in entries(hands)] == [seen]


def test_while_redis_is_away_events_wait_and_none_is_doubled(
    hands: Hands, writer: EventWriter
) -> None:
    signals.report(signals.acked, "default", [Event(f"{n:032x}") for n in range(1_200)])
    with unreachable():
        writer.flush()
    writer.flush()
    assert len({entry["id"] for entry in entries(hands)}) == 1_200


def test_no_more_than_so_many_wait(
    hands: Hands,
    writer: EventWriter,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(event_stream, "MOST_WAITING", 10)
    signals.report(signals.acked, "default", [Event(f"{n:032x}") for n in range(12)])
    writer.flush()
    assert len(entries(hands)) == 10
    assert "2 events were not written" in caplog.text


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_writes_its_own_events_and_waits_for_no_thread_of_its_parent(
    hands: Hands, writer: EventWriter
) -> None:
    signals.report(signals.acked, "default", [Event("a" * 32)])
    with writer._lock:  # as by the thread that writes
        child = os.fork()
        if not child:
            try:
                signals.report(signals.acked, "default", [Event("b" * 32)])
                writer.flush()
            finally:
                os._exit(0)
        until = time.monotonic() + 10
        while not (ended := os.waitpid(child, os.WNOHANG)[0]) and time.monotonic() < until:
            time.sleep(0.01)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    writer.flush()
    assert [entry["id"][0] for entry in entries(hands)] == ["b", "a"]


def test_without_the_setting_nothing_is_imported() -> None:
    code = (
        "import django, sys; django.setup(); "
        "assert 'django_delayq.integrations.event_stream' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
