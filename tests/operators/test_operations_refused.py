"""What operators may not do, or not any more: nothing changes, and no record says that it has."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from django_delayq.core.exceptions import (
    DelayQError,
    InvalidDelay,
    InvalidMessage,
    MessageNotFound,
    MessageRunning,
    NaiveDatetime,
    NotPermitted,
    StoreUnavailable,
    UnknownTopic,
)
from django_delayq.models import ArchivedMessage, OperatorAction, OutboxMessage
from django_delayq.operators import operations
from tests.app.tasks import close_order, record
from tests.bulk_hands import OPERATOR, Operator
from tests.faults import unreachable
from tests.hands import DAY, Hands
from tests.operators.test_replay import dead, origins

NO_ID = uuid4().hex


class Scene:
    """A message that waits, one that runs, and dead letters that are open, dealt with and gone."""

    def __init__(self, hands: Hands) -> None:
        self.running = record.enqueue("runs").id
        hands.claim()
        self.waiting = close_order.using(delay=DAY).enqueue(1).id
        self.open, self.replayed, self.discarded = dead(3)
        operations.replay_one(OPERATOR, self.replayed)
        operations.discard_one(OPERATOR, self.discarded, reason="no")
        (self.keyed,) = dead(key="k")
        self.past, self.naive = timezone.now() - timedelta(hours=1), datetime(2126, 1, 1)
        self.before = self.state()

    @staticmethod
    def state() -> Any:
        """What nobody may have changed."""
        archived = ArchivedMessage.objects.order_by("pk").values_list(
            "pk", "replayed_at", "discarded_at"
        )
        return list(archived), OutboxMessage.objects.count(), OperatorAction.objects.count()


Call = Callable[[Scene], object]
REFUSED: dict[str, tuple[type[DelayQError], Call]] = {
    "a pause without a reason": (
        InvalidMessage,
        lambda s: operations.pause(OPERATOR, "orders", reason=" "),
    ),
    "a pause that has passed": (
        InvalidDelay,
        lambda s: operations.pause(OPERATOR, "orders", reason="why", until=s.past),
    ),
    "a pause until a naive time": (
        NaiveDatetime,
        lambda s: operations.pause(OPERATOR, "orders", reason="why", until=s.naive),
    ),
    "a pause of no topic": (
        UnknownTopic,
        lambda s: operations.pause(OPERATOR, "gone", reason="why"),
    ),
    "a resume of no topic": (UnknownTopic, lambda s: operations.resume(OPERATOR, "gone")),
    "a cancel of nothing": (
        MessageNotFound,
        lambda s: operations.cancel(OPERATOR, "default", NO_ID),
    ),
    "a cancel of what runs": (
        MessageRunning,
        lambda s: operations.cancel(OPERATOR, "default", s.running),
    ),
    "a cancel in another topic": (
        MessageNotFound,
        lambda s: operations.cancel(OPERATOR, "default", s.waiting),
    ),
    "running now what runs": (
        MessageRunning,
        lambda s: operations.run_now(OPERATOR, "default", s.running),
    ),
    "running nothing now": (
        MessageNotFound,
        lambda s: operations.run_now(OPERATOR, "default", NO_ID),
    ),
    "another time for what runs": (
        MessageRunning,
        lambda s: operations.reschedule(OPERATOR, "default", s.running, timezone.now()),
    ),
    "a naive time": (
        NaiveDatetime,
        lambda s: operations.reschedule(OPERATOR, "orders", s.waiting, s.naive),
    ),
    "other arguments for what runs": (
        MessageRunning,
        lambda s: operations.edit(OPERATOR, "default", s.running, ([2], {})),
    ),
    "arguments that do not fit": (
        InvalidMessage,
        lambda s: operations.edit(OPERATOR, "orders", s.waiting, ([], {"no": 1})),
    ),
    "arguments that are no JSON": (
        InvalidMessage,
        lambda s: operations.edit(OPERATOR, "orders", s.waiting, ([object()], {})),
    ),
    "an unknown task": (
        InvalidMessage,
        lambda s: operations.schedule(OPERATOR, "gone.task", ([], {})),
    ),
    "a task without its arguments": (
        InvalidMessage,
        lambda s: operations.schedule(OPERATOR, "tests.app.tasks.close_order", ([], {})),
    ),
    "a replay of nothing": (MessageNotFound, lambda s: operations.replay_one(OPERATOR, 10**9)),
    "a replay of a row beyond all": (
        MessageNotFound,
        lambda s: operations.replay_one(OPERATOR, 2**70),
    ),
    "a second replay": (InvalidMessage, lambda s: operations.replay_one(OPERATOR, s.replayed)),
    "a replay of what was discarded": (
        InvalidMessage,
        lambda s: operations.replay_one(OPERATOR, s.discarded),
    ),
    "a replay with arguments that do not fit": (
        InvalidMessage,
        lambda s: operations.replay_one(OPERATOR, s.open, arguments=([1, 2, 3], {})),
    ),
    "a discard without a reason": (
        InvalidMessage,
        lambda s: operations.discard_one(OPERATOR, s.open, reason=""),
    ),
    "a second discard": (
        InvalidMessage,
        lambda s: operations.discard_one(OPERATOR, s.discarded, reason="why"),
    ),
    "a discard of what was replayed": (
        InvalidMessage,
        lambda s: operations.discard_one(OPERATOR, s.replayed, reason="why"),
    ),
    "quiet for an unknown worker": (InvalidMessage, lambda s: operations.quiet(OPERATOR, "nobody")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_changes_nothing_and_leaves_no_record(what: str, hands: Hands) -> None:
    error, call = REFUSED[what]
    scene = Scene(hands)
    with pytest.raises(error):
        call(scene)
    assert scene.state() == scene.before


def test_a_replay_while_redis_is_away_leaves_no_record(hands: Hands) -> None:
    scene = Scene(hands)
    with unreachable(), pytest.raises(StoreUnavailable):
        operations.replay_one(OPERATOR, scene.keyed)
    assert scene.state() == scene.before


def test_what_is_done_while_redis_is_away_leaves_no_record(hands: Hands) -> None:
    handle = record.using(delay=DAY).enqueue(1)
    with unreachable(), pytest.raises(StoreUnavailable):
        operations.cancel(OPERATOR, "default", handle.id)
    assert not OperatorAction.objects.exists()


def test_other_arguments_need_more_than_a_replay(hands: Hands) -> None:
    (pk,) = dead()
    for codename in ("replay_message", "edit_message", "view_payload"):
        with pytest.raises(NotPermitted, match=codename):
            operations.replay_one(Operator(forbidden=frozenset({codename})), pk, arguments=([], {}))
    assert not OperatorAction.objects.exists()
    operations.replay_one(Operator(forbidden=frozenset({"edit_message", "view_payload"})), pk)
    assert origins() == [pk]
