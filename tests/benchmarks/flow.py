"""Limits: 10,000 messages that are due at once leave at 100 a second with 4 worker processes, and
at most 3 of each of 1,000 keys run at the same time."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from tests.benchmarks import common
from tests.benchmarks.fairness import neighbours
from tests.benchmarks.journal import SLOTS, Progress, starts
from tests.benchmarks.precision import Lateness, lateness
from tests.servers import Server

RATE = 100
PACED = 10_000
KEYS = 1_000
PER_KEY = 10
CONCURRENCY = 3
RUN_SECONDS = 0.02
PROCESSES = 4
#: A rate lets what half a second gives, and one, start at once.
AT_ONCE = RATE // 2 + 1
#: Where the messages of the small topic and of the keys are in the journal.
ALONE, BESIDE, KEYED = 100_000, 200_000, 300_000
#: A timed count of commands.
COUNTED_SECONDS = 10


class Commands:
    """How many commands clients have sent. Those of scripts do not count."""

    def __init__(self) -> None:
        self.count = 0


@contextmanager
def monitored(server: Server) -> Iterator[Commands]:
    """Counts with MONITOR while the block runs."""
    commands = Commands()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(server.primaries[0].socket))
    connection.sendall(b"MONITOR\r\n")

    def read() -> None:
        with connection.makefile("rb") as lines:
            for line in lines:
                commands.count += line.startswith(b"+") and b" lua] " not in line[:60]

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield commands
    finally:
        connection.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        connection.close()


def started(count: int, first: int = 0) -> int:
    """How many of these have started."""
    return sum(times > 0 for _, times in starts(count, first))


def beside(first: int, seconds: float) -> Lateness:
    """50 messages a second of a small topic."""
    due = neighbours(first, lambda sent: sent >= seconds * 50)
    return lateness(due, first)


def at_a_rate(server: Server, count: int, seconds: float) -> None:
    """Reports the rate, the commands for each message, and the lateness of a small topic before and
    beside it."""
    from tests.benchmarks.tasks import paced

    alone = beside(ALONE, seconds)
    paced.enqueue_many((index, "") for index in range(count))
    assert common.wait_until(lambda: started(count) > 0, 20), "nothing was started"
    before = started(count)
    with monitored(server) as commands:
        time.sleep(min(COUNTED_SECONDS, seconds))
    each = commands.count / (started(count) - before)
    together = beside(BESIDE, seconds)
    assert common.wait_until(Progress(count).done, 30 + 1.5 * count / RATE), "not everything ran"
    times = sorted(at for at, _ in starts(count))
    rate = (count - AT_ONCE) / (times[-1] - times[0])
    common.report(
        "flow",
        rate,
        "messages/s",
        case=f"rate {RATE}/s, {PROCESSES} processes",
        ceiling=RATE,
        ceiling_is="the rate",
        commands_each=each,
        neighbour_alone_p99_ms=alone.p99_ms,
        neighbour_beside_p99_ms=together.p99_ms,
        messages=count,
    )
    assert all(runs == 1 for _, runs in starts(count)), "messages ran twice"
    assert abs(rate / RATE - 1) <= 0.02, f"{rate:.1f} messages a second"
    assert each <= 5, f"{each:.1f} commands for each message"


def most_at_once(runs: list[tuple[float, float]]) -> int:
    """The most of these runs, from start to end, at any time."""
    changes = chain.from_iterable(((start, 1), (end, -1)) for start, end in runs)
    most = now = 0
    for _, change in sorted(changes, key=lambda change: (change[0], change[1])):
        now += change
        most = max(most, now)
    return most


def at_once(keys: int) -> None:
    """Reports how many messages of a key ran at the same time at most."""
    from tests.benchmarks.tasks import keyed

    count = keys * PER_KEY
    calls = ((KEYED + index, index // PER_KEY, RUN_SECONDS) for index in range(count))
    begun = time.monotonic()
    keyed.enqueue_many(calls)
    ends = KEYED + SLOTS // 2
    assert common.wait_until(Progress(count, ends).done, 120, every=0.1), "not everything ran"
    took = time.monotonic() - begun
    runs = list(zip(starts(count, KEYED), starts(count, ends), strict=True))
    most = max(
        most_at_once([(start, end) for (start, _), (end, _) in runs[at : at + PER_KEY]])
        for at in range(0, count, PER_KEY)
    )
    common.report(
        "flow",
        most,
        "at once",
        case=f"concurrency {CONCURRENCY} for each of {keys:,} keys",
        ceiling=CONCURRENCY,
        ceiling_is="the limit",
        messages=count,
        per_second=count / took,
    )
    assert all(first[1] == 1 for first, _ in runs), "messages ran twice"
    assert most <= CONCURRENCY, f"{most} messages of a key ran at the same time"


def main(arguments: list[str]) -> None:
    """Further arguments go to run_delayq."""
    options = common.options(arguments, 1)
    worker = ("--processes", str(PROCESSES), *options.worker)
    with (
        common.bench_server() as server,
        common.BenchWorker(*worker, topics="bench,paced,keyed,neighbour") as bench_worker,
    ):
        bench_worker.warm_up()
        at_a_rate(server, options.scaled(PACED, 300), options.scaled(20, 3))
        at_once(options.scaled(KEYS, 30))


if __name__ == "__main__":
    main(sys.argv[1:])
