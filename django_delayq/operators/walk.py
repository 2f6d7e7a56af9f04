"""Goes through a selection of dead letters by their ids, and counts what it skips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from django.db.models.functions import Length
from django.utils import timezone

from ..archive.selection import Rows, newest_id
from ..core.database import locked
from ..core.exceptions import InvalidMessage
from ..models import ArchivedMessage, Final
from ..store.client import BATCH

#: Rows of a selection that one query reads: their ids, and whether they are to be changed.
PAGE = 10_000
#: Ids that one query looks through: so it is short, also for a selection of few rows among many.
SPAN = 500_000

_NAMES = ("message_id", "topic", "task", "key", "enqueued_at", "due_at")
_STANDING = ("pk", "state", "replayed_at", "discarded_at")


class Walk:
    """Goes through a selection by its ids, changes it batch by batch, and counts."""

    def __init__(
        self,
        rows: Rows,
        *,
        force: bool = False,
        limit: int | None = None,
        after: int = 0,
        last: int | None = None,
    ) -> None:
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, int) or limit < 1
        ):
            raise InvalidMessage(f"limit is a whole number from 1 on, not {limit!r}.")
        self.rows, self.force, self.limit = rows, force, limit
        self.on_page: Callable[[], object] | None = None
        """Called before each query for rows: a long walk may find nothing to change for a while."""
        self.count = 0
        self.skipped: Counter[str] = Counter()
        self.left_out: dict[int, str] = {}
        """Of the batch that was locked last: the rows that are skipped, and why."""
        self.first: list[int] = []
        """The ids of the first rows that were changed, or would be."""
        self.table: Rows = ArchivedMessage.objects.all()
        self.position = after
        """Rows up to this id are dealt with, skipped ones too."""
        self.last = newest_id() if last is None else last
        """Messages that die after the walk began are not part of the selection. Otherwise a task
        that always fails would keep the walk going for ever."""

    def discard(self, rows: Sequence[Any]) -> int:
        """Say that these need no replay. Returns how many."""
        return self.table.filter(pk__in=[row.pk for row in rows]).update(
            discarded_at=timezone.now()
        )

    def candidates(self) -> Iterator[int]:
        """The ids of the rows to change."""
        oldest = self.table.order_by("pk").values_list("pk", flat=True).first() or 1
        after = max(self.position, oldest - 1)
        while after < self.last:
            if self.on_page:
                self.on_page()
            end = min(after + SPAN, self.last)
            found = list(self.rows.filter(pk__gt=after, pk__lte=end).values_list(*_STANDING)[:PAGE])
            for pk, *standing in found:
                self.position = pk
                if not self.skip(self._standing(*standing)):
                    yield pk
            after = found[-1][0] if len(found) == PAGE else end
            self.position = after

    def skip(self, why: str, pk: int | None = None) -> bool:
        """Count a row, the one with this id, that is skipped for this reason. Returns False for an
        empty reason."""
        if why:
            self.skipped[why] += 1
            if pk is not None:
                self.left_out[pk] = why
        return bool(why)

    def batches(self) -> Iterator[Sequence[int]]:
        """The ids of the rows to change, for one transaction each."""
        candidates = self.candidates()
        while pks := list(
            islice(candidates, BATCH if self.limit is None else min(BATCH, self.limit - self.count))
        ):
            yield pks

    def lock(self, pks: Sequence[int]) -> list[Any]:
        """The rows that are still to be changed, without their bodies. Rows that
        other processes change meanwhile are skipped."""
        self.left_out.clear()
        rows = locked(self.table.filter(pk__in=pks)).order_by("pk")
        rows = rows.annotate(size=Length("body") + Length("headers"))
        found = list(rows.values_list(*_STANDING, *_NAMES, "size", named=True))
        for _ in range(len(pks) - len(found)):
            self.skip("locked or deleted")
        return [
            row
            for row in found
            if not self.skip(self._standing(row.state, row.replayed_at, row.discarded_at))
        ]

    def _standing(self, state: str, replayed_at: object, discarded_at: object) -> str:
        """Why a row is not to be changed, or nothing."""
        if state != Final.DEAD:
            return "not dead"
        if self.force:
            return ""
        return "already replayed" if replayed_at else "discarded" if discarded_at else ""
