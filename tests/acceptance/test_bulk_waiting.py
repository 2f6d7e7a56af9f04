"""Bulk operations on waiting messages, with real worker processes that are killed in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_delayq.core.message import key_id
from django_delayq.models import BulkMessage, BulkOperation
from django_delayq.operators.waiting_orders import WaitingChange, start_waiting
from django_delayq.operators.waiting_selection import WaitingSelection, waiting_messages
from django_delayq.store.keys import Partition, partition_keys
from django_delayq.store.store import RedisStore
from django_delayq.tasks.argument_edit import ArgumentEdit
from tests.acceptance.harness import Figure
from tests.acceptance.process import ROOT, WorkerProcess
from tests.app.tasks import record
from tests.bulk_hands import OPERATOR, be_silent
from tests.databases import VARIABLE
from tests.hands import DAY, DEFAULT
from tests.servers import Server, wait_until

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.databases,
    pytest.mark.django_db(transaction=True),
]

CAMPAIGN, OTHERS = 12_000, 8_000
WHOLE = WaitingSelection(topic="default")
#: An edit that gives another message if it is made twice.
TWICE_IS_ANOTHER = ArgumentEdit(
    task="tests.app.tasks.record", argument="value", how="replace", pairs=(("a", "aa"),)
)


@pytest.fixture
def environment(server: Server, prefix: str, delayq: RedisStore) -> dict[str, str]:
    """Processes on the test's Redis and database."""
    known = ("ENGINE", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
    entry = {key: connection.settings_dict[key] for key in known}
    entry["NAME"] = str(connection.settings_dict["NAME"])
    return {
        **os.environ,
        VARIABLE: json.dumps(entry),
        "DJANGO_SETTINGS_MODULE": "tests.admin.worker_settings",
        "DELAYQ_TEST_REDIS": server.url,
        "DELAYQ_TEST_PREFIX": prefix,
    }


@pytest.fixture
def start_worker(
    environment: dict[str, str], tmp_path: Path
) -> Iterator[Callable[[], WorkerProcess]]:
    """Starts run_delayq, as often as a test needs it."""
    started: list[WorkerProcess] = []

    def start() -> WorkerProcess:
        started.append(WorkerProcess(("--topics", "orders"), environment, tmp_path))
        return started[-1].ready()

    yield start
    for process in started:
        process.close()


def dues(store: RedisStore, partition: Partition = DEFAULT) -> dict[bytes, float]:
    """When each message of the partition is due, in ms."""
    lane = partition_keys(store.client.prefix, partition)[1]
    return dict(store.client.redis.zscan_iter(lane, count=5_000))


def fill(store: RedisStore, count: int = CAMPAIGN) -> tuple[dict[bytes, float], set[bytes]]:
    """A wrong campaign among other messages: due times of all, and the ids of the campaign."""
    wrong = record.enqueue_many(
        [record.using(key=f"campaign:{n}", delay=DAY).prepare(f"a{n}") for n in range(count)]
    )
    record.enqueue_many([record.using(delay=DAY).prepare(n) for n in range(OTHERS)])
    before = dues(store)
    assert len(before) == count + OTHERS
    return before, {handle.identity for handle in wrong}


def in_the_middle(operation: BulkOperation, count: int = CAMPAIGN) -> bool:
    operation.refresh_from_db()
    return operation.count >= count // 6


def check(store: RedisStore, before: dict[bytes, float], meant: set[bytes], kind: str) -> None:
    """Exactly those are changed, each once."""
    after = dues(store)
    if kind == "edit":
        assert after == before
        values = Counter(message.args[0] for message in waiting_messages(WHOLE))
        assert values == Counter(f"aa{n}" for n in range(CAMPAIGN)) + Counter(range(OTHERS))
    elif kind == "cancel":
        assert after == {name: due for name, due in before.items() if name not in meant}
    elif kind == "run now":
        assert {name: due for name, due in after.items() if name not in meant} == {
            name: due for name, due in before.items() if name not in meant
        }
        assert after.keys() == before.keys()
        assert max(after[name] for name in meant) <= store.clock_ms()
    elif kind == "move":
        assert after == {name: due for name, due in before.items() if name not in meant}
        elsewhere = dues(store, Partition("crowd", 0))
        assert elsewhere.keys() == {key_id("crowd", f"campaign:{n}") for n in range(len(meant))}
        assert set(elsewhere.values()) <= {before[name] for name in meant}
    else:
        by = 3_600_000
        assert after == {name: due + by * (name in meant) for name, due in before.items()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "count"),
    [("cancel", CAMPAIGN), ("shift", CAMPAIGN), ("edit", CAMPAIGN), ("run now", CAMPAIGN),
     ("move", 600)],  # a move is of one message at a time
)  # fmt: skip
def test_after_kill_9_of_the_worker_exactly_the_campaign_is_changed_once(
    kind: str,
    count: int,
    delayq: RedisStore,
    start_worker: Callable[[], WorkerProcess],
    figure: Figure,
) -> None:
    before, meant = fill(delayq, count)
    change = WaitingChange(
        kind=kind,
        by=timedelta(hours=kind == "shift"),
        to="crowd" if kind == "move" else "",
        edit=TWICE_IS_ANOTHER if kind == "edit" else None,
    )
    selection = WaitingSelection(topic="default", key_prefix="campaign:")
    victim = start_worker()
    operation = start_waiting(OPERATOR, change, selection, reason="wrong campaign")
    wait_until(lambda: in_the_middle(operation, count), "it is in the middle", 60)
    victim.kill()
    operation.refresh_from_db()
    killed_at = operation.count
    assert count // 6 <= killed_at < count and operation.status == "running"
    be_silent()
    start_worker()
    begun = time.monotonic()
    wait_until(lambda: ended(operation), "it is done", 90)
    took = time.monotonic() - begun
    assert (operation.status, operation.count, operation.total) == ("done", count, count)
    assert not BulkMessage.objects.filter(operation=operation).exclude(skipped="").exists()
    check(delayq, before, meant, kind)
    figure(f"{kind}: killed at {killed_at:,}; the other {count - killed_at:,} in {took:.1f} s")


def ended(operation: BulkOperation) -> bool:
    operation.refresh_from_db()
    return operation.finished_at is not None


@pytest.mark.long
def test_after_kill_9_of_the_command_the_same_command_goes_on(
    delayq: RedisStore, environment: dict[str, str], figure: Figure
) -> None:
    before, meant = fill(delayq)
    words = ["reschedule", "default", "--key-prefix", "campaign:", "--due-before", "30d"]
    words += ["--later", "1h", "--reason", "wrong", "--yes", "--json"]
    command = [sys.executable, "-m", "django", "delayq", *words]
    options: dict[str, Any] = {"cwd": ROOT, "env": environment, "stdin": subprocess.DEVNULL}
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, **options)
    wait_until(BulkOperation.objects.exists, "it is ordered", 30)
    operation = BulkOperation.objects.get()
    wait_until(lambda: in_the_middle(operation), "it is in the middle", 60)
    first.kill()
    first.wait()
    be_silent()
    begun = time.monotonic()
    second = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=100, **options
    )
    took = time.monotonic() - begun
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout)["count"] == CAMPAIGN
    assert BulkOperation.objects.count() == 1
    check(delayq, before, meant, "shift")
    figure(f"the command: the rest after the kill in {took:.1f} s, with its start")
