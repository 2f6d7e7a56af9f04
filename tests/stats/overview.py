"""Makes what the overview counts, and reads it."""

from __future__ import annotations

import json
import uuid
from typing import Any

from django.utils import timezone as django_timezone

from django_delayq.models import ArchivedMessage
from django_delayq.stats import overview as figures
from django_delayq.stats.overview import Overview, TopicOverview
from django_delayq.store.store import RedisStore
from tests.app.tasks import record


def now() -> Overview:
    """Read anew."""
    figures.reader_of.cache_clear()
    return figures.overview()


def topic(name: str, overview: Overview | None = None) -> TopicOverview:
    """The row of a topic."""
    (row,) = [one for one in (overview or now()).topics if one.topic == name]
    return row


def archived(count: int = 1, **fields: Any) -> list[ArchivedMessage]:
    """Rows of the archive, the newest last."""
    instant = django_timezone.now()
    fields = {
        "topic": "default", "partition": 0, "task": record.name, "state": "acked", "body": "{}",
        "enqueued_at": instant, "due_at": instant, "finished_at": instant,
    } | fields  # fmt: skip
    made = [ArchivedMessage(message_id=uuid.uuid4(), **fields) for _ in range(count)]
    return list(ArchivedMessage.objects.bulk_create(made))


def ran(*lateness_ms: float, **fields: Any) -> None:
    """Acked runs with this lateness, the newest last."""
    for late in lateness_ms:
        archived(lateness_ms=late, **fields)


def beat(store: RedisStore, name: str = "host:1:ab", *, age: float = 0.0, **fields: Any) -> None:
    """The heartbeat of a worker, `age` seconds ago."""
    at_ms = int(store.clock_ms() - age * 1000)
    store.workers.beat(
        name, json.dumps({"at_ms": at_ms, "topics": ["default"], "rss_kb": 2048, **fields})
    )


def sample(store: RedisStore, age: float, finished: int, **fields: Any) -> None:
    """The sample that a worker has taken `age` seconds ago."""
    topics = {"default": {"finished": finished, "waiting": 0, "lag": 0.0} | fields}
    store.workers.add_sample(int(store.clock_ms() - age * 1000), topics)
