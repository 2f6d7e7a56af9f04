"""Hints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_delayq.client.topics import pause_topic, resume_topic
from django_delayq.core.exceptions import DelayQError
from django_delayq.store.keys import Partition, wakeups_channel
from django_delayq.store.store import RedisStore
from django_delayq.worker.fleet import Fleet
from django_delayq.worker.listener import Listener
from django_delayq.worker.shared import Shared
from tests.app.tasks import noop
from tests.worker.moving import LONG_AGO

Hints = list[tuple[Partition | None, float]]


@pytest.fixture
def hints() -> Hints:
    return []


@pytest.fixture
def listener(shared: Shared, hints: Hints) -> Iterator[Listener]:
    """Connected: the first run has subscribed."""
    listener = Listener(
        shared,
        Fleet(shared),
        lambda partition, due_ms: hints.append((partition, due_ms)),
        lambda: None,
        lambda: None,
        lambda message_id: None,
    )
    listener._stream.connect()
    shared.store.client.command("PUBLISH", wakeups_channel(shared.store.client.prefix), "warm:0:1")
    hear(listener, hints)
    hints.clear()
    yield listener
    listener._stream.close()


def hear(listener: Listener, hints: Hints) -> None:
    """Run until something was heard."""
    for _ in range(10):
        if hints:
            return
        assert listener.run_once() == 0.0


def test_new_connection_is_a_hint_for_everything(shared: Shared, hints: Hints) -> None:
    listener = Listener(
        shared,
        Fleet(shared),
        lambda partition, due_ms: hints.append((partition, due_ms)),
        lambda: None,
        lambda: None,
        lambda message_id: None,
    )
    shared.store.client.command("PUBLISH", wakeups_channel(shared.store.client.prefix), "lost:0:1")
    listener._stream.connect()
    listener._stream.close()
    noop.enqueue()
    listener._stream.read = lambda seconds: None  # type: ignore[method-assign]
    listener.run_once()
    assert hints == [(None, 0)]
    listener._stream.close()


def test_earlier_head_is_heard(listener: Listener, hints: Hints) -> None:
    handle = noop.using(delay=60).enqueue()
    hear(listener, hints)
    assert hints == [(Partition("default", 0), handle.due_ms)]


def test_later_message_is_no_hint(listener: Listener, hints: Hints) -> None:
    noop.using(delay=60).enqueue()
    noop.using(delay=90).enqueue()
    early = noop.using(delay=5).enqueue()
    hear(listener, hints)
    hear(listener, hints)
    listener.run_once()
    assert [due for _, due in hints][1:] == [early.due_ms]


def test_cancel_of_a_running_message_is_heard(shared: Shared, delayq: RedisStore) -> None:
    heard: Hints = []
    listener = Listener(
        shared,
        Fleet(shared),
        lambda partition, due_ms: None,
        lambda: None,
        lambda: None,
        lambda message_id: heard.append((None, int.from_bytes(message_id, "big"))),
    )
    listener._stream.connect()
    handle = noop.using(due_at=LONG_AGO).enqueue()
    delayq.claim(Partition("default", 0), 1)
    assert delayq.cancel_running("default", handle.identity)
    hear(listener, heard)
    assert heard == [(None, int(handle.id, 16))]
    listener._stream.close()


def test_resumed_topic_is_heard(listener: Listener, hints: Hints) -> None:
    pause_topic("default")
    resume_topic("default")
    hear(listener, hints)
    assert hints == [(Partition("default", 0), 0)]


@pytest.mark.parametrize(
    "nonsense", ["", "x", "default:0", "default:x:1", "default:0:soon", "a:0:-1", b"\xff\xfe"]
)
def test_nonsense_is_ignored(
    listener: Listener, hints: Hints, delayq: RedisStore, nonsense: str | bytes
) -> None:
    delayq.client.command("PUBLISH", wakeups_channel(delayq.client.prefix), nonsense)
    delayq.client.command("PUBLISH", wakeups_channel(delayq.client.prefix), "fine:3:5")
    hear(listener, hints)
    assert hints == [(Partition("fine", 3), 5)]


def test_broken_connection_is_made_anew_and_sweeps(
    listener: Listener, hints: Hints, delayq: RedisStore
) -> None:
    delayq.client.command("CLIENT", "KILL", "TYPE", "pubsub")
    with pytest.raises(DelayQError):
        for _ in range(10):
            listener.run_once()
    delayq.client.command("PUBLISH", wakeups_channel(delayq.client.prefix), "lost:0:1")
    noop.using(delay=60).enqueue()
    listener._stream.connect()
    listener._stream.close()
    assert listener._stream._pubsub is None
    listener._stream.connect()
    noop.using(delay=5).enqueue()
    hear(listener, hints)
    assert hints[0][0] == Partition("default", 0)
