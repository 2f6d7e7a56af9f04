"""An Overview without Redis, for tests of what is shown and not of what is read."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from django_delayq.stats.overview import Bucket, Overview, Sample, TopicOverview, WorkerStatus

AT = datetime(2026, 11, 20, 10, 20, 11, tzinfo=timezone.utc)


def topic(name: str = "orders", **changes: Any) -> TopicOverview:
    """A busy topic that all is well with."""
    usual: dict[str, Any] = {
        "topic": name,
        "delayed": 1_200,
        "backlog": 7,
        "leased": 3,
        "finished": 5,
        "outbox": 0,
        "lag": 0.25,
        "next_due_at": AT + timedelta(seconds=2.4),
        "paused": None,
        "counters": {"enqueued": 40_000, "acked": 39_000, "dead": 14},
        "per_second": 12.5,
        "late_p50_ms": 2.0,
        "late_p99_ms": 48.0,
        "dead_letters": 14,
        "workers": 2,
    }
    return TopicOverview(**{**usual, **changes})


def overview(**changes: Any) -> Overview:
    """One busy topic, an hour and a day of forecast, three hours of samples, two workers."""
    usual: dict[str, Any] = {
        "at": AT,
        "topics": [topic()],
        "minutes": buckets(60, timedelta(minutes=1)),
        "hours": buckets(24, timedelta(hours=1)),
        "lateness": [
            Bucket(count=3, up_to_ms=1),
            Bucket(count=190, up_to_ms=2),
            Bucket(count=7, up_to_ms=5),
        ],
        "samples": [sample(minute) for minute in range(180)],
        "workers": [worker("one"), worker("two")],
        "stacked": ["orders"],
    }
    return Overview(**{**usual, **changes})


def empty(**changes: Any) -> Overview:
    """Nothing is known."""
    nothing: dict[str, Any] = dict.fromkeys(
        ("topics", "minutes", "hours", "lateness", "samples", "workers"), ()
    )
    return overview(**{**nothing, **changes})


def buckets(number: int, step: timedelta) -> list[Bucket]:
    """0, 1, 2 ... messages."""
    begin = AT.replace(second=0)
    return [Bucket(count=nth, at=begin + step * nth, parts=[nth, 0]) for nth in range(number)]


def sample(minute: int) -> Sample:
    """Of a minute of the last three hours."""
    at = AT - timedelta(minutes=180 - minute)
    return Sample(
        at_ms=int(at.timestamp() * 1000),
        finished_per_second=minute / 10,
        lag=float(minute % 5),
        waiting=minute,
    )


def worker(name: str, **changes: Any) -> WorkerStatus:
    """One that lives."""
    usual: dict[str, Any] = {
        "host": "host",
        "pid": 1,
        "version": "1",
        "topics": ["orders"],
        "concurrency": 4,
        "in_flight": 1,
        "running": 1,
        "rss_mb": 80.0,
        "started_at": AT,
        "beat_at": AT,
        "alive": True,
        "draining": False,
        "quiet": False,
        "quiet_requested": False,
        "settled": {},
        "services": {},
    }
    return WorkerStatus(name=name, **{**usual, **changes})
