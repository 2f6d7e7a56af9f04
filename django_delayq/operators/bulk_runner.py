"""Runs bulk operations: one at a time, in batches that each commit with how far it is, and from
there after a kill."""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.db import Error, InterfaceError, OperationalError, connections, transaction
from django.db.models import F, Q
from django.utils import timezone

from ..archive.selection import Selection
from ..client import topics
from ..core.conf import get_settings
from ..core.database import reached
from ..core.exceptions import DelayQError, InvalidMessage, StoreError
from ..core.service import Service
from ..core.times import duration_ms
from ..models import (
    BulkKind,
    BulkOperation,
    BulkStatus,
    Final,
    OperatorAction,
    OutboxMessage,
    OutboxStatus,
)
from ..store.store import RedisStore
from .bulk_progress import SILENT_AFTER
from .replay_sender import Sender
from .replay_walk import PAGE, Ledger, Walk

logger = logging.getLogger("delayq.worker")

#: Seconds between two looks for something to do.
LOOK = 2.0
#: Seconds without a word from its worker after which an operation is another's. That one cannot go
#: on unnoticed then: every batch asks whether the operation is still its own.
TAKE_OVER_AFTER = SILENT_AFTER.total_seconds()
#: Beside busy tasks it rests for so many times as long as a batch took.
REST, LONGEST_REST = 2.0, 5.0
#: Seconds until an operation is tried again for which a server was away: others have their turn
#: meanwhile.
AGAIN = 5.0


class Stopped(Exception):
    """The operation is cancelled, or another worker's, or this process ends: leave it as it is."""


class BulkRunner(Service):
    """Serves all operations of DELAYQ["DATABASE"]; several of them share the work by operation."""

    name = "bulk"
    interval = LOOK

    def __init__(
        self, store: RedisStore, name: str, *, tasks_run: Callable[[], bool] = bool
    ) -> None:
        super().__init__()
        self._store = store
        self._worker = f"{name}:{secrets.token_hex(2)}"[:200]
        self._tasks_run = tasks_run
        self._looked = False
        self.ended = 0

    @property
    def figures(self) -> dict[str, Any]:
        """Operations that ended here."""
        return {"ended": self.ended}

    @property
    def has_work(self) -> bool:
        """Whether an operation may wait."""
        return not self._looked

    def run_once(self) -> float:
        """Run one operation to its end. Raises StoreUnavailable and DatabaseUnavailable: it is
        tried again."""
        with reached():
            operation = self._take()
            if operation is not None:
                self._run(operation)
        self._looked = operation is None
        return self.interval if operation is None else 0.0

    def _take(self) -> BulkOperation | None:
        """The oldest operation that nobody works on, which is ours from then on."""
        now = timezone.now()
        silent = Q(alive_at__lt=now - timedelta(seconds=TAKE_OVER_AFTER)) | Q(worker=self._worker)
        rested = Q(alive_at=None) | Q(alive_at__lt=now - timedelta(seconds=AGAIN))
        free = (Q(status=BulkStatus.WAITING) & rested) | (Q(status=BulkStatus.RUNNING) & silent)
        operation: BulkOperation | None = BulkOperation.objects.filter(free).order_by("pk").first()
        if operation is None:
            return None
        same = BulkOperation.objects.filter(
            pk=operation.pk, status=operation.status, worker=operation.worker
        )
        began = operation.started_at or now
        if not same.update(
            status=BulkStatus.RUNNING, worker=self._worker, alive_at=now, started_at=began
        ):
            return None
        operation.refresh_from_db(using=get_settings().database)
        return operation

    def _run(self, operation: BulkOperation) -> None:
        ledger = BulkLedger(operation, self._worker, self._rest)
        logger.info("bulk operation %d: %s %s", operation.pk, operation.kind, operation.selection)
        try:
            _work_of(operation)(operation, ledger)
            self.ended += 1
        except Stopped:
            ledger.put_down()
        except (
            OperationalError,
            InterfaceError,
            StoreError,
        ) as error:  # somebody is away: later, from where it is
            ledger.put_down(_said(error))
            raise
        except Exception as error:
            if not isinstance(error, DelayQError):
                logger.exception("bulk operation %d failed", operation.pk)
            ledger.fail(_said(error))

    def _rest(self, seconds: float) -> None:
        """After a batch that took so long. Raises Stopped when this process ends."""
        # Where one writer locks out all others (SQLite), they get as much time as the batch took.
        alone = not connections[get_settings().database].features.has_select_for_update
        rest = REST if self._tasks_run() else 1.0 if alone else 0.0
        if rest and not self.stopping:
            self.sleeper.wait(min(LONGEST_REST, seconds * rest))
        if self.stopping:
            raise Stopped


