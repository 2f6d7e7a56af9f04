"""One of everything that the pages show, for tests that look at all of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from pyarrow import parquet

from django_delayq.admin.parquet_export import PARQUET
from django_delayq.archive import unarchivable
from django_delayq.archive.selection import Selection
from django_delayq.client.handle import Handle
from django_delayq.models import ArchivedMessage, UnarchivableEntry
from django_delayq.operators import bulk
from django_delayq.store.finished import FinishedStream
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from tests.app.tasks import act, close_order
from tests.hands import DAY, ORDERS, Hands

MODES = Partition("modes", 0)
WORKER = "host:1:worker"


class Root:
    """A user who may do everything and is nobody's row."""

    is_outside_pages = True

    def has_perm(self, permission: str) -> bool:
        return True

    def get_username(self) -> str:
        return "root"


def heartbeat(store: RedisStore, name: str = WORKER, **figures: Any) -> None:
    """A worker that lives, and says so as worker.py does."""
    now_ms = int(store.clock_ms())
    known: dict[str, Any] = {
        "host": "host",
        "pid": 1,
        "version": "0.1.0",
        "topics": ["orders", "modes"],
    }
    known |= {
        "concurrency": 8,
        "in_flight": 1,
        "started_ms": now_ms - 60_000,
        "draining": False,
        "settled": {},
    }
    known |= {
        "archiver": {},
        "relay": {},
        "reconciler": {},
        "bulk": {"ended": 0},
        "at_ms": now_ms,
        "rss_kb": 65_000,
    }
    store.workers.beat(name, json.dumps(known | figures))


@dataclass
class World:
    """A message that waits, one that was acked, dead letters, one that the archive has refused, a
    bulk operation, and the heartbeat of a worker."""

    hands: Hands
    arguments_of: dict[str, Any] = field(default_factory=dict)
    """What the routes of the pages are filled with, by the name of the argument; pk: of the dead
    letter."""

    def __post_init__(self) -> None:
        self.waiting: Handle = close_order.using(delay=DAY, key="order:1042").enqueue(1042)
        close_order.using(delay=0).enqueue(1)
        self.hands.work(ORDERS)
        self.acked: int = self.hands.archive()[-1].pk
        self.dead: int = self.die().pk
        self.aside: int = self.put_aside()
        selection = Selection(open=True, topic="modes")
        self.bulk: int = bulk.start(Root(), "replay", selection, reason="it was mended").pk
        heartbeat(self.hands.store)
        self.arguments_of |= {
            "topic": "orders",
            "message_id": self.waiting.id,
            "pk": self.dead,
            "worker": WORKER,
        }

    def put_aside(self, *arguments: Any, **options: Any) -> int:
        """A message that has ended, and that the archive has refused."""
        act.using(delay=0, **options).enqueue(*(arguments or ("unworthy",)))
        self.hands.work(MODES)
        stream = FinishedStream(self.hands.store, MODES, "test")
        (entry,) = stream.read()
        unarchivable.put_aside(entry, ValueError(f"no row for {arguments}"))
        stream.remove([entry])
        return UnarchivableEntry.objects.latest("pk").pk

    def die(self) -> ArchivedMessage:
        """One more dead letter."""
        act.using(delay=0).enqueue("unworthy")
        self.hands.work(MODES)
        row: ArchivedMessage = self.hands.archive()[-1]
        assert row.state == "dead"
        return row

    def fill(self, page: Any) -> dict[str, Any]:
        """The arguments of this page's route. KeyError: a page takes something that this class does
        not have yet."""
        names = [part.rpartition(":")[2] for part in _placeholders(page.route)]
        given = {name: self.arguments_of[name] for name in names}
        if "pk" in given and page.name.startswith("bulk"):
            given["pk"] = self.bulk
        if "pk" in given and page.name.startswith("unarchivable"):
            given["pk"] = self.aside
        return given


def told(answer: Any) -> str:
    """All that an answer of ours tells, also in a Parquet file."""
    content = answer.getvalue()
    if answer["Content-Type"] == PARQUET.content_type:
        return str(parquet.read_table(BytesIO(content)).to_pylist())
    return str(content.decode("utf-8-sig"))


def _placeholders(route: str) -> list[str]:
    return [part.partition(">")[0] for part in route.split("<")[1:]]
