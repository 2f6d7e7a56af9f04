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

from django_delayq.core.alert_rules import ALERT_KINDS
from django_delayq.store.finished import GROUP
from django_delayq.store.keys import Partition, finished_key, topics_key, workers_key
from tests.acceptance import tasks
from tests.acceptance.harness import Figure, Queue
from tests.acceptance.process import ROOT
from tests.servers import Server, wait_until
from tests.stats.alerts.conftest import Webhook

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

#: A topic of which the ghost alone has an entry: a killed worker leaves entries of others behind.
KEPT = Partition("kept", 0)
#: What begins at once, and what begins later: while Redis is away, and after workers were killed.
FIRST = {
    "backlog", "lag", "dead", "dead_letters", "unserved", "paused", "archive_lag", "archive_limit",
    "unarchivable", "outbox", "audit",
}  # fmt: skip
OUTAGE, LATE = {"redis", "relay_lag"}, {"worker_gone", "saturated"}
#: Seconds between two looks of a worker.
EVERY = 0.5
RULES = [
    {"kind": "backlog", "limit": 3, "topics": ["nobody"]},
    {"kind": "lag", "limit": 1, "topics": ["nobody"]},
    {"kind": "dead", "topics": ["default"]},
    {"kind": "dead_letters", "limit": 1, "topics": ["default"]},
    {"kind": "paused", "topics": ["still"]},
    {"kind": "unarchivable"},
    {"kind": "archive_limit", "limit": 1, "topics": ["kept"]},
    {"kind": "relay_lag", "limit": 1},
    {"kind": "worker_gone"},
    {"kind": "saturated", "limit": 1, "topics": ["default"]},
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
        "TOPICS": {"nobody": {}, "kept": {}, "still": {}},
        "FINISHED_LIMIT": 500,
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


def forget(queue: Queue, pids: list[int]) -> None:
    """Nobody speaks of these workers any more, as half an hour after their end."""
    redis, heartbeats = queue.store.client.redis, workers_key(queue.prefix)
    for name in redis.hkeys(heartbeats):
        if any(f":{pid}:" in name.decode() for pid in pids):
            redis.hdel(heartbeats, name)


class Ghost:
    """An archiver that has read entries, and neither archives them nor dies."""

    def __init__(self, queue: Queue) -> None:
        self._redis = queue.store.client.redis
        self._key = finished_key(queue.prefix, KEPT)
        self._redis.sadd(topics_key(queue.prefix), "kept:1")
        self._redis.xgroup_create(self._key, GROUP, id="0", mkstream=True)
        with self._redis.pipeline(transaction=True) as pipeline:
            for _ in range(6):  # more than one percent of FINISHED_LIMIT
                pipeline.xadd(self._key, {"id": "x"})
            pipeline.xreadgroup(GROUP, "ghost", {self._key: ">"})
            *self._entries, _ = pipeline.execute()

    def hold(self) -> None:
        """Nobody takes them over for some seconds."""
        self._redis.xclaim(self._key, GROUP, "ghost", 0, self._entries, justid=True)

    def leave(self) -> None:
        """The entries are archived, as far as Redis knows."""
        self._redis.xack(self._key, GROUP, *self._entries)
        self._redis.xdel(self._key, *self._entries)


def begin_trouble(queue: Queue) -> Ghost:
    """The causes of what begins at once."""
    for _ in range(3):
        tasks.note.using(topic="nobody").enqueue()
    ghost = Ghost(queue)
    tasks.reject.enqueue()
    in_the_project(
        queue,
        "from django_delayq import pause_topic\npause_topic('still')\n"
        "from tests.acceptance.tasks import note\n"
        "for _ in range(3): note.using(durable=True, delay=36_000).enqueue()\n"
        "AuditRun.objects.create(findings=2)\n"
        "UnarchivableEntry.objects.create(entry='1-0', topic='default', partition=0)",
    )
    return ghost


def end_trouble(queue: Queue) -> None:
    """What operators do about it."""
    in_the_project(
        queue,
        "from django_delayq import purge_topic, resume_topic\n"
        "purge_topic('nobody')\nresume_topic('still')\n"
        "from datetime import timedelta\nfrom django.utils import timezone\n"
        "long_ago = timezone.now() - timedelta(hours=2)\n"
        "dead = ArchivedMessage.objects.filter(state='dead')\n"
        "dead.update(finished_at=long_ago, discarded_at=long_ago)\n"
        "OutboxMessage.objects.all().delete()\nUnarchivableEntry.objects.all().delete()\n"
        "AuditRun.objects.create(findings=0)",
    )


@pytest.mark.long
def test_an_alert_of_each_kind_begins_once_and_ends_once_with_eight_workers(
    queue: Queue, server: Server, webhook: Webhook, figure: Figure, tmp_path: Path
) -> None:
    began = time.monotonic()
    ghost = begin_trouble(queue)

    def all_begun(kinds: set[str]) -> bool:
        if "redis" not in kinds or told(webhook, "ended")["redis"]:
            ghost.hold()
        return set(told(webhook, "begun")) == kinds

    wait_until(lambda: all_begun(FIRST), "each kind has begun", 120)
    figure(f"each of {len(FIRST)} kinds was told {time.monotonic() - began:.1f} s after its cause")
    killed = queue.workers[:3]
    pids = [worker.pid for worker in killed]
    for worker in killed:
        worker.kill()
    server.kill()
    in_the_project(
        queue,
        "from tests.acceptance.tasks import note\nnote.using(on_redis_error='spill').enqueue()",
    )
    wait_until(lambda: all_begun(FIRST | OUTAGE), "Redis is missed", 120)
    assert not told(webhook, "ended")
    server.restart()

    def is_back() -> bool:
        ghost.hold()
        return told(webhook, "ended") == {"redis": 1, "relay_lag": 1}

    wait_until(is_back, "Redis is back", 120)
    tasks.hold.enqueue_many([(str(tmp_path / "gate"),)] * 10)  # five can run
    wait_until(lambda: all_begun(FIRST | OUTAGE | LATE), "the others have to do all", 120)

    ghost.leave()
    Path(tmp_path, "gate.1").touch()
    forget(queue, pids)
    end_trouble(queue)
    wait_until(lambda: len(told(webhook, "ended")) == len(RULES), "all is over", 120)
    time.sleep(10 * EVERY)  # who would tell it again has had its turn
    once = Counter(dict.fromkeys(FIRST | OUTAGE | LATE, 1))
    assert told(webhook, "begun") == once
    assert told(webhook, "ended") == once
    assert {str(rule["kind"]) for rule in RULES} == set(ALERT_KINDS)
