"""Real worker processes, and the history of what they ran."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from django.test.utils import override_settings

from django_delayq import DelayQError, Handle
from django_delayq.conf import parse_settings
from django_delayq.message import Attempts
from django_delayq.store import get_store
from django_delayq.store.connection import connect
from django_delayq.store.keys import leased_key, partition_keys
from django_delayq.store.redis import RedisStore
from tests.servers import PORTS, Server, launcher, wait_until

ROOT = Path(__file__).parents[2]

# As in embedded.py: the child dies with the tests, and a preexec_fn would not be safe beside threads.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


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


class Run(NamedTuple):
    """One line of the history."""

    id: str
    attempt: int
    started: float
    """time.time() of the worker: the clock of the server too, unless a test has bent one of them."""
    pid: int
    what: str
    """`start`, `done`, or what the task says."""


class End(NamedTuple):
    """One entry of the finished stream."""

    id: str
    state: str
    reason: str
    attempts: Attempts | None


class History:
    """The runs of all tasks of one queue, written by the workers with O_APPEND: it survives kill -9."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ahead: dict[int, float] = {}
        """Pid -> by how many seconds the clock of that worker is bent."""
        self._position = 0
        self._runs: list[Run] = []

    def all(self) -> list[Run]:
        """Every line so far."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._position)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._position += len(whole)
            self._runs += map(_parse, whole.decode().splitlines())
        return self._runs

    def starts(self, *handles: Handle) -> list[Run]:
        """The starts of these messages, or of all."""
        ids = {handle.id for handle in handles}
        return [run for run in self.all() if run.what == "start" and (not ids or run.id in ids)]

    def count(self, *handles: Handle) -> int:
        """How many different messages have been started."""
        return len({run.id for run in self.starts(*handles)})

    def lost(self, handles: Iterable[Handle]) -> set[str]:
        """Accepted, never started."""
        return {handle.id for handle in handles} - {run.id for run in self.starts()}

    def early(self, handles: Iterable[Handle], server_ahead: float = 0.0) -> dict[str, float]:
        """First starts before the due time by the server's clock: id -> seconds."""
        return {message: -late for message, late in self.lateness(handles, server_ahead).items() if late < 0}

    def lateness(self, handles: Iterable[Handle], server_ahead: float = 0.0) -> dict[str, float]:
        """Id -> first start minus due time in seconds. `server_ahead`: by how much the server's clock is bent."""
        first = {run.id: run for run in reversed(self.starts())}
        at = {message: run.started - self.ahead.get(run.pid, 0.0) + server_ahead for message, run in first.items()}
        return {h.id: at[h.id] - h.due_ms / 1000 for h in handles if h.id in at and h.due_ms is not None}

    def duplicates(self, *handles: Handle) -> dict[str, int]:
        """Messages that were started more than once."""
        counts = Counter(run.id for run in self.starts(*handles))
        return {message: count for message, count in counts.items() if count > 1}

    def done(self, *handles: Handle) -> list[Run]:
        """The ends of `hold` and `spin`."""
        ids = {handle.id for handle in handles}
        return [run for run in self.all() if run.what == "done" and (not ids or run.id in ids)]


def _parse(line: str) -> Run:
    message, attempt, started, pid, what = line.split(" ", 4)
    return Run(message, int(attempt), float(started), int(pid), what)


