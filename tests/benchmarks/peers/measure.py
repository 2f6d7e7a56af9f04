"""The workloads that all peers run: each returns its figure first, then what else is worth
knowing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.benchmarks import common
from tests.benchmarks.peers.catalogue import Peer
from tests.benchmarks.peers.session import PeerFailedError, Session

BURST = 20_000
ENQUEUE = 5_000
BULK = 20_000
BYTES = 20_000
RATE = 200
SECONDS = 30
#: Peers round to whole milliseconds, some downwards: only what is earlier than that counts as
#: early.
TOLERANCE = 0.001
#: Messages per second below which a peer is given up.
SLOWEST = 100


class Figures(NamedTuple):
    """What one run gave."""

    figure: float
    early: int = 0
    missing: int = 0
    details: dict[str, float] = {}


def burst(peer: Peer, scale: float) -> Figures:
    """Messages per second from the due time to the last start."""
    count = max(100, int(BURST * scale))
    with Session(peer, worker=True) as session:
        head = 2.0 + count / peer.rate
        for first in range(0, 4 * count, count):
            due = round(time.time() + head, 3)
            ended = session.produce("burst", count, first, due)["ended"]
            time.sleep(max(0.0, due - 0.1 - time.time()))
            cpu = session.cpu_seconds()
            common.wait_until(session.progress(count, first).done, 30 + count / SLOWEST)
            cpu = session.cpu_seconds() - cpu
            if ended < due - 0.2:
                break
            head *= 2
        else:
            raise PeerFailedError("enqueueing always took longer than the head start")
        starts = [start for start in session.starts(count, first) if start[1]]
    if not starts:
        raise PeerFailedError("nothing ran")
    early = sum(at < due - TOLERANCE for at, _ in starts)
    rate = len(starts) / max(1e-9, max(at for at, _ in starts) - due)
    more = {
        "ran_twice": sum(number > 1 for _, number in starts),
        "worker_cpu_us": 1e6 * cpu / len(starts),
    }
    return Figures(rate, early, count - len(starts), more)


def precision(peer: Peer, scale: float) -> Figures:
    """The median lateness in milliseconds at 200 messages a second, due in 1 to 10 s."""
    count = RATE * max(1, int(SECONDS * scale))
    with Session(peer, worker=True) as session:
        cpu, begun = session.cpu_seconds(), time.monotonic()
        due = session.produce("paced", count, 0, RATE)["due"]
        common.wait_until(session.progress(count).done, 40, every=0.2)
        percent = 100 * (session.cpu_seconds() - cpu) / (time.monotonic() - begun)
        pairs = zip(session.starts(count), due, strict=True)
        late = [(at - wanted) * 1000 for (at, number), wanted in pairs if number]
    if not late:
        raise PeerFailedError("nothing ran")
    early = sum(value < -1000 * TOLERANCE for value in late)
    details = {
        "p99_ms": common.percentile(late, 99),
        "max_ms": max(late),
        "min_ms": min(late),
        "cpu_percent": percent,
    }
    return Figures(common.percentile(late, 50), early, count - len(late), details)


def enqueue(peer: Peer, scale: float) -> Figures:
    """Messages per second, one call each, due in two hours; no worker."""
    with Session(peer, worker=False) as session:
        session.produce("enqueue", 100)
        return Figures(session.produce("enqueue", max(100, int(ENQUEUE * scale)))["per_second"])


def bulk(peer: Peer, scale: float) -> Figures:
    """Messages per second in calls of 500, due in two hours; no worker."""
    with Session(peer, worker=False) as session:
        session.produce("enqueue", 1)
        return Figures(session.produce("bulk", max(500, int(BULK * scale)))["per_second"])


def bytes_(peer: Peer, scale: float) -> Figures:
    """Bytes of Redis per waiting message with about 100 bytes of arguments; no worker."""
    count = max(500, int(BYTES * scale))
    with Session(peer, worker=False) as session:
        session.produce("enqueue", 1)
        before = session.used_memory()
        session.produce("bulk", count)
        return Figures((session.used_memory() - before) / count)


class Workload(NamedTuple):
    """How to compare."""

    measure: Callable[[Peer, float], Figures]
    unit: str
    runs: int
    applies: Callable[[Peer], bool] = lambda peer: True


WORKLOADS: dict[str, Workload] = {
    "enqueue": Workload(enqueue, "messages/s", 5),
    "bulk": Workload(bulk, "messages/s", 5, lambda peer: peer.bulk),
    "burst": Workload(burst, "messages/s", 5),
    "precision": Workload(precision, "ms p50", 5),
    "bytes": Workload(bytes_, "bytes/message", 1, lambda peer: not peer.database),
}


def details(runs: list[Figures]) -> dict[str, Any]:
    """Medians of the details, sums of what went wrong."""
    names = runs[0].details
    medians = {name: common.median([run.details[name] for run in runs]) for name in names}
    return {
        **medians,
        "early": sum(run.early for run in runs),
        "missing": sum(run.missing for run in runs),
    }
