"""What all benchmarks share: options, a server, a worker process, the wait for it, and the
report."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil

from tests.benchmarks.journal import WARM_UP, Progress, starts
from tests.servers import Server, launcher

__all__ = ["BenchWorker", "Options", "Progress", "bench_server", "options", "report", "starts"]

#: Journals lie in memory where that is possible: a disk has nothing to do with what is measured.
MEMORY = next((folder for folder in ("/dev/shm",) if os.access(folder, os.W_OK)), None)

median = statistics.median


class Options(NamedTuple):
    """What a program was started with."""

    runs: int
    scale: float
    """Counts and seconds are multiplied with it: 1 for figures, less to try whether a program
    works."""
    worker: list[str]
    """What it did not know itself: for run_delayq."""

    def scaled(self, number: float, least: int = 1) -> int:
        """The number at this scale."""
        return max(least, int(number * self.scale))


def options(arguments: Sequence[str], runs: int) -> Options:
    """Parse --runs and --scale."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--scale", type=float, default=1.0)
    known, rest = parser.parse_known_args(list(arguments))
    return Options(max(1, known.runs), known.scale, rest)


@contextlib.contextmanager
def bench_server(**config: Any) -> Iterator[Server]:
    """Redis 7 without persistence, and this process set up against it."""
    server = launcher("redis7")
    server.start(**config)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        os.environ["DELAYQ_BENCH_REDIS"] = server.url
        os.environ["DELAYQ_BENCH_JOURNAL"] = str(Path(folder) / "journal")
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.benchmarks.settings"
        import django

        django.setup()
        try:
            yield server
        finally:
            server.stop()


class BenchWorker:
    """A worker process of its own, as a shop runs it, without lines on the screen. It archives when
    it is told to."""

    def __init__(self, *arguments: str, topics: str = "bench", archiver: bool = False) -> None:
        worker = [
            sys.executable,
            "-m",
            "django",
            "run_delayq",
            "--topics",
            topics,
            "--verbosity",
            "0",
        ]
        command = [*worker, *([] if archiver else ["--no-archiver"]), *arguments]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("Ready"):
                break
        # A worker stands still when its pipe is full.
        threading.Thread(target=_read_to_the_end, args=(self._process.stdout,), daemon=True).start()
        self.process = psutil.Process(self._process.pid)

    def __enter__(self) -> BenchWorker:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)

    def warm_up(self, count: int = 500) -> None:
        """Return when it has worked: imports are done, and processes forked."""
        from tests.benchmarks.tasks import noop

        noop.enqueue_many((WARM_UP + index, "x" * 80) for index in range(count))
        assert wait_until(Progress(count, WARM_UP).done, 30), "the worker did not begin"
        time.sleep(0.3)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()

    def cpu_seconds(self) -> float:
        """User and system time of the process and its children so far."""
        return cpu_seconds(self.process)

    def rss_mb(self) -> float:
        """Resident memory."""
        return float(self.process.memory_info().rss) / 1e6


def _read_to_the_end(lines: IO[str]) -> None:
    with lines:
        for _ in lines:
            pass


def cpu_seconds(process: psutil.Process) -> float:
    """User and system time of a process and its children so far."""
    return sum(sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True)))


def wait_until(done: Callable[[], bool], seconds: float, every: float = 0.02) -> bool:
    """Whether it came true in time."""
    until = time.monotonic() + seconds
    while not (ok := done()) and time.monotonic() < until:
        time.sleep(every)
    return ok


def backlog_empty(topic: str = "bench") -> bool:
    """Nothing waits and nothing is leased."""
    from django_delayq import topic_stats

    stats = topic_stats(topic)
    return not (stats.delayed or stats.backlog or stats.leased)


def nothing_leased(topic: str = "bench") -> bool:
    """All that was claimed is settled."""
    from django_delayq import topic_stats

    return not topic_stats(topic).leased


def fill(count: int, padding: str = "x" * 88) -> None:
    """Messages that wait for an hour, with 100 bytes of arguments."""
    from tests.benchmarks.tasks import noop

    later = noop.using(delay=3600)
    for at in range(0, count, 100_000):  # the handles of ten million would need gigabytes here
        later.enqueue_many(
            (1_000_000 + index, padding) for index in range(at, min(count, at + 100_000))
        )


def stored_instant(seconds_from_now: float) -> tuple[float, datetime]:
    """A due time in whole milliseconds, as a Unix time and as a datetime."""
    due = round(time.time() + seconds_from_now, 3)
    return due, datetime.fromtimestamp(due, tz=timezone.utc)


def report(workload: str, figure: float, unit: str, **figures: Any) -> dict[str, Any]:
    """Print one line for people and one for programs: our figure, the ceiling, the ratio, and the
    details."""
    figures = {name: value for name, value in figures.items() if value is not None}
    if figures.get("ceiling") and "ratio" not in figures:
        figures["ratio"] = figure / figures["ceiling"]
    result = {"workload": workload, "figure": figure, "unit": unit, **figures}
    result = {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in result.items()
    }
    case = f" [{result['case']}]" if "case" in result else ""
    first = ("workload", "case", "figure", "unit")
    details = "  ".join(
        f"{name}={_human(value)}" for name, value in result.items() if name not in first
    )
    print(f"{workload}{case}: {_human(result['figure'])} {unit}  {details}")
    if result.get("early"):
        print(f"  FAILED: {result['early']} started before they were due")
    print(json.dumps(result), flush=True)
    return result


def _human(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percentile(values: list[float], percent: float) -> float:
    """By the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