class WorkerProcess:
    """`python -m django run_delayq`. Its output goes to files, and it dies with the tests."""

    def __init__(self, arguments: Iterable[str], environment: dict[str, str], folder: Path) -> None:
        name = f"worker-{secrets.token_hex(3)}"
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        self.begun = time.monotonic()
        command = (sys.executable, "-m", "django", "run_delayq", *arguments)
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the command: of the worker, or with --processes of the supervisor."""
        return self.process.pid

    @property
    def out(self) -> str:
        """What it has printed."""
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        """What it has printed to stderr."""
        return self._err.read_text(errors="replace")

    @property
    def output(self) -> str:
        """Both."""
        return self.out + self.err

    def wait_for(self, text: str, seconds: float = 10.0, times: int = 1) -> WorkerProcess:
        """Until it has printed the text (so many times)."""

        def printed() -> bool:
            ended = self.process.poll() is not None
            if self.output.count(text) >= times:
                return True
            assert not ended, f"ended with {self.process.returncode} before it said {text!r}:\n{self.output}"
            return False

        wait_until(printed, f"the worker says {text!r}", seconds)
        return self

    def ready(self) -> WorkerProcess:
        """Until it works."""
        return self.wait_for("Ready in ")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def terminate(self) -> None:
        """Ask it to drain."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def wait(self, seconds: float = 10.0) -> int:
        """Its exit code, minus the signal's number when a signal ended it."""
        return self.process.wait(seconds)

    def runs_for(self, seconds: float) -> bool:
        """Whether it goes on for so long."""
        try:
            self.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def stop(self) -> int:
        """Drain; returns the exit code."""
        self.terminate()
        return self.wait()

    def close(self) -> None:
        """End it and the processes it has started, whatever state they are in."""
        with suppress(ProcessLookupError):  # the group may be gone
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


class Queue:
    """One prefix on one server: what a project with its own DELAYQ has. Also set for this process, the producer."""

    opened: ClassVar[list[Queue]] = []

    def __init__(self, url: str, folder: Path, **options: Any) -> None:
        self.url = url
        self.folder = folder
        self.prefix = f"acceptance-{secrets.token_hex(4)}"
        self.options = options
        self.history = History(folder / f"history-{secrets.token_hex(3)}")
        self.workers: list[WorkerProcess] = []
        self._settings = {"REDIS": url, "PREFIX": self.prefix, **options}
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
        return RedisStore(connect(settings), settings)

    @property
    def environment(self) -> dict[str, str]:
        """Of a process of this project."""
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.acceptance.settings",
            "DELAYQ_TEST_REDIS": self.url,
            "DELAYQ_TEST_PREFIX": self.prefix,
            "DELAYQ_TEST_SETTINGS": json.dumps(self.options),
            "DELAYQ_TEST_HISTORY": str(self.history.path),
        }

    def begin(self, *arguments: str, **environment: str) -> WorkerProcess:
        """Start a worker and do not wait for it."""
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
            raise TimeoutError(f"{error}; {len(left)} have not, for example {sorted(left)[:3]}") from None

    def wait_for_beats(self, count: int) -> None:
        """Until so many worker processes have said that they live."""
        wait_until(lambda: len(self.store.heartbeats()) == count, f"{count} processes work")

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
        parts = [self.store.stats(partition) for partition in self.store.partitions.all(topic)]
        return sum(part.waiting + part.leased for part in parts)

    def leased(self, topic: str = "default") -> set[str]:
        """Ids that workers hold."""
        found: set[str] = set()
        for partition in self.store.partitions.all(topic):
            members = self.store.command("ZRANGE", leased_key(self.prefix, partition), 0, -1)
            found.update(member.hex() for member in members)
        return found

    def ends(self, topic: str = "default") -> list[End]:
        """The entries of the finished stream: what the archive will get."""
        found = []
        for partition in self.store.partitions.all(topic):
            for _, entry in self.store.client.xrange(partition_keys(self.prefix, partition)[6]):
                attempts = Attempts.decode(entry[b"attempts"]) if entry[b"attempts"] else None
                reason = json.loads(entry[b"detail"]).get("reason", "")
                found.append(End(entry[b"id"].hex(), entry[b"state"].decode(), reason, attempts))
        return found

    def acked_once(self, handles: Iterable[Handle], topic: str = "default") -> bool:
        """Whether the finished stream has each message as acked, once, and nothing else."""
        return sorted((end.id, end.state) for end in self.ends(topic)) == sorted((h.id, "acked") for h in handles)


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
