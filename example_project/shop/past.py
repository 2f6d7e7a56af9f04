"""A past for the shop: an archive of three days, and coupons that expire in the next two weeks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from django_delayq.archive import archive_rows
from django_delayq.core.message import new_ids

from .models import Coupon
from .tasks import expire_coupon

DAYS = 3
BATCH = 5_000
#: Topic, task and share of the messages.
TASKS = (
    ("orders", "shop.tasks.close_order", 50), ("reminders", "shop.tasks.remind_unpaid", 25),
    ("coupons", "shop.tasks.expire_coupon", 15), ("webhooks", "shop.tasks.webhook_retry", 10),
)  # fmt: skip
ERRORS = ("urllib.error.URLError", "TimeoutError", "shop.errors.MerchantSaidNo")


def remember(messages: int = 30_000, coupons: int = 2_000) -> None:
    """Fill the archive with so many finished messages, and enqueue so many coupons."""
    dice = random.Random(7)
    now = timezone.now()
    rows = _rows(messages, now, dice)
    for begin in range(0, messages, BATCH):
        with transaction.atomic():
            archive_rows.insert(
                [next(rows) for _ in range(min(BATCH, messages - begin))], connection
            )
    _issue(coupons, now, dice)


def _issue(count: int, now: datetime, dice: random.Random) -> None:
    """Half of them expire at nine o'clock of some morning: a peak for the forecast."""
    nine = now.replace(hour=9, minute=0, second=0, microsecond=0) + timedelta(days=1)
    coupons = Coupon.objects.bulk_create(
        Coupon(
            code=f"PAST-{number:05}",
            valid_until=nine + timedelta(days=dice.randrange(14))
            if number % 2
            else now + timedelta(hours=1 + dice.random() * 300),
        )
        for number in range(count)
    )
    expire_coupon.enqueue_many(
        expire_coupon.using(due_at=coupon.valid_until, key=coupon.code).prepare(coupon.pk)
        for coupon in coupons
    )


def _rows(count: int, now: datetime, dice: random.Random) -> Iterator[tuple[Any, ...]]:
    """In the order of archive_rows.COLUMNS, oldest first."""
    begin = now - timedelta(days=DAYS)
    step = timedelta(days=DAYS) / count
    shares = [share for *_, share in TASKS]
    for number, identity in enumerate(new_ids(count)):
        topic, task, _ = dice.choices(TASKS, shares)[0]
        yield _row(identity.hex(), (topic, task), begin + number * step, dice)


def _row(
    identity: str, what: tuple[str, str], finished: datetime, dice: random.Random
) -> tuple[Any, ...]:
    topic, task = what
    late, run = dice.expovariate(1 / 4), dice.expovariate(1 / 30)
    error = dice.choice(ERRORS) if topic == "webhooks" and dice.random() < 0.06 else ""
    state = (
        "dead" if error else "cancelled" if topic == "orders" and dice.random() < 0.4 else "acked"
    )
    started = None if state == "cancelled" else finished - timedelta(milliseconds=run)
    due = finished - timedelta(milliseconds=late + run)
    times = [_adapted(when) for when in (due - timedelta(minutes=30), due, started, finished)]
    return (
        identity, times[0], topic, 0, task, "", state, "cancelled" if state == "cancelled" else "",
        f'{{"args":[{dice.randrange(1, 100_000)}],"kwargs":{{}}}}', "", 1, 60_000, None,
        8 if error else int(state == "acked"), 0, "", times[1], times[2], times[3],
        round(late, 3) if started else None, round(run, 3) if started else None,
        "shop-1:7:a" if started else "",
        error, "the merchant does not answer" if error else "", "", None, "",
    )  # fmt: skip


def _adapted(when: datetime | None) -> Any:
    return when and connection.ops.adapt_datetimefield_value(when)
