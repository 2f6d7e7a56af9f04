"""Metrics of real processes agree with the archive."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance import tasks
from tests.acceptance.harness import Queue, free_port
from tests.servers import Server, wait_until

pytestmark = pytest.mark.acceptance

MESSAGES = 3_000


@pytest.fixture
def queue(aof_server: Server, tmp_path: Path) -> Queue:  # type: ignore[misc]
    database = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(tmp_path / "shop.db"),
        "OPTIONS": {"timeout": 20},
    }
    with Queue(aof_server.url, tmp_path, database=database, METRICS=True) as queue:
        queue.migrate()
        yield queue  # type: ignore[misc]


def total(port: int, name: str, **labels: str) -> float:
    """The sum of the samples with these labels."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_one_port_answers_for_all_processes_also_for_those_that_were_killed(queue: Queue) -> None:
    port = free_port()
    queue.worker("--processes", "3", "--health-port", str(port))
    queue.wait_for_beats(3)
    first = tasks.note.enqueue_many([()] * MESSAGES)
    queue.wait_for_runs(first)
    queue.wait_until_drained()
    wait_until(
        lambda: total(port, "delayq_runs_total", result="acked") == MESSAGES, "all runs count", 20
    )
    pids = {run.pid for run in queue.history.starts()}
    assert len(pids) > 1

    beats = queue.store.workers.heartbeats()
    os.kill(max(beat["pid"] for beat in beats.values()), signal.SIGKILL)

    second = tasks.note.enqueue_many([()] * MESSAGES)
    queue.wait_for_runs(second)
    queue.wait_until_drained()

    def counts() -> set[float]:
        return {
            total(port, "delayq_runs_total", result="acked"),
            total(port, "delayq_lateness_seconds_count"),
            total(port, "delayq_run_seconds_count"),
            total(port, "delayq_ended_total", state="acked"),
        }

    wait_until(lambda: counts() == {2 * MESSAGES}, "all counts have all messages", 20)
    wait_until(lambda: total(port, "delayq_unarchived_messages") == 0, "all is archived", 20)
    assert total(port, "delayq_messages") == 0
