"""Which peers there are, what they need, and the settings that served each of them best."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
PEERS = ROOT / ".peers"
PACKAGE = "tests.benchmarks.peers"


class Peer(NamedTuple):
    """A queue. Commands may hold {bin}, its environment's programs, and {url}, its Redis."""

    name: str
    requirements: tuple[str, ...]
    workers: tuple[str, ...]
    """One command line per process that is started."""
    settings: str
    """For people: what differs from its defaults."""
    rate: int = 2_000
    """Messages per second that it certainly enqueues with its worker running: for the head start of
    a burst."""
    bulk: bool = False
    """Whether it can enqueue delayed messages in bulk."""
    database: bool = False
    """Whether its queue is in PostgreSQL: it gets one of its own, and no Redis is measured."""

    @property
    def folder(self) -> Path:
        """Its environment."""
        return PEERS / self.name

    @property
    def node(self) -> bool:
        """Whether it runs on Node."""
        return self.workers[0].startswith("node ")

    @property
    def package(self) -> str:
        """The package that its version is told of."""
        return (
            re.split(r"[\[<>=]", self.requirements[0])[0] if self.requirements else "django-delayq"
        )

    def command(self, line: str, url: str) -> list[str]:
        """The words of a command line."""
        programs = Path(sys.executable).parent if self.name == OURS.name else self.folder / "bin"
        return line.format(
            bin=programs, url=url, app=f"{PACKAGE}.{self.name}", here=Path(__file__).parent
        ).split()

    def producer(self, *arguments: object) -> list[str]:
        """The command of its producer."""
        line = (
            f"node {{here}}/{self.name}.mjs produce"
            if self.node
            else f"{{bin}}/python -m {PACKAGE}.produce {self.name}"
        )
        return [*self.command(line, ""), *map(str, arguments)]


OURS = Peer(
    "delayq",
    (),
    ("{bin}/python -m django run_delayq --topics bench --verbosity 0 --no-archiver",),
    "defaults, one process",
    rate=10_000,
    bulk=True,
)

_ALL = (
    Peer(
        "celery",
        ("celery", "redis", "hiredis", "packaging"),
        (
            "{bin}/celery -A {app} worker -P threads -c 8 --prefetch-multiplier 1 --loglevel ERROR"
            " --without-gossip --without-mingle --without-heartbeat",
        ),
        "8 threads, acks_late, reject_on_worker_lost, prefetch_multiplier 1, no gossip, mingle, "
        "heartbeat",
        rate=1_000,
    ),
    Peer(
        "dramatiq",
        ("dramatiq", "redis", "hiredis"),
        ("{bin}/dramatiq {app}",),
        "defaults: 2 processes, 8 threads",
    ),
    Peer(
        "huey",
        ("huey", "redis", "hiredis"),
        ("{bin}/huey_consumer {app}.queue -w 8 -k thread -q",),
        "8 threads, results=False, scheduler every second (its minimum)",
    ),
    Peer(
        "rq",
        ("rq", "redis", "hiredis"),
        ("{bin}/rq worker --with-scheduler --quiet -w rq.SimpleWorker -u {url}",) * 2,
        "2 SimpleWorkers (no fork per job), result_ttl=0",
        rate=1_000,
    ),
    Peer(
        "arq",
        ("arq", "hiredis"),
        ("{bin}/arq {app}.WorkerSettings",) * 2,
        "2 processes, max_jobs=100, poll_delay=0.1, keep_result=0",
        rate=1_500,
    ),
    Peer(
        "saq",
        ("saq[redis]", "hiredis", "typing_extensions"),
        ("{bin}/saq {app}.settings --quiet",) * 2,
        "2 processes, concurrency 50, ttl=-1",
        rate=1_500,
    ),
    Peer(
        "streaq",
        ("streaq",),
        ("{bin}/streaq run {app}:worker -w 2",),
        "2 processes, concurrency 100, ttl=0, silent",
        rate=5_000,
        bulk=True,
    ),
    Peer(
        "taskiq",
        ("taskiq", "taskiq-redis", "hiredis"),
        (
            "{bin}/taskiq worker -w 2 --log-level ERROR {app}:broker",
            "{bin}/taskiq scheduler --update-interval 1 --log-level ERROR {app}:scheduler",
        ),
        "2 processes, RedisStreamBroker, ListRedisScheduleSource, schedules read every second",
        rate=1_000,
    ),
    Peer(
        "bullmq",
        ("bullmq", "ioredis"),
        ("node {here}/bullmq.mjs worker",),
        "Node, one process, concurrency 50, removeOnComplete, attempts 5",
        rate=8_000,
        bulk=True,
    ),
    Peer(
        "graphile",
        ("graphile-worker", "pg"),
        ("node {here}/graphile.mjs worker",),
        "Node, one process, jobs in PostgreSQL, concurrency 24, pollInterval 100 ms (2 s by default)",
        rate=2_000,
        bulk=True,
        database=True,
    ),
)

CATALOGUE = {peer.name: peer for peer in (OURS, *_ALL)}
NAMES = [peer.name for peer in _ALL]
