"""Metrics for Prometheus: what a scrape of 1,000 topics costs the worker, whether the figures agree
with the archive after 100,000 messages of several processes, and what they cost a burst."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests import databases
from tests.benchmarks import common
from tests.benchmarks.burst import drain
from tests.benchmarks.common import median

TOPICS = 1_000
SCRAPES = 20
MESSAGES = 100_000
PROCESSES = 3
BURST = 20_000
RUNS = 5
#: A scrape reads Redis when the last answer is older than a second.
EVERY = 1.1


def main(arguments: list[str]) -> None:
    """The three questions."""
    options = common.options(arguments, RUNS)
    with tempfile.TemporaryDirectory() as folder:
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(Path(folder) / "bench.db")}
        os.environ[databases.VARIABLE] = json.dumps(database)
        os.environ["DELAYQ_BENCH_TOPICS"] = str(options.scaled(TOPICS, 10))
        with common.bench_server():
            from django.core.management import call_command

            call_command("migrate", verbosity=0)
            scrape(options)
            agreement(options)
            burst(options)


def scrape(options: common.Options) -> None:
    """CPU time of a worker for each scrape, beside that of the same worker without scrapes."""
    from tests.benchmarks.tasks import noop

    count, scrapes = options.scaled(TOPICS, 10), options.scaled(SCRAPES, 2)
    names = [f"many.{n:04}" for n in range(count)]
    with worker(topics="all") as (running, port):
        for index, name in enumerate(names):
            noop.using(topic=name).enqueue(index, "x")
            noop.using(topic=name, delay=3600).enqueue(index, "x")
        wait_for(port, "delayq_runs_total", count, result="acked")
        time.sleep(2)
        before = running.cpu_seconds()
        time.sleep(EVERY * scrapes)
        idle = running.cpu_seconds() - before
        before, took = running.cpu_seconds(), []
        for _ in range(scrapes):
            begun = time.perf_counter()
            text = scraped(port)
            took.append((time.perf_counter() - begun) * 1000)
            time.sleep(max(0.0, EVERY - took[-1] / 1000))
        cpu_ms = (running.cpu_seconds() - before - idle) * 1000 / scrapes
    common.report(
        "metrics", cpu_ms, "ms of the worker a scrape", case=f"{count:,} topics",
        answer_ms=median(took), lines=text.count("\n"), scrapes=scrapes,
    )  # fmt: skip


def agreement(options: common.Options) -> None:
    """Counters of Redis, counts of the processes and rows of the archive after the same
    messages."""
    from django_delayq.models import ArchivedMessage
    from tests.benchmarks.tasks import noop

    count = options.scaled(MESSAGES, 500)
    archived = ArchivedMessage.objects.filter(topic="bench")
    begun = archived.count()
    with worker("--processes", str(PROCESSES), archiver=True) as (_, port):
        ended_before = value(port, "delayq_ended_total", topic="bench", state="acked")
        noop.enqueue_many((index, "x") for index in range(count))
        assert common.wait_until(lambda: archived.count() == begun + count, 300, every=0.2), (
            f"{archived.count() - begun} rows of {count} messages"
        )
        time.sleep(EVERY)
        figures = {
            "ended": value(port, "delayq_ended_total", topic="bench", state="acked") - ended_before,
            "runs": value(port, "delayq_runs_total", topic="bench", result="acked"),
            "lateness": value(port, "delayq_lateness_seconds_count", topic="bench"),
            "run": value(port, "delayq_run_seconds_count", topic="bench"),
        }
    common.report(
        "metrics", float(max(abs(figure - count) for figure in figures.values())),
        "messages of difference", case=f"{count:,} messages, {PROCESSES} processes", **figures,
    )  # fmt: skip
    assert set(figures.values()) == {float(count)}, figures


def burst(options: common.Options) -> None:
    """Messages a second with metrics, beside those without, in turns."""
    count, rates, used = options.scaled(BURST, 200), [], 200_000
    for run in range(options.runs):
        pair = {}
        # In turns: a later drain is slower, as Redis has more to keep.
        for wanted in (False, True) if run % 2 else (True, False):
            os.environ["DELAYQ_BENCH_METRICS"] = "1" if wanted else "0"
            with common.BenchWorker("--health-port", str(free_port())) as running:
                running.warm_up()
                drains = [drain(count, used + n * count, 4).per_second for n in range(3)]
            pair[wanted] = median(drains)
            used += 3 * count
        rates.append(pair)
    with_metrics, without = (median([pair[wanted] for pair in rates]) for wanted in (True, False))
    common.report(
        "metrics", with_metrics, "messages/s", case="burst", without=without,
        ratio=median([pair[True] / pair[False] for pair in rates]), runs=options.runs,
    )  # fmt: skip


class worker:  # noqa: N801
    """A worker that answers /metrics, and its port."""

    def __init__(self, *arguments: str, **options: Any) -> None:
        os.environ["DELAYQ_BENCH_METRICS"] = "1"
        self._port = free_port()
        self._worker = common.BenchWorker("--health-port", str(self._port), *arguments, **options)

    def __enter__(self) -> tuple[common.BenchWorker, int]:
        wait_for(self._port, "delayq_redis_up", 1)
        return self._worker.__enter__(), self._port

    def __exit__(self, *error: object) -> None:
        self._worker.__exit__(*error)


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def scraped(port: int) -> str:
    """What Prometheus gets."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()  # type: ignore[no-any-return]


def value(port: int, name: str, **labels: str) -> float:
    """The sum of the samples with these labels."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(scraped(port))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def wait_for(port: int, name: str, at_least: float, **labels: str) -> None:
    """Until a metric has a value."""

    def there() -> bool:
        try:
            return value(port, name, **labels) >= at_least
        except OSError:  # the port is not open yet
            return False

    assert common.wait_until(there, 60, every=0.3), f"{name} did not come to {at_least}"


if __name__ == "__main__":
    main(sys.argv[1:])
