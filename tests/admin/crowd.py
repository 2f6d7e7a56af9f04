"""Many rows with names as long as people give them, for tests of what fits on a page."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from django_delayq.models import OperatorAction
from django_delayq.stats.overview import Overview
from tests.admin import by_hand
from tests.admin.rows import make, make_dead
from tests.admin.world import World, heartbeat
from tests.app.tasks import close_order
from tests.hands import DAY

TASK = "shop.tasks.webhook_retry"


def fill(world: World) -> None:
    """Beside one of everything: messages that wait, that ended, workers, and what operators did."""
    now = timezone.now()
    for number in range(3):
        close_order.using(delay=DAY, key=f"order:20{number}").enqueue(1_000_000 + number)
        recent = now - timedelta(minutes=7 * number)
        make(task=TASK, key=f"order:104{number}", finished_at=recent, enqueued_at=recent)
        make_dead(task=TASK, finished_at=recent, error_message="HTTP Error 502: Bad Gateway, from "
            "https://hooks.example.com/orders/paid after 10 s")  # fmt: skip
    make_dead(task="shop.tasks.expire_coupon", finished_at=now - timedelta(days=2))
    busy: dict[str, Any] = {
        "topics": ["orders", "modes", "reminders", "mail"],
        "settled": {"acked": 1_234_567, "dead": 12, "retried": 4_321},
        "archiver": {"rows": 1_234_567, "lag": "2 s"},
        "relay": {"sent": 4_321},
    }
    for pid in range(3):
        heartbeat(world.hands.store, f"worker-7f9c4d-{pid}:{pid}:a1b2", pid=pid,
            host=f"worker-7f9c4d-{pid}.example", **busy)  # fmt: skip
    for action in ("pause", "replay", "cancel"):
        OperatorAction.objects.create(
            operator="anna.schmidt-hohenberg@operations.example.com",
            action=action,
            topic="orders",
            count=1_204,
            started_at=now - timedelta(hours=3),
            finished_at=now,
            reason="The payment provider answers again",
        )


def overview() -> Overview:
    """Topics that something is wrong with, too."""
    return by_hand.overview(
        topics=[
            by_hand.topic("orders.reminders", delayed=1_234_567, backlog=1_200, dead_letters=3_444),
            by_hand.topic("mail", backlog=0, dead_letters=3, workers=0),
            by_hand.topic("reports", workers=0, quiet_workers=0),
        ]
    )
