"""What the pages show of a message: scheduled, fired, acked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django_delayq import DelayQError, Message, State, TopicStats, topic_stats

from .models import Order
from .tasks import close_order


@dataclass(frozen=True)
class Step:
    """One field of the state strip."""

    name: str
    note: str
    status: str
    """`done`, `now` or `open`."""


@dataclass(frozen=True)
class Timeline:
    """The message of an order, as far as it is known."""

    steps: list[Step]
    due_at: datetime | None
    settled: bool
    """Nothing of it will change any more."""
    queue_away: bool = False


def timeline(order: Order) -> Timeline:
    """Ask the queue, and the order for what is over."""
    try:
        message = close_order.get(key=order.key)
    except DelayQError:
        return Timeline(_steps(order, None), order.due_at, settled=False, queue_away=True)
    settled = message is None and order.state != Order.State.PENDING
    return Timeline(_steps(order, message), message.due_at if message else order.due_at, settled)


def _steps(order: Order, message: Message | None) -> list[Step]:
    fired = order.fired_at is not None or (message is not None and message.state == State.LEASED)
    scheduled = Step(
        "scheduled", f"{order.window} s to pay", "done" if fired or message is None else "now"
    )
    if order.state == Order.State.PAID and message is None and not fired:
        return [scheduled, Step("cancelled", "paid in time", "done")]
    late = "" if order.lateness_ms is None else f"{order.lateness_ms} ms late"
    acked = fired and message is None
    return [
        scheduled,
        Step("fired", late, "done" if acked else "now" if fired else "open"),
        Step("acked", "done" if acked else "", "done" if acked else "open"),
    ]


def queue_figures() -> list[TopicStats]:
    """What the queue holds for the shop now; nothing when it does not answer."""
    try:
        return [
            topic_stats(topic)
            for topic in ("orders", "payments", "reminders", "reviews", "coupons")
        ]
    except DelayQError:
        return []
