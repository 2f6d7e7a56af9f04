"""Which topics the outbox has messages of."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_delayq.models import OutboxMessage
from django_delayq.outbox import existing
from django_delayq.outbox.existing import topics_of_outbox
from tests.app.tasks import record
from tests.hands import DAY, Hands

pytestmark = pytest.mark.databases

TOPICS = ["Zoo", "a", "mails", "mails2", "orders", "z.z"]


def spread_over(topics: list[str]) -> None:
    """Two messages in each."""
    for _ in range(2 * len(topics)):
        record.using(durable=True, delay=DAY).enqueue(1)
    for number, pk in enumerate(OutboxMessage.objects.values_list("pk", flat=True)):
        OutboxMessage.objects.filter(pk=pk).update(topic=topics[number // 2])


@pytest.mark.parametrize("count", range(len(TOPICS) + 1))
@pytest.mark.parametrize("steps", [1, 2, 3, 500])
def test_each_topic_is_told_once(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, steps: int, count: int
) -> None:
    monkeypatch.setattr(existing, "STEPS", steps)
    spread_over(TOPICS[:count])
    with CaptureQueriesContext(connection) as asked:
        found = list(topics_of_outbox())
    assert (sorted(found), len(found)) == (TOPICS[:count], count)
    assert len(asked) == count // steps + 1


def test_more_topics_than_a_database_takes_steps_are_found(hands: Hands) -> None:
    record.using(durable=True, delay=DAY).enqueue_many((n,) for n in range(2_100))
    rows = OutboxMessage.objects.order_by("pk")
    for number, row in enumerate(found := list(rows)):
        row.topic = f"t{number:04}"
    OutboxMessage.objects.bulk_update(found, ["topic"], batch_size=300)
    assert list(topics_of_outbox()) == [f"t{number:04}" for number in range(2_100)]
