"""Queues with real worker processes, on servers of the tests."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from django.test.utils import override_settings

from django_delayq import DelayQError, Handle
from django_delayq.core.conf import parse_settings
from django_delayq.core.message import Attempts
from django_delayq.store import get_store
from django_delayq.store.connection import open_client
from django_delayq.store.keys import leased_key, partition_keys
from django_delayq.store.store import RedisStore
from tests.acceptance.history import History
from tests.acceptance.process import ROOT, WorkerProcess
from tests.databases import VARIABLE
from tests.servers import PORTS, Server, launcher, wait_until


@contextmanager
def running(kind: str, **config: object) -> Iterator[Server]:
    """A server of its own for a test that does harm to it, with AOF unless told otherwise."""
    server = launcher(kind)
    server.start(**{"appendonly": True, **config})  # type: ignore[arg-type]
    try:
        yield server
    finally:
        server.stop()


def stop_gracefully(server: Server) -> None:
    """SIGTERM, as an operator stops Redis. `server.restart()` brings it back with its data."""
    for node in server.primaries:
        if node.pid is not None:
            os.kill(node.pid, signal.SIGTERM)
        wait_until(lambda node=node: node.pid is None, "Redis has stopped")


class End(NamedTuple):
    """One entry of the finished stream."""

    id: str
    state: str
    reason: str
    """One word."""
    error: str
    """Class and message of the exception, if there was one."""
    attempts: Attempts | None


class Queue:
    """One prefix on one server: what a project with its own DELAYQ has. Also set for this process,
    the producer.

    Without a database (an entry of DATABASES, with our tables) workers are started with
    --no-archiver: the finished stream is then what a test looks at. What Redis cannot take is an
    error here either way, unless a test says other.
    """

    opened: ClassVar[list[Queue]] = []

    def __init__(
        self, url: str, folder: Path, *, database: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        self.url = url
        self.folder = folder
        self.database = database
        self.prefix = f"acceptance-{secrets.token_hex(4)}"
        self.options = options
        self.history = History(folder / f"history-{secrets.token_hex(3)}")
        self.workers: list[WorkerProcess] = []
        self._settings = {"REDIS": url, "PREFIX": self.prefix, "ON_REDIS_ERROR": "raise", **options}
        self._here = self.here()

    @contextmanager
    def here(self) -> Iterator[Queue]:
        """What this process sends goes to this queue."""
        with override_settings(DELAYQ=self._settings):
            yield self
            get_store().close()

    def __enter__(self) -> Queue:
        self._here.__enter__()
        self.opened.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.close()
        self.opened.remove(self)
        self.store.close()
        self._here.__exit__(None, None, None)

    @cached_property
    def store(self) -> RedisStore:
        """For looking, with connections of its own."""
        settings = parse_settings(self._settings)
        return RedisStore(open_client(settings), settings)

    @property
    def environment(self) -> dict[str, str]:
        """Of a process of this project."""
        database = {VARIABLE: json.dumps(self.database)} if self.database else {}
        return {
            **os.environ,
            **database,
            "DJANGO_SETTINGS_MODULE": "tests.acceptance.settings",
            "DELAYQ_TEST_REDIS": self.url,
            "DELAYQ_TEST_PREFIX": self.prefix,
            "DELAYQ_TEST_SETTINGS": json.dumps(self.options),
            "DELAYQ_TEST_HISTORY": str(self.history.path),
        }

    def migrate(self) -> None:
        """Make our tables in the database of the workers."""
        command = (sys.executable, "-m", "django", "migrate", "--verbosity", "0")
        subprocess.run(command, cwd=ROOT, env=self.environment, check=True)

    def begin(self, *arguments: str, **environment: str) -> WorkerProcess:
        """Start a worker and do not wait for it."""
        if not self.database and "--archiver" not in arguments:
            arguments = ("--no-archiver", *arguments)
        worker = WorkerProcess(arguments, {**self.environment, **environment}, self.folder)
        self.workers.append(worker)
        return worker

    def worker(self, *arguments: str, **environment: str) -> WorkerProcess:
        """Start a worker and wait until it works."""
        return self.begin(*arguments, **environment).ready()

    def wait_for_runs(self, handles: Iterable[Handle], seconds: float = 20.0) -> None:
        """Until every message has been started."""
        left = {handle.id for handle in handles}

        def started() -> bool:
            left.difference_update(run.id for run in self.history.starts())
            return not left

        try:
            wait_until(started, "all messages have been started", seconds)
        except TimeoutError as error:
            raise TimeoutError(
                f"{error}; {len(left)} have not, for example {sorted(left)[:3]}"
            ) from None

    def wait_for_beats(self, count: int) -> None:
        """Until so many worker processes have said that they live."""
        wait_until(lambda: len(self.store.workers.heartbeats()) == count, f"{count} processes work")

    def wait_until_drained(self, topic: str = "default", seconds: float = 20.0) -> None:
        """Until nothing is due, leased or delayed."""

        def drained() -> bool:
            try:
                return self.live(topic) == 0
            except DelayQError:  # a server that is not yet back
                return False

        wait_until(drained, f"topic {topic} is empty", seconds)

    def live(self, topic: str = "default") -> int:
        """How many messages are not finished."""
        parts = [
            self.store.queries.stats(partition) for partition in self.store.partitions.all(topic)
        ]
        return sum(part.waiting + part.leased for part in parts)

    def leased(self, topic: str = "default") -> set[str]:
        """Ids that workers hold."""
        found: set[str] = set()
        for partition in self.store.partitions.all(topic):
            members = self.store.client.command("ZRANGE", leased_key(self.prefix, partition), 0, -1)
            found.update(member.hex() for member in members)
        return found

    def ends(self, topic: str = "default") -> list[End]:
        """The entries of the finished stream: what the archive will get."""
        found = []
        for partition in self.store.partitions.all(topic):
            for _, entry in self.store.client.redis.xrange(
                partition_keys(self.prefix, partition)[6]
            ):
                attempts = Attempts.decode(entry[b"attempts"]) if entry[b"attempts"] else None
                detail = json.loads(entry[b"detail"])
                error = f"{detail['error']}: {detail['message']}" if detail.get("error") else ""
                state, reason = entry[b"state"].decode(), detail.get("reason", "")
                found.append(End(entry[b"id"].hex(), state, reason, error, attempts))
        return found

    def detail_of(self, handle: Handle, topic: str = "default") -> dict[str, Any]:
        """What the worker reported about the end of the message."""
        for partition in self.store.partitions.all(topic):
            for _, entry in self.store.client.redis.xrange(
                partition_keys(self.prefix, partition)[6]
            ):
                if entry[b"id"].hex() == handle.id:
                    detail: dict[str, Any] = json.loads(entry[b"detail"])
                    return detail
        raise KeyError(handle.id)

    def acked_once(self, handles: Iterable[Handle], topic: str = "default") -> bool:
        """Whether the finished stream has each message as acked, once, and nothing else."""
        return sorted((end.id, end.state) for end in self.ends(topic)) == sorted(
            (h.id, "acked") for h in handles
        )


def gate(path: Path, *attempts: int) -> None:
    """Let `hold` go on, in these attempts."""
    for attempt in attempts:
        Path(f"{path}.{attempt}").touch()


def free_port() -> int:
    """Probably free: below the ephemeral ports, where nothing else of the tests listens."""
    return secrets.choice(range(PORTS.stop + 1_000, PORTS.stop + 9_000))


def http_status(port: int, path: str) -> tuple[int, Any]:
    """Status and JSON body of a probe; 0 when nobody answers."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)
    except URLError:
        return 0, None


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which so much lies, in ms."""
    ordered = sorted(values)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


Figure = Callable[[str], None]
