"""Signs of life."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_delayq.store.redis import RedisStore
from django_delayq.worker import heartbeat as module
from django_delayq.worker.heartbeat import Heartbeat, rss_kb
from django_delayq.worker.shared import Shared


@pytest.fixture
def figures() -> dict[str, Any]:
    return {"in_flight": 3, "topics": ["orders"]}


@pytest.fixture
def heartbeat(shared: Shared, figures: dict[str, Any]) -> Heartbeat:
    return Heartbeat(shared, lambda: figures)


def test_beat_tells_what_the_worker_does(heartbeat: Heartbeat, delayq: RedisStore) -> None:
    assert heartbeat.run_once() == 10.0
    beat = delayq.heartbeats()["host:1:test"]
    assert (beat["in_flight"], beat["topics"]) == (3, ["orders"])
    assert beat["at_ms"] == pytest.approx(delayq.clock_ms(), abs=5000)
    assert beat["rss_kb"] > 1000


def test_beat_replaces_the_one_before(heartbeat: Heartbeat, delayq: RedisStore, figures: dict[str, Any]) -> None:
    heartbeat.run_once()
    figures["in_flight"] = 7
    heartbeat.run_once()
    assert [beat["in_flight"] for beat in delayq.heartbeats().values()] == [7]


def test_workers_long_gone_are_removed(heartbeat: Heartbeat, delayq: RedisStore) -> None:
    now_ms = delayq.clock_ms()
    delayq.beat("gone", json.dumps({"at_ms": now_ms - 61_000}))
    delayq.beat("slow", json.dumps({"at_ms": now_ms - 50_000}))
    heartbeat.run_once()
    assert set(delayq.heartbeats()) == {"host:1:test", "slow"}


def test_memory_is_told_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    present = rss_kb()

    def missing(*args: Any) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr(module, "open", missing, raising=False)
    assert present / 2 < rss_kb()
