"""Due messages go to another place in batches, and are acked when it has confirmed them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from django_delayq import list_messages
from django_delayq.core.exceptions import InvalidTask
from django_delayq.integrations.forward import ForwardedMessage, TargetAway, forwarding
from django_delayq.models import ArchivedMessage
from django_delayq.testing import QueueUnderTest

pytestmark = pytest.mark.django_db

Declare = Callable[..., Any]


class Side:
    """A target of one's own, which does what the test says."""

    def __init__(self) -> None:
        self.batches: list[list[ForwardedMessage]] = []
        self.refuse: dict[int, str] = {}
        self.away: TargetAway | None = None

    def send(self, messages: Sequence[ForwardedMessage]) -> Mapping[int, str]:
        self.batches.append(list(messages))
        if self.away is not None:
            raise self.away
        return {place: why for place, why in self.refuse.items() if place < len(messages)}


def test_what_is_due_leaves_in_one_batch_and_is_archived(
    delay_queue: QueueUnderTest, forwarded: Declare
) -> None:
    side = Side()
    task = forwarded(side)
    handles = task.enqueue_many([({"n": n},) for n in range(3)])
    task.using(delay=60, key="later", headers={"trace": "7"}).enqueue([1])
    delay_queue.run_due()
    (sent,) = side.batches
    assert sorted(message.payload["n"] for message in sent) == [0, 1, 2]
    assert {message.id for message in sent} == {handle.id for handle in handles}
    assert {(message.topic, message.attempt) for message in sent} == {("forwards", 1)}
    delay_queue.travel(61)
    delay_queue.run_due()
    (late,) = side.batches[1]
    assert late.body == b"[1]"
    assert late.properties == {
        "trace": "7",
        "delayq-id": late.id,
        "delayq-topic": "forwards",
        "delayq-attempt": "1",
        "delayq-key": "later",
    }
    assert ArchivedMessage.objects.filter(task=task.name, state="acked").count() == 4


def test_while_the_target_is_away_messages_wait_and_lose_no_attempt(
    delay_queue: QueueUnderTest, forwarded: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "FIRST_PAUSE", 0.001)
    side = Side()
    side.away = TargetAway("no route")
    task = forwarded(side, max_attempts=1)
    task.enqueue_many([(n,) for n in range(4)])
    delay_queue.run_due()
    assert {message.attempt for message in list_messages("forwards").messages} == {0}
    side.away, tried = None, len(side.batches)
    for _ in range(3):
        delay_queue.travel(12)
        delay_queue.run_due()
    sent = [message.payload for batch in side.batches[tried:] for message in batch]
    assert sorted(sent) == [0, 1, 2, 3]
    assert {message.attempt for batch in side.batches for message in batch} == {1}


def test_what_was_confirmed_before_the_target_went_away_is_not_sent_again(
    delay_queue: QueueUnderTest, forwarded: Declare
) -> None:
    side = Side()
    side.away = TargetAway("cut", confirmed=[0, 2])
    forwarded(side).enqueue_many([(n,) for n in range(4)])
    delay_queue.run_due()
    waiting = {message.args[0] for message in list_messages("forwards").messages}
    assert waiting == {side.batches[0][place].payload for place in (1, 3)}


def test_while_the_target_is_away_it_is_asked_once_a_pause(
    delay_queue: QueueUnderTest, forwarded: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "FIRST_PAUSE", 60.0)  # a busy machine takes longer than one
    monkeypatch.setattr(forwarding, "LONGEST_PAUSE", 60.0)
    side = Side()
    side.away = TargetAway("no route")
    task = forwarded(side, batch=10)
    task.enqueue_many([(n,) for n in range(100)])
    delay_queue.run_due()
    assert len(side.batches) == 1
    assert len(list_messages("forwards").messages) == 100


def test_a_refused_message_fails_an_attempt_and_the_others_are_done(
    delay_queue: QueueUnderTest, forwarded: Declare
) -> None:
    side = Side()
    side.refuse = {1: "too large"}
    forwarded(side, max_attempts=1).enqueue_many([(n,) for n in range(3)])
    delay_queue.run_due()
    ended = ArchivedMessage.objects.filter(topic="forwards")
    assert ended.filter(state="acked").count() == 2
    dead = ended.get(state="dead")
    assert dead.message_id.hex == side.batches[0][1].id
    assert "too large" in f"{dead.reason} {dead.error_message}"


def test_what_cannot_send_is_no_target(forwarded: Declare) -> None:
    with pytest.raises(InvalidTask, match="has no method `send`"):
        forwarded("redis://localhost")
