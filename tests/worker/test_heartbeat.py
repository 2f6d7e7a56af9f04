"""Signs of life."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_delayq.store.store import RedisStore
from django_delayq.worker import heartbeat as module
from django_delayq.worker.fleet import Fleet
from django_delayq.worker.heartbeat import Heartbeat, rss_kb
from django_delayq.worker.shared import Shared


@pytest.fixture
def figures() -> dict[str, Any]:
    return {"in_flight": 3, "topics": ["orders"]}


@pytest.fixture
def heartbeat(shared: Shared, figures: dict[str, Any]) -> Heartbeat:
    return Heartbeat(shared, Fleet(shared), lambda: figures, lambda quiet: None)


def test_beat_tells_what_the_worker_does(heartbeat: Heartbeat, delayq: RedisStore) -> None:
    assert heartbeat.run_once() == 10.0
    beat = delayq.workers.heartbeats()["host:1:test"]
    assert (beat["in_flight"], beat["topics"]) == (3, ["orders"])
    assert beat["at_ms"] == pytest.approx(delayq.clock_ms(), abs=5000)
    assert beat["rss_kb"] > 1000


def test_beat_replaces_the_one_before(
    heartbeat: Heartbeat, delayq: RedisStore, figures: dict[str, Any]
) -> None:
    heartbeat.run_once()
    figures["in_flight"] = 7
    heartbeat.run_once()
    assert [beat["in_flight"] for beat in delayq.workers.heartbeats().values()] == [7]


def test_workers_long_gone_are_removed(heartbeat: Heartbeat, delayq: RedisStore) -> None:
    now_ms = delayq.clock_ms()
    delayq.workers.beat("gone", json.dumps({"at_ms": now_ms - 1_801_000}))
    delayq.workers.beat("slow", json.dumps({"at_ms": now_ms - 1_790_000}))
    heartbeat.run_once()
    assert set(delayq.workers.heartbeats()) == {"host:1:test", "slow"}


def test_memory_is_told_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    present = rss_kb()

    def missing(*args: Any) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr(module, "open", missing, raising=False)
    assert present / 2 < rss_kb()


# Told to claim nothing


@pytest.fixture
def told() -> list[bool]:
    """What the dispatcher was told."""
    return []


@pytest.fixture
def listening(shared: Shared, figures: dict[str, Any], told: list[bool]) -> Heartbeat:
    return Heartbeat(shared, Fleet(shared), lambda: figures, told.append)


def test_first_beat_looks_whether_the_worker_is_quiet(
    listening: Heartbeat, told: list[bool], delayq: RedisStore
) -> None:
    delayq.workers.quiet("host:1:test")
    listening.run_once()
    assert told == [True]


def test_another_worker_that_is_quiet_is_no_matter(
    listening: Heartbeat, told: list[bool], delayq: RedisStore
) -> None:
    delayq.workers.quiet("host:2:test")
    listening.run_once()
    assert told == [False]


def test_without_a_hint_it_looks_again_with_the_sixth_beat(
    listening: Heartbeat, told: list[bool], delayq: RedisStore
) -> None:
    listening.run_once()
    delayq.workers.quiet("host:1:test")
    looks = []
    for _ in range(6):
        listening.run_once()
        looks.append(list(told))
    assert looks == [[False]] * 5 + [[False, True]]


def test_hint_makes_it_look_at_once(
    listening: Heartbeat, told: list[bool], delayq: RedisStore
) -> None:
    for quiet in (True, False, True):
        listening.run_once()
        (delayq.workers.quiet if quiet else delayq.workers.unquiet)("host:1:test")
        listening.check_quiet()
        listening.sleeper.wait(3600)  # does not sleep
        listening.run_once()
        assert told[-1] is quiet


def test_hint_during_a_beat_is_not_lost(
    shared: Shared, told: list[bool], delayq: RedisStore
) -> None:
    def hear() -> dict[str, Any]:
        if len(told) == 1:
            delayq.workers.quiet("host:1:test")
            heartbeat.check_quiet()
        return {}

    heartbeat = Heartbeat(shared, Fleet(shared), hear, told.append)
    heartbeat.run_once()
    heartbeat.run_once()
    assert told[:2] == [False, True]


def test_beat_goes_on_while_the_worker_is_quiet(
    listening: Heartbeat, figures: dict[str, Any], delayq: RedisStore
) -> None:
    delayq.workers.quiet("host:1:test")
    figures["in_flight"] = 9
    listening.run_once()
    assert delayq.workers.heartbeats()["host:1:test"]["in_flight"] == 9


def test_what_was_told_to_a_worker_that_is_perhaps_only_cut_off_is_kept(
    heartbeat: Heartbeat, delayq: RedisStore
) -> None:
    delayq.workers.beat("gone", json.dumps({"at_ms": delayq.clock_ms() - 1_801_000}))
    delayq.workers.quiet("gone")
    heartbeat.run_once()
    assert "gone" not in delayq.workers.heartbeats()
    assert delayq.workers.is_quiet("gone")


def test_idle_workers_of_a_large_fleet_beat_seldom_and_not_together(
    heartbeat: Heartbeat,
    figures: dict[str, Any],
    delayq: RedisStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Fleet, "size", 20)
    assert heartbeat.run_once() == 10.0  # it holds messages
    figures["in_flight"] = 0
    pauses = {heartbeat.run_once() for _ in range(20)}
    assert len(pauses) > 10
    assert min(pauses) >= 36
    assert max(pauses) <= 84
    assert delayq.workers.heartbeats()["host:1:test"]["every"] == 60
