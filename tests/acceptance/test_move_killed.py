"""kill -9 of `delayq move-store` at each of its steps, under load, and what follows."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from django_delayq.store import get_store
from tests.acceptance import tasks
from tests.acceptance.harness import Figure, Queue
from tests.acceptance.killed_move import STEPS
from tests.acceptance.process import ROOT
from tests.servers import Server, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

EACH_SECOND = 100
#: Seconds after which the freeze of a command that was killed may be undone.
LIMIT = 1.5


@contextmanager
def load() -> Iterator[list[Any]]:
    """Messages that are due at once or up to 2 s later, until the end of the block."""
    handles: list[Any] = []
    ending = threading.Event()

    def send() -> None:
        while not ending.wait(1 / EACH_SECOND):
            handles.append(tasks.note.using(delay=len(handles) % 200 / 100).enqueue())

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield handles
    finally:
        ending.set()
        thread.join()


def command(queue: Queue, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one with the settings of the queue."""
    return subprocess.run(
        (sys.executable, "-m", *arguments),
        cwd=ROOT,
        env=queue.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("way", ["copy", "replica"])
@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_lost_or_runs_twice_wherever_the_command_is_killed(
    own_server: Callable[..., Server],
    queue_on: Callable[..., Queue],
    tmp_path: Path,
    figure: Figure,
    step: str,
    way: str,
) -> None:
    old, new = own_server(repl_diskless_sync_delay=0), own_server(repl_diskless_sync_delay=0)
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "db")}
    queue = queue_on(old, database=database, REDIS_NEXT=new.url)
    queue.migrate()
    arguments = ("--way", way, "--limit", str(LIMIT), "--reason", "killed")
    is_decided = step in ("decided", "arrived")
    workers = [queue.begin("--no-archiver", "--concurrency", "4") for _ in range(2)]
    for worker in workers:
        worker.wait_for("Ready in ", 30)
    later = tasks.note.using(delay=86_400).enqueue_many([()] * 1_000)
    with load() as handles:
        killed = command(queue, "tests.acceptance.killed_move", step, *arguments)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        killed_at, count = time.time(), len(handles)
        # Nobody runs it again, and everything goes on.
        wait_until(lambda: len(handles) > count + 5, "messages are taken", 30)
        wait_until(lambda: queue.history.starts()[-1].started > killed_at + LIMIT, "tasks run", 30)
        assert get_store().client.where == (new if is_decided else old).url
        if step != "decided":  # that is done only once
            killed = command(queue, "tests.acceptance.killed_move", step, *arguments)
            assert killed.returncode == -signal.SIGKILL, killed.stderr
        again = command(queue, "django", "delayq", "move-store", *arguments)  # at once
        assert again.returncode == 0, again.stderr
    wait_until(lambda: queue.history.count(*handles) == len(handles), "all have run", 30)
    wait_until(lambda: not queue.leased(), "all are acked", 30)
    twice = queue.history.duplicates()
    figure(f"{len(handles)} messages; lost {len(queue.history.lost(handles))}, twice {len(twice)}")
    assert not twice
    assert queue.acked_once(handles)
    assert queue.live() == len(later)
    assert queue.store.client.where == get_store().client.where == new.url
