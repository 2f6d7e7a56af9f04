"""One peer at work: a Redis, a journal, its worker processes and its producer, all fresh."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import psutil

from tests import databases
from tests.benchmarks import common, journal
from tests.benchmarks.peers.catalogue import ROOT, Peer
from tests.servers import launcher

WARM_UP = 500


def postgres_url(entry: dict[str, Any]) -> str:
    """The address of a database, as node-postgres takes it."""
    address = f"{quote(entry['USER'])}:{quote(entry['PASSWORD'])}@/{quote(entry['NAME'])}"
    where = f"?host={quote(entry['HOST'], safe='')}&port={entry['PORT'] or 5432}"
    return f"postgresql://{address}{where}"


class PeerFailedError(Exception):
    """It did not do what it should; the message says what."""


class Session:
    """The peer, from start to end. Without a worker for what only enqueues."""

    def __init__(self, peer: Peer, *, worker: bool) -> None:
        self.peer = peer
        self._worker = worker
        self._stack = contextlib.ExitStack()
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Session:
        with self._stack as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=common.MEMORY)))
            self.server = stack.enter_context(launcher("redis7"))
            self.journal: mmap.mmap = stack.enter_context(
                journal.opened(str(self._folder / "journal"))
            )
            self._environment = {
                **os.environ,
                "DELAYQ_BENCH_REDIS": self.server.url,
                "DELAYQ_BENCH_JOURNAL": str(self._folder / "journal"),
                "DELAYQ_BENCH_PEER": str(self.peer.folder),
                "DJANGO_SETTINGS_MODULE": "tests.benchmarks.settings",
                "PYTHONPATH": str(ROOT),
            }
            if self.peer.database:
                database = stack.enter_context(databases.launcher("postgresql"))
                self._environment["DELAYQ_BENCH_POSTGRES"] = postgres_url(database.entry)
            stack.callback(self._stop)
            if self._worker:
                self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def produce(self, *arguments: object, seconds: float = 600) -> dict[str, Any]:
        """Run the producer; its answer."""
        command = self.peer.producer(*arguments)
        done = subprocess.run(
            command,
            env=self._environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            raise PeerFailedError(
                f"its producer failed: {(done.stderr.strip() or '?').splitlines()[-1]}"
            )
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def progress(self, count: int, first: int = 0) -> common.Progress:
        """Whether so many messages have started."""
        return common.Progress(count, first, self.journal)

    def starts(self, count: int, first: int = 0) -> list[tuple[float, int]]:
        """(time of the newest start, number of starts) of each message."""
        return journal.starts(count, first, self.journal)

    def cpu_seconds(self) -> float:
        """Of all its processes."""
        return sum(common.cpu_seconds(psutil.Process(process.pid)) for process in self._processes)

    def used_memory(self) -> int:
        """Of its Redis."""
        with self.server.client() as client:
            return int(client.info("memory")["used_memory"])

    def _start(self) -> None:
        """Start the worker, and return when it has worked."""
        with (self._folder / "worker.log").open("wb") as log:
            for line in self.peer.workers:
                command = self.peer.command(line, self.server.url)
                self._processes.append(
                    # A group of its own, for its processes end with it.
                    subprocess.Popen(
                        command,
                        env=self._environment,
                        cwd=ROOT,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        self.produce("burst", WARM_UP, journal.WARM_UP, round(time.time() + 1.5, 3))
        if not common.wait_until(self.progress(WARM_UP, journal.WARM_UP).done, 60, every=0.05):
            raise PeerFailedError(f"its worker did not begin: {self._last_words()}")
        time.sleep(0.5)

    def _last_words(self) -> str:
        lines = (self._folder / "worker.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _stop(self) -> None:
        for process in self._processes:
            _signal(process, signal.SIGTERM)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            _signal(process, signal.SIGKILL)  # whoever is left of the group
            process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
