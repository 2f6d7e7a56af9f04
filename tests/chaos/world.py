"""What a chaos program has: Redis, a database, worker processes, and a checker of what they have
left behind."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, NamedTuple

from django.db import Error, connection

from django_delayq import DelayQError
from tests import databases
from tests.acceptance.history import History
from tests.acceptance.process import WorkerProcess
from tests.chaos import history
from tests.servers import Server, binary_of, launcher


class Options(NamedTuple):
    """What a program was started with."""

    database: str
    count: int
    seconds: float
    seed: int
    variant: str = ""
    """kill, frozen, term, migrate, replica, or nothing."""
    points: tuple[str, ...] = ()
    reconcile_after: float = 10.0


class World:
    """This process is set up against it, as the producer."""

    def __init__(self, options: Options, server: Server | None = None, **delayq: Any) -> None:
        self.options = options
        self.redis = server or launcher("redis7" if binary_of("redis7") else "valkey")
        self.broken: list[str] = []
        self.workers: list[WorkerProcess] = []
        self._delayq = {"PREFIX": "chaos", "RECONCILE_AFTER": options.reconcile_after, **delayq}
        self._stack = ExitStack()

    def __enter__(self) -> World:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        connection.close()
        self._stack.close()

    def _start(self) -> None:
        self.folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="delayq-chaos-")))
        self.history = History(self.folder / "history")
        self._stack.callback(self.redis.stop)
        self.redis.start(appendonly=True)
        self.database = self._stack.enter_context(databases.launcher(self.options.database))
        self._stack.callback(self._close_workers)
        entry = {
            **self.database.entry,
            "CONN_MAX_AGE": 60,
        }  # a new connection for every task would be what is measured
        if self.options.database == "sqlite":
            entry["OPTIONS"]["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
            "DELAYQ_CHAOS_SETTINGS": json.dumps({"REDIS": self.redis.url, **self._delayq}),
            history.VARIABLE: str(self.history.path),
            databases.VARIABLE: json.dumps(entry),
        }
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", run_syncdb=True, verbosity=0)

    def _close_workers(self) -> None:
        for worker in self.workers:
            worker.close()

    # Processes

    def begin(self, *arguments: str, **environment: str) -> WorkerProcess:
        """Start `run_delayq` and do not wait for it."""
        worker = WorkerProcess(
            ("--log-format", "logfmt", *arguments), {**os.environ, **environment}, self.folder
        )
        self.workers.append(worker)
        return worker

    def worker(self, *arguments: str) -> WorkerProcess:
        """Start `run_delayq` and wait until it works."""
        return self.begin(*arguments).wait_for("Ready in ", 30)

    # Looking

    def stream(self) -> int:
        """Finished messages that wait for an archiver."""
        from django_delayq.store import get_store
        from django_delayq.store.finished import lengths

        return sum(lengths(get_store(), get_store().partitions.all("default")))

    def live(self) -> int:
        """Messages in Redis that are not finished."""
        from django_delayq.store import get_store

        every = [
            get_store().queries.stats(partition)
            for partition in get_store().partitions.all("default")
        ]
        return sum(stats.waiting + stats.leased for stats in every)

    def outbox(self) -> int:
        """Rows that SQL still answers for."""
        from django_delayq.models import OutboxMessage

        return OutboxMessage.objects.count()

    def archived(self) -> int:
        """Rows of the archive."""
        from django_delayq.models import ArchivedMessage

        return ArchivedMessage.objects.count()

    def settled(self) -> bool:
        """Whether nothing is on its way any more."""
        return not (self.outbox() or self.live() or self.stream())

    def wait(self, condition: Callable[[], bool], seconds: float, every: float = 0.05) -> bool:
        """Whether it comes true in time. A server that is away makes it "not yet"."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if condition():
                    return True
            except Error:
                connection.close()
            except DelayQError:
                time.sleep(every)
            time.sleep(every)
        return False

    # Checking

    def promise(self, kept: bool, text: str) -> None:
        """Keep in mind what does not hold."""
        if not kept:
            self.broken.append(text)

    def check_archive(self, ids: Iterable[str], may_be_twice: Collection[str] = ()) -> None:
        """Each of these messages has one row, which says acked, and there is nothing else
        anywhere."""
        from django_delayq.models import ArchivedMessage, UnarchivableEntry

        wanted = set(ids)
        rows = list(
            ArchivedMessage.objects.values_list("message_id", "state", "reason", "error_message")
        )
        counts = Counter(message_id.hex for message_id, *_ in rows)
        bad = [(message_id.hex, *rest) for message_id, *rest in rows if rest[0] != "acked"]
        twice = [
            message_id
            for message_id, count in counts.items()
            if count > 1 and message_id not in may_be_twice
        ]
        self.promise(not bad, f"{len(bad)} rows are not acked: {bad[:3]}")
        self.promise(not twice, f"{len(twice)} messages have more than one row: {twice[:3]}")
        missing, strange = wanted - counts.keys(), counts.keys() - wanted
        self.promise(not missing, f"{len(missing)} messages have no row: {sorted(missing)[:3]}")
        self.promise(not strange, f"{len(strange)} rows are of no message: {sorted(strange)[:3]}")
        left = {"outbox": self.outbox(), "stream": self.stream(), "live in Redis": self.live()}
        left["unarchivable"] = UnarchivableEntry.objects.count()
        self.promise(not any(left.values()), f"something is left: {left}")

    def finish(self, name: str, text: str, **figures: Any) -> int:
        """Say what was seen, as JSON and for people. Returns the exit code."""
        tracebacks = sum(worker.output.count("Traceback") for worker in self.workers)
        options = self.options
        head = {
            "program": name,
            "variant": options.variant,
            "database": options.database,
            "seed": options.seed,
        }
        whole = {**head, **figures, "tracebacks": tracebacks, "broken": self.broken}
        print(json.dumps(whole), flush=True)
        title = f"{name} --{options.variant}" if options.variant else name
        print(
            f"{title} on {options.database}: {text}: {'BROKEN' if self.broken else 'kept'}",
            flush=True,
        )
        for promise in self.broken:
            sys.stderr.write(f"BROKEN PROMISE: {promise}\n")
        if self.broken or tracebacks:
            self._show_errors()
        return 1 if self.broken else 0

    def _show_errors(self) -> None:
        for worker in self.workers:
            if "Traceback" in worker.output:
                at = worker.output.index("Traceback")
                sys.stderr.write(f"a worker said:\n{worker.output[max(0, at - 300) : at + 9000]}\n")
                return


def milliseconds(values: Iterable[float], share: float) -> float:
    """The value below which so much lies, in ms."""
    ordered = sorted(values)
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)
