"""Signals for every change of state. Those of the worker's parts are in tests/worker."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction
from django.dispatch import Signal

from django_delayq import DuplicateMessage, pause_topic, purge_topic, resume_topic
from django_delayq.core import log, signals
from django_delayq.core.signals import Event
from django_delayq.store.store import RedisStore
from tests.app.tasks import close_order, record

Listen = Callable[[Signal], list[tuple[str, list[Event]]]]
ALL = [value for value in vars(signals).values() if isinstance(value, Signal)]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Connects a receiver and gives what it hears: the sender and the events of each batch."""
    connected: list[tuple[Signal, Any]] = []

    def connect(signal: Signal) -> list[tuple[str, list[Event]]]:
        heard: list[tuple[str, list[Event]]] = []

        def receive(sender: str, events: Any, **kwargs: Any) -> None:
            heard.append((sender, list(events)))

        signal.connect(receive)
        connected.append((signal, receive))
        return heard

    yield connect
    for signal, receive in connected:
        signal.disconnect(receive)


def test_there_is_one_for_every_change() -> None:
    assert len(ALL) == 16
    assert {id(signal) for signal in ALL} == {id(getattr(signals, name)) for name in (
        "enqueued", "rescheduled", "cancelled", "refused", "expired", "started", "acked",
        "retried", "snoozed", "put_off", "released", "dead", "reclaimed", "lease_lost",
        "topic_paused", "topic_resumed",
    )}  # fmt: skip


def test_enqueued_tells_topic_task_and_key(delayq: RedisStore, listen: Listen) -> None:
    heard = listen(signals.enqueued)
    handle = close_order.using(key="order:5").enqueue(5)
    assert heard == [("orders", [Event(handle.id, "tests.app.tasks.close_order", "order:5")])]


@pytest.mark.django_db(transaction=True)
def test_a_purge_tells_what_it_cancelled(delayq: RedisStore, listen: Listen) -> None:
    handles = record.enqueue_many([(n,) for n in range(3)])
    heard = listen(signals.cancelled)
    assert purge_topic(handles[0].topic, reason="closing") == 3
    assert [(event.id, event.reason) for _, events in heard for event in events] == [
        (handle.id, "closing")
        for handle in sorted(handles, key=lambda handle: (handle.due_ms or 0, handle.id))
    ]


def test_batch_is_one_signal(delayq: RedisStore, listen: Listen) -> None:
    heard = listen(signals.enqueued)
    handles = record.enqueue_many([(n,) for n in range(700)])
    assert [len(events) for _, events in heard] == [500, 200]
    assert [event.id for _, events in heard for event in events] == [
        handle.id for handle in handles
    ]


@pytest.mark.django_db(transaction=True)
def test_enqueued_comes_with_the_commit(delayq: RedisStore, listen: Listen) -> None:
    heard = listen(signals.enqueued)
    with transaction.atomic():
        record.enqueue(1)
        assert heard == []
    assert len(heard) == 1


@pytest.mark.parametrize("mode", ["raise", "keep"])
def test_what_was_not_stored_is_not_told(delayq: RedisStore, listen: Listen, mode: Any) -> None:
    keyed = record.using(key="k", delay=60, on_duplicate=mode)
    keyed.enqueue(1)
    heard = listen(signals.enqueued)
    try:
        keyed.enqueue(2)
    except DuplicateMessage:
        assert mode == "raise"
    assert heard == []


def test_what_replaces_is_told(delayq: RedisStore, listen: Listen) -> None:
    keyed = record.using(key="k", delay=60, on_duplicate="replace")
    heard = listen(signals.enqueued)
    for value in (1, 2):
        keyed.enqueue(value)
    assert len(heard) == 2


@pytest.mark.django_db(transaction=True)
def test_cancelled_and_rescheduled(delayq: RedisStore, listen: Listen) -> None:
    cancelled, rescheduled = listen(signals.cancelled), listen(signals.rescheduled)
    handle = close_order.using(key="order:5", delay=60).enqueue(5)
    close_order.reschedule(key="order:5", delay=90)
    assert (rescheduled, cancelled) == ([("orders", [Event(handle.id, key="order:5")])], [])
    close_order.cancel(id=handle.id)
    assert cancelled == [("orders", [Event(handle.id)])]


def test_topic_paused_and_resumed(delayq: RedisStore, listen: Listen) -> None:
    paused, resumed = listen(signals.topic_paused), listen(signals.topic_resumed)
    pause_topic("orders", by="ops", reason="SMTP")
    resume_topic("orders")
    assert paused == [("orders", [Event("", reason="SMTP")])]
    assert resumed == [("orders", [Event("")])]


