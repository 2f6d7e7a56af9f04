"""Eight workers, one word: each kind of alert begins once and ends once, also while workers are
killed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_delayq.store.finished import GROUP
from django_delayq.store.keys import Partition, finished_key, topics_key
from tests.acceptance import tasks
from tests.acceptance.harness import Figure, Queue
from tests.acceptance.process import ROOT
from tests.servers import Server, wait_until
from tests.stats.alerts.conftest import Webhook

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

#: A topic of which the ghost alone has an entry: a killed worker leaves entries of others behind.
KEPT = Partition("kept", 0)
KINDS = ("backlog", "lag", "dead", "unserved", "archive_lag", "outbox", "audit")
#: Seconds between two looks of a worker.
EVERY = 0.5
RULES = [
    {"kind": "backlog", "limit": 3},
    {"kind": "lag", "limit": 1, "topics": ["nobody"]},
    {"kind": "dead", "topics": ["default"]},
    {"kind": "unserved", "topics": ["nobody"], "after": 0},
    {"kind": "archive_lag", "limit": 3, "topics": ["kept"]},
    {"kind": "outbox", "limit": 3},
    {"kind": "audit"},
    {"kind": "redis", "after": 1},
]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    webhook = Webhook()
    yield webhook
    webhook.close()


@pytest.fixture
def server(own_server: Callable[..., Server]) -> Server:
    return own_server()


@pytest.fixture
def queue(server: Server, tmp_path: Path, webhook: Webhook) -> Iterator[Queue]:
    """Eight workers that tell the webhook, and a topic that none of them serves."""
    database = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(tmp_path / "shop.db"),
        "OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE"},
    }
    options: dict[str, Any] = {
        "TOPICS": {"nobody": {}, "kept": {}},
        "ALERTS": [{"name": str(rule["kind"]), "to": webhook.url, **rule} for rule in RULES],
        "ALERT_SECRET": "shh",
    }
    with Queue(server.url, tmp_path, database=database, **options) as queue:
        queue.migrate()
        for _ in range(8):
            queue.begin(
                "--topics=-nobody", "--concurrency", "1", DELAYQ_TEST_ALERTS_EVERY=str(EVERY)
            )
        for worker in queue.workers:
            worker.ready()
        yield queue


def in_the_project(queue: Queue, code: str) -> None:
    """Run a few lines with the settings and the database of the workers."""
    lines = f"import django; django.setup()\nfrom django_delayq.models import *\n{code}"
    command = (sys.executable, "-c", lines)
    subprocess.run(command, cwd=ROOT, env=queue.environment, check=True)


def told(webhook: Webhook, event: str) -> Counter[str]:
    """How often each rule was told."""
    return Counter(one["rule"] for one in webhook.contents if one["event"] == event)


class Ghost:
    """An archiver that has read an entry, and neither archives it nor dies."""

    def __init__(self, queue: Queue) -> None:
        self._redis = queue.store.client.redis
        self._key = finished_key(queue.prefix, KEPT)
        self._redis.sadd(topics_key(queue.prefix), "kept:1")
        self._redis.xgroup_create(self._key, GROUP, id="0", mkstream=True)
        with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.xadd(self._key, {"id": "x"})
            pipeline.xreadgroup(GROUP, "ghost", {self._key: ">"})
            self._entry, _ = pipeline.execute()

    def hold(self) -> None:
        """Nobody takes it over for some seconds."""
        self._redis.xclaim(self._key, GROUP, "ghost", 0, [self._entry], justid=True)

    def leave(self) -> None:
        """The entry is archived, as far as Redis knows."""
        self._redis.xack(self._key, GROUP, self._entry)
        self._redis.xdel(self._key, self._entry)


@pytest.mark.long
def test_an_alert_of_each_kind_begins_once_and_ends_once_with_eight_workers(
    queue: Queue, server: Server, webhook: Webhook, figure: Figure
) -> None:
    began = time.monotonic()
    for _ in range(3):
        tasks.note.using(topic="nobody").enqueue()
    ghost = Ghost(queue)
    tasks.reject.enqueue()
    in_the_project(
        queue,
        "from tests.acceptance.tasks import note\n"
        "for _ in range(3): note.using(durable=True, delay=36_000).enqueue()\n"
        "AuditRun.objects.create(findings=2)",
    )

    def all_begun() -> bool:
        ghost.hold()
        return len(told(webhook, "begun")) == len(KINDS)

    wait_until(all_begun, "each kind has begun", 60)
    figure(f"each of {len(KINDS)} kinds was told {time.monotonic() - began:.1f} s after its cause")
    for worker in queue.workers[:3]:
        worker.kill()
    server.kill()
    wait_until(lambda: told(webhook, "begun")["redis"], "Redis is missed", 60)
    assert not told(webhook, "ended")
    server.restart()

    def is_back() -> bool:
        ghost.hold()
        return told(webhook, "ended")["redis"] == 1

    wait_until(is_back, "Redis is back", 60)

    ghost.leave()
    in_the_project(
        queue,
        "from django_delayq import purge_topic\npurge_topic('nobody')\n"
        "from datetime import timedelta\nfrom django.utils import timezone\n"
        "long_ago = timezone.now() - timedelta(hours=2)\n"
        "ArchivedMessage.objects.filter(state='dead').update(finished_at=long_ago)\n"
        "OutboxMessage.objects.all().delete()\n"
        "AuditRun.objects.create(findings=0)",
    )
    wait_until(lambda: len(told(webhook, "ended")) == len(RULES), "all is over", 60)
    time.sleep(10 * EVERY)  # who would tell it again has had its turn
    once = Counter(dict.fromkeys([*KINDS, "redis"], 1))
    assert told(webhook, "begun") == once
    assert told(webhook, "ended") == once
