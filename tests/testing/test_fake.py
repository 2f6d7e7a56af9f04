"""A message for a task that is called as a function. No server runs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from django_delayq import DelayQError, InvalidMessage, current_message
from django_delayq.testing import fake_message
from tests.app.tasks import close_order, look, seen


def test_a_task_that_asks_for_its_message_can_be_called() -> None:
    with fake_message(look.using(key="k", headers={"tenant": "7"}), attempt=3) as message:
        look()
    assert seen == [message]
    assert (message.key, message.attempt, message.headers) == ("k", 3, {"tenant": "7"})
    with pytest.raises(DelayQError, match="only while a worker runs"):
        current_message()


def test_its_delay_has_just_passed() -> None:
    with fake_message(close_order.using(delay=60), args=[7], kwargs={"reason": "x"}) as message:
        assert (message.task, message.topic) == (close_order.name, "orders")
        assert (message.args, message.kwargs) == ([7], {"reason": "x"})
        assert message.due_at - message.enqueued_at == timedelta(seconds=60)
        assert abs(message.due_at - datetime.now(tz=timezone.utc)) < timedelta(seconds=5)


def test_a_test_may_say_that_the_lease_is_lost() -> None:
    with fake_message(look) as message:
        assert not message.lease_lost
        message.lease.lost = True
        assert current_message().lease_lost


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="cannot be called so"), fake_message(close_order):
        """Not reached."""
    with pytest.raises(InvalidMessage, match="attempt is 0"), fake_message(look, attempt=0):
        """Not reached."""