class BulkLedger(Ledger):
    """Writes how far an operation is. Every write asks whether it is still ours: else it raises
    Stopped, and the transaction is undone."""

    def __init__(
        self, operation: BulkOperation, worker: str, rest: Callable[[float], None]
    ) -> None:
        self._alias = get_settings().database
        actions = OperatorAction.objects.using(self._alias).filter(pk=operation.action_id)
        super().__init__(actions.first() or OperatorAction(), self._alias)
        self._operation = operation
        self._ours = BulkOperation.objects.filter(
            pk=operation.pk, status=BulkStatus.RUNNING, worker=worker
        )
        self._rest = rest
        self._began_at = time.monotonic()
        self._kept = Counter(_decoded(operation.skipped))
        """What was skipped before this worker took it."""

    def write(self, **changes: Any) -> None:
        """Raises Stopped."""
        if not self._ours.update(alive_at=timezone.now(), **changes):
            raise Stopped

    def rest(self, *so_far: object) -> None:
        """Between two transactions. Raises Stopped."""
        self._rest(time.monotonic() - self._began_at)
        self._began_at = time.monotonic()

    def wait(self) -> None:
        """A moment, for somebody else. Raises Stopped."""
        self.write()
        self._rest(LONGEST_REST)

    def open(self) -> None:
        """Begin a transaction."""
        self.write()

    def enter(self, count: int, position: int, skipped: Mapping[str, int]) -> None:
        """So many more are changed."""
        super().enter(count, position, skipped)
        self.write(count=F("count") + count, position=position, skipped=self._skipped(skipped))

    def ended(self, count: int) -> None:
        """So many more are changed, whatever the operation has become meanwhile."""
        with transaction.atomic(using=self._alias):
            self._rows.update(count=F("count") + count)
            BulkOperation.objects.filter(pk=self._operation.pk).update(count=F("count") + count)

    def counted(self, total: int) -> None:
        """What it is about is known."""
        self._operation.total = total
        self.write(total=total)

    def close(self, skipped: Mapping[str, int]) -> None:
        """It has come to its end."""
        now = timezone.now()
        with transaction.atomic(using=self._alias):
            self.write(
                status=BulkStatus.DONE, finished_at=now, skipped=self._skipped(skipped), error=""
            )
            self._rows.update(finished_at=now)

    def fail(self, error: str) -> None:
        """It cannot go on."""
        self._ours.update(status=BulkStatus.FAILED, finished_at=timezone.now(), error=error[:2_000])

    def put_down(self, error: str = "") -> None:
        """Leave it to the next worker: at once, or with an error after a while."""
        with suppress(Error):  # it may be the database that is away: then it is taken over
            alive_at = timezone.now() if error else None
            self._ours.update(status=BulkStatus.WAITING, worker="", error=error, alive_at=alive_at)

    def _skipped(self, skipped: Mapping[str, int]) -> str:
        return json.dumps(self._kept + Counter(skipped))


def _work_of(operation: BulkOperation) -> Callable[[BulkOperation, BulkLedger], None]:
    works: dict[str, Callable[[BulkOperation, BulkLedger], None]] = {
        BulkKind.REPLAY: _walk,
        BulkKind.DISCARD: _walk,
        BulkKind.PURGE: _purge,
    }
    if operation.kind not in works:
        raise InvalidMessage(f"This version knows no bulk operation {operation.kind!r}.")
    return works[operation.kind]


def _walk(operation: BulkOperation, ledger: BulkLedger) -> None:
    """replay and discard."""
    rows = Selection.decode(operation.selection).rows().filter(state=Final.DEAD).order_by("pk")
    if operation.total is None or operation.dry_run:
        counted = Walk(rows, False, None, last=operation.cutoff)
        _count(counted, ledger)
        if operation.dry_run:
            ledger.close(counted.skipped)
            return
    walk = Walk(rows, False, None, after=operation.position, last=operation.cutoff)
    walk.on_page = ledger.write
    walk.run(
        ledger,
        walk.discard if operation.kind == BulkKind.DISCARD else _send(walk, operation, ledger),
        ledger.rest,
    )


def _count(walk: Walk, ledger: BulkLedger) -> None:
    walk.on_page = ledger.write
    total = 0
    for _ in walk.candidates():
        total += 1
        if total % PAGE == 0:
            ledger.rest()
    ledger.counted(total)


def _send(
    walk: Walk, operation: BulkOperation, ledger: BulkLedger
) -> Callable[[Sequence[Any]], int]:
    """A rate goes on from when the first worker began."""
    options = _decoded(operation.options)
    sender = Sender(walk, duration_ms(options.get("delay", 0)), options.get("rate"), None)
    sender.began_ms = int(options.setdefault("began_ms", sender.began_ms))
    sender.sent_before = operation.count
    ledger.write(options=json.dumps(options))
    return sender.send


def _purge(operation: BulkOperation, ledger: BulkLedger) -> None:
    """As many messages as waited in a topic, in Redis and in the outbox, when the first worker took
    it up: those that are due first. A kill between a batch and its count leaves that batch of 500
    uncounted."""
    topic = Selection.decode(operation.selection).topic
    if operation.total is None:
        waiting = OutboxMessage.objects.filter(topic=topic, status=OutboxStatus.WAITING).count()
        stats = topics.topic_stats(topic)
        ledger.counted(stats.delayed + stats.backlog + waiting)
    left = 0 if operation.dry_run else (operation.total or 0) - operation.count
    if left > 0:
        for count in topics.purge_batches(topic, operation.reason[:200], left):
            ledger.ended(count)
            ledger.rest()
            while topics.topic_stats(topic).finished > get_settings().finished_limit // 2:
                ledger.wait()  # for the archiver: a full stream would hold the topic
            ledger.write()  # before the next batch: it may be cancelled, or another's
    ledger.close({})


def _decoded(text: str) -> dict[str, Any]:
    """JSON that we wrote; anything else is nothing, so that it stops nobody."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _said(error: Exception) -> str:
    """For everybody who sees the page: what a database says may quote a row."""
    return (
        f"{type(error).__name__}: {error}"
        if isinstance(error, DelayQError)
        else f"{type(error).__name__} (see the log)"
    )
