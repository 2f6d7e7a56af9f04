from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

from django_delayq import delayed_task

from .models import Order


@delayed_task(topic="orders", delay=timedelta(minutes=30), key="order:{order_id}")
def close_order(order_id: UUID, total: Decimal, placed_at: datetime) -> None:
    if total > Decimal("1.00") and placed_at.tzinfo is not None:
        Order.objects.filter(pk=order_id, state="pending").update(state="closed")


@delayed_task(topic="mail", rate="1/s")
def send_mail(address: str) -> None: ...


@delayed_task(topic="reports", cron="0 3 * * *")
def forget_closed() -> None:
    Order.objects.filter(state="closed").delete()
