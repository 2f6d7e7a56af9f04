"""Runs bulk operations: one at a time, in batches that each commit with how far it is, and from
there after a kill."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import InterfaceError, OperationalError, connections
from django.db.models import Q, QuerySet
from django.utils import timezone

from ..core.conf import get_settings
from ..core.database import reached
from ..core.exceptions import DelayQError, StoreError
from ..core.service import Service
from ..models import BulkKind, BulkOperation, BulkStatus
from ..store.store import RedisStore
from .bulk import SILENT_AFTER
from .bulk_run import BulkRun, Stopped, error_words, run_stored
from .bulk_waiting import run_waiting

logger = logging.getLogger("delayq.worker")

#: Seconds without a write of its worker after which another worker takes an operation over. The
#: first one cannot go on unnoticed: every batch checks that the operation is still its own.
TAKE_OVER_AFTER = SILENT_AFTER.total_seconds()
#: While tasks run it rests after a batch: REST times as long as the batch took.
REST, LONGEST_REST = 2.0, 5.0
#: Seconds until an operation is tried again after a server was away: other operations run
#: meanwhile.
AGAIN = 5.0


class BulkRunner(Service):
    """Serves all operations of DELAYQ["DATABASE"]; several of them share the work by operation."""

    name = "bulk"
    interval = 2.0

    def __init__(
        self, store: RedisStore, name: str, *, tasks_run: Callable[[], bool] = bool
    ) -> None:
        super().__init__()
        self._store = store
        self.worker = f"{name}:{secrets.token_hex(2)}"[:200]
        self._tasks_run = tasks_run
        self._is_idle = False
        self._report: Callable[[], object] | None = None
        self.ended = 0

    @property
    def figures(self) -> dict[str, Any]:
        """Operations that ended here."""
        return {"ended": self.ended}

    @property
    def has_work(self) -> bool:
        """Whether an operation may wait."""
        return not self._is_idle

    def run_once(self) -> float:
        """Run one operation to its end. Raises StoreUnavailable and DatabaseUnavailable: it is
        tried again."""
        with reached():
            operation = self._take(BulkOperation.objects.all())
            if operation is not None:
                self._run(operation)
        self._is_idle = operation is None
        return self.interval if operation is None else 0.0

    def run_this(self, pk: int, report: Callable[[], object]) -> bool:
        """Run this operation to its end, unless another process runs it. Returns whether it was
        taken. `report` is called after each step. Raises what run_once() does."""
        self._report = report
        with reached():
            operation = self._take(BulkOperation.objects.filter(pk=pk), rested=False)
            if operation is not None:
                self._run(operation)
        return operation is not None

    def _take(self, among: QuerySet[BulkOperation], *, rested: bool = True) -> BulkOperation | None:
        """Take the oldest operation that waits, or whose worker is silent. `rested`: one that had a
        problem only after a pause."""
        now = timezone.now()
        silent = Q(alive_at__lt=now - timedelta(seconds=TAKE_OVER_AFTER)) | Q(worker=self.worker)
        again = Q(alive_at=None) | Q(alive_at__lt=now - timedelta(seconds=AGAIN)) if rested else Q()
        free = (Q(status=BulkStatus.WAITING) & again) | (Q(status=BulkStatus.RUNNING) & silent)
        operations = BulkOperation.objects.all()
        operation: BulkOperation | None = among.filter(free, in_place=False).order_by("pk").first()
        if operation is None:
            return None
        if not operations.filter(
            pk=operation.pk, status=operation.status, worker=operation.worker
        ).update(
            status=BulkStatus.RUNNING,
            worker=self.worker,
            alive_at=now,
            started_at=operation.started_at or now,
        ):
            return None
        operation.refresh_from_db(using=get_settings().database)
        return operation

    def _run(self, operation: BulkOperation) -> None:
        run = BulkRun(operation, self._rest)
        logger.info("bulk operation %d: %s %s", operation.pk, operation.kind, operation.selection)
        try:
            if operation.kind in BulkKind.values and BulkKind(operation.kind).is_of_waiting:
                run_waiting(run)
            else:
                run_stored(run)
            self.ended += 1
        except Stopped:
            run.put_down()
        except (OperationalError, InterfaceError, StoreError) as error:
            run.put_down(error_words(error))  # a server is away: a later try goes on from here
            raise
        except Exception as error:
            if not isinstance(error, DelayQError):
                logger.exception("bulk operation %d failed", operation.pk)
            run.fail(error)

    def _rest(self, seconds: float, *, least: float = 0.0) -> None:
        """After a batch that took so long, at least so long. Raises Stopped when this process
        ends."""
        if self._report:
            self._report()
        # Where one writer locks out all others (SQLite), they get as much time as the batch took.
        alone = not connections[get_settings().database].features.has_select_for_update
        rest = REST if self._tasks_run() else 1.0 if alone else 0.0
        pause = max(least, min(LONGEST_REST, seconds * rest))
        if pause and not self.stopping:
            self.sleeper.wait(pause)
        if self.stopping:
            raise Stopped