@pytest.mark.parametrize("topic", ["orders", "".join(["or", "ders"]), signals.Topic("orders")])
def test_receiver_may_listen_to_one_topic(delayq: RedisStore, topic: str) -> None:
    """However its name has come about: Django compares senders by identity."""
    heard: list[Any] = []

    def receive(sender: signals.Topic, events: Any, **kwargs: Any) -> None:
        heard.extend((sender, event.task) for event in events)

    signals.enqueued.connect(receive, sender=topic)
    try:
        record.enqueue(1)
        close_order.enqueue(5)
        close_order.using(topic="".join(["ord", "ers"])).enqueue(6)
    finally:
        assert signals.enqueued.disconnect(receive, sender="".join(["order", "s"]))
    assert heard == [("orders", "tests.app.tasks.close_order")] * 2
    close_order.enqueue(7)
    assert len(heard) == 2


def test_there_is_one_topic_for_each_name() -> None:
    topic = signals.Topic("".join(["or", "ders"]))
    assert (
        topic
        is signals.Topic("orders")
        is signals.Topic(topic)
        is pickle.loads(pickle.dumps(topic))
    )
    assert (topic, f"{topic}", {topic: 1}["orders"]) == ("orders", "orders", 1)


@pytest.mark.parametrize("sender", [close_order, 5, object])
def test_a_sender_that_can_never_be_one_is_refused(sender: Any) -> None:
    for call in (signals.acked.connect, signals.acked.disconnect):
        with pytest.raises(
            TypeError,
            match=r"give the name of a topic\. event\.task names the task",
        ):
            call(lambda **kwargs: None, sender=sender)


def test_receiver_that_fails_is_logged_and_harms_nobody(
    delayq: RedisStore, listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**kwargs: Any) -> None:
        raise ValueError("a receiver's bug")

    signals.enqueued.connect(fail)
    heard = listen(signals.enqueued)
    try:
        with caplog.at_level(logging.ERROR, "delayq"):
            assert record.enqueue(1).outcome == "stored"
    finally:
        signals.enqueued.disconnect(fail)
    assert len(heard) == 1
    assert "ValueError: a receiver's bug" in caplog.text
    assert "in fail\n" in caplog.text  # with its traceback


def test_nothing_is_sent_without_events(listen: Listen) -> None:
    heard = listen(signals.dead)
    signals.report(signals.dead, "orders", [])
    assert heard == []


def test_event_needs_only_an_id() -> None:
    assert Event("x")[1:] == ("", None, 0, 0.0, 0.0, None, "", None)


# The log is a receiver


@pytest.fixture
def logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[pytest.LogCaptureFixture]:
    """The receivers that a project gets which shows debug lines."""
    monkeypatch.setattr(log, "_receivers", [])
    caplog.set_level(logging.DEBUG, "delayq")
    log.connect_receivers()
    yield caplog
    for name in log._LEVELS:
        getattr(signals, name).disconnect(dispatch_uid=f"delayq.log.{name}")


@pytest.mark.django_db(transaction=True)
def test_what_producers_do_is_logged(delayq: RedisStore, logged: pytest.LogCaptureFixture) -> None:
    handle = record.using(delay=60).enqueue(1)
    handle.cancel()
    assert [text.strip() for text in logged.messages] == [
        f"enqueued: topic default {handle.id}", f"cancelled: topic default {handle.id}",
    ]  # fmt: skip


def test_log_of_a_big_batch_is_one_line(
    delayq: RedisStore, logged: pytest.LogCaptureFixture
) -> None:
    record.enqueue_many([(n,) for n in range(400)])
    assert len(logged.messages) == 1
    assert logged.messages[0].strip().endswith("and 395 more")


def test_silent_log_costs_an_enqueue_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = len(signals.enqueued.receivers)
    caplog.set_level(logging.WARNING, "delayq")
    monkeypatch.setattr(log, "_receivers", [])
    log.connect_receivers()
    assert len(signals.enqueued.receivers) == before


@pytest.mark.django_db(transaction=True)
def test_what_operators_type_is_one_line_of_the_log(
    delayq: RedisStore, logged: pytest.LogCaptureFixture
) -> None:
    typed = "down\r\nERROR fake \x1b[2J \u2028 \u202e"
    pause_topic("orders", by="ops", reason=typed)
    close_order.using(delay=60).enqueue(5)
    purge_topic("orders", reason=typed)
    told = [text for text in logged.messages if "down" in text]
    assert told and all(text.isprintable() and "ERROR fake" in text for text in told)
