"""What all benchmarks share: a server, a worker process, a journal, and what raw Redis reaches in the same run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.servers import Server, launcher

RAW_ENQUEUE = """
for i = 1, #ARGV, 3 do
  redis.call('ZADD', KEYS[1], ARGV[i], ARGV[i + 1])
  redis.call('HSET', KEYS[2], ARGV[i + 1], ARGV[i + 2])
end
"""


@contextlib.contextmanager
def bench_server(**config: Any) -> Iterator[Server]:
    """Redis 7 without persistence, and this process set up against it."""
    server = launcher("redis7")
    server.start(**config)
    with tempfile.TemporaryDirectory() as folder:
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
    """A worker process of its own, as a shop runs it, without lines on the screen."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "django", "run_delayq", "--topics", "bench", "--verbosity", "0", *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("Ready"):
                break
        self.process = psutil.Process(self._process.pid)

    def __enter__(self) -> BenchWorker:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()

    def cpu_seconds(self) -> float:
        """User and system time of the process and its children so far."""
        processes = [self.process, *self.process.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    def rss_mb(self) -> float:
        """Resident memory."""
        return float(self.process.memory_info().rss) / 1e6


def starts(count: int, first: int = 0) -> list[tuple[float, int]]:
    """(time of the newest start, number of starts) of each message."""
    from .tasks import SLOT, journal

    memory = journal()
    return [SLOT.unpack_from(memory, SLOT.size * (first + index)) for index in range(count)]


def wait_until(done: Callable[[], bool], seconds: float, every: float = 0.01) -> bool:
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


def raw_enqueue(server: Server, batch: int, count: int) -> float:
    """Messages per second of ZADD and HSET in one EVALSHA per `batch` messages, with the same client."""
    client = server.client()
    sha = client.script_load(RAW_ENQUEUE)
    identities = [os.urandom(16) for _ in range(count)]
    body, begun = b"x" * 123, time.perf_counter()
    for at in range(0, count, batch):
        arguments: list[Any] = []
        for identity in identities[at : at + batch]:
            arguments += (1, identity, body)
        client.evalsha(sha, 2, "raw:zset", "raw:hash", *arguments)
    rate = count / (time.perf_counter() - begun)
    client.delete("raw:zset", "raw:hash")
    client.close()
    return rate


def raw_drain(server: Server, count: int) -> float:
    """Messages per second of our own claim and ack scripts in batches of 500 in one thread, nothing called."""
    from django_delayq.conf import get_settings
    from django_delayq.message import encode_record, new_ids, task_code
    from django_delayq.store import get_store
    from django_delayq.store.keys import Partition

    store, partition, code = get_store(), Partition("raw", 0), task_code("raw")
    record = encode_record(code, b"x" * 100, flags=1, ttr_ms=30_000, compress_above=get_settings().compress_above)
    for at in range(0, count, 500):
        messages = [(identity, "raise", "+0", "", record) for identity in new_ids(min(500, count - at))]
        store.enqueue(partition, {code: "raw"}, messages)
    done, begun = 0, time.perf_counter()
    while done < count:
        leases = store.claim(partition, 500).leases
        store.ack(partition, [(lease, b'{"worker":"raw","run_ms":0.001}') for lease in leases])
        done += len(leases)
    return count / (time.perf_counter() - begun)


def report(workload: str, **figures: Any) -> dict[str, Any]:
    """Print one line for people and one for programs."""
    shown = {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}
    print(f"{workload}: " + "  ".join(f"{name}={_human(value)}" for name, value in shown.items()))
    print(json.dumps({"workload": workload, **shown}), flush=True)
    return shown


def _human(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) and abs(value) >= 1000 else str(value)


def percentile(values: list[float], percent: float) -> float:
    """By the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


median = statistics.median
