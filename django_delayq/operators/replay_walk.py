"""Goes through a selection of dead letters in batches, each a transaction of its own that also
counts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections, transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Length
from django.utils import timezone

from ..core.exceptions import InvalidMessage
from ..models import ArchivedMessage, Final, OperatorAction
from ..store.client import BATCH

#: Rows of a selection that are looked at in one query: only their ids and what tells whether they
#: are to be changed.
PAGE = 10_000

#: Ids that one query looks through: so it is short, however rare what is sought.
SPAN = 500_000

Rows = QuerySet[ArchivedMessage]

#: Fields whose values are for those only who may see what messages carry.
_CONTENTS = re.compile(r"WHERE.*\b(body|headers|history|error_message|traceback)\b")
_STANDING = ("pk", "state", "replayed_at", "discarded_at")


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What replay() or discard() has done so far."""

    action: OperatorAction
    """The record of it. Its finished_at is null until the end."""
    count: int
    """Messages that are replayed, or discarded."""
    skipped: Counter[str]
    """How many rows of the selection were left as they are, by the reason in words."""


Progress = Callable[[Replayed], object]


class Ledger:
    """Keeps how far a walk is, in the transactions that change the messages."""

    def __init__(self, action: OperatorAction, alias: str) -> None:
        self.action = action
        self._rows = OperatorAction.objects.using(alias).filter(pk=action.pk)

    def open(self) -> None:
        """Begin a transaction. A write first: where there are no row locks (SQLite), who reads
        first may not write afterwards."""
        self._rows.update(count=F("count"))

    def enter(self, count: int, position: int, skipped: Mapping[str, int]) -> None:
        """Before the commit: so many more are changed, everything up to this id is dealt with."""
        self._rows.update(count=F("count") + count)

    def close(self, skipped: Mapping[str, int]) -> None:
        """The walk has come to its end."""
        self.action.finished_at = timezone.now()
        self._rows.update(finished_at=self.action.finished_at)


class Walk:
    """Goes through a selection by its ids, changes it batch by batch, and counts."""

    def __init__(
        self, rows: Rows, force: bool, limit: int | None, *, after: int = 0, last: int | None = None
    ) -> None:
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, int) or limit < 1
        ):
            raise InvalidMessage(f"limit is a whole number from 1 on, not {limit!r}.")
        self.rows, self.force, self.limit, self.alias = rows, force, limit, rows.db
        self.count = 0
        self.skipped: Counter[str] = Counter()
        self.table: Rows = ArchivedMessage.objects.using(self.alias)
        self._looked = after
        """Rows up to this id are dealt with, skipped ones too."""
        self.on_page: Callable[[], object] = bool
        """Called before each query for rows: a long walk may find nothing to change for a while."""
        newest = (
            self.table.order_by("-pk").values_list("pk", flat=True).first()
            if last is None
            else last
        )
        self.last: int = newest or 0
        """What dies after the beginning is not of the selection: else a task that always fails had
        us here for ever."""

    def begin(self, name: str, by: str, reason: str) -> Ledger:
        """Record that somebody does something."""
        said = [
            _in_words(self.rows),
            "force" if self.force else "",
            f"limit {self.limit:,}" if self.limit else "",
        ]
        words = ", ".join(filter(None, said))[:2_000]
        action = OperatorAction(action=name, operator=by[:150], reason=reason, selection=words)
        action.save(using=self.alias)
        return Ledger(action, self.alias)

    def run(
        self,
        ledger: Ledger,
        change: Callable[[Sequence[Any]], int],
        progress: Progress | None = None,
    ) -> Replayed:
        """Change every batch in a transaction of its own, which also says so in the ledger."""
        tell = progress or bool
        tell(self._so_far(ledger))
        for pks in self._batches():
            with transaction.atomic(using=self.alias):
                ledger.open()
                count = change(self._lock(pks))
                ledger.enter(count, self._looked, self.skipped)
            self.count += count
            ledger.action.count += count
            tell(self._so_far(ledger))
        ledger.close(self.skipped)
        return self._so_far(ledger)

    def discard(self, locked: Sequence[Any]) -> int:
        """Say that these need no replay. Returns how many."""
        discarded: int = self.table.filter(pk__in=[row.pk for row in locked]).update(
            discarded_at=timezone.now()
        )
        return discarded

    def candidates(self) -> Iterator[int]:
        """The ids of the rows to change."""
        oldest = self.table.order_by("pk").values_list("pk", flat=True).first() or 1
        after = max(self._looked, oldest - 1)
        while after < self.last:
            self.on_page()
            end = min(after + SPAN, self.last)
            found = list(self.rows.filter(pk__gt=after, pk__lte=end).values_list(*_STANDING)[:PAGE])
            for pk, *standing in found:
                self._looked = pk
                if not self.skip(self._standing(*standing)):
                    yield pk
            after = found[-1][0] if len(found) == PAGE else end
            self._looked = after

    def skip(self, why: str, count: int = 1) -> bool:
        """Count rows that are left as they are; an empty reason is none."""
        if why and count:
            self.skipped[why] += count
        return bool(why)

    def _batches(self) -> Iterator[list[int]]:
        candidates = self.candidates()
        while pks := list(islice(candidates, self._room())):
            yield pks

    def _room(self) -> int:
        return BATCH if self.limit is None else min(BATCH, self.limit - self.count)

    def _lock(self, pks: Sequence[int]) -> list[Any]:
        """The rows that are still to be changed, without their bodies. What others change meanwhile
        is left to them."""
        skip_locked = connections[self.alias].features.has_select_for_update_skip_locked
        rows = (
            self.table.filter(pk__in=pks).select_for_update(skip_locked=skip_locked).order_by("pk")
        )
        rows = rows.annotate(size=Length("body") + Length("headers"))
        names = (*_STANDING, "message_id", "topic", "task", "key", "size")
        found = list(rows.values_list(*names, named=True))
        self.skip("locked or deleted", len(pks) - len(found))
        return [
            row
            for row in found
            if not self.skip(self._standing(row.state, row.replayed_at, row.discarded_at))
        ]

    def _standing(self, state: str, replayed_at: object, discarded_at: object) -> str:
        if state != Final.DEAD:
            return "not dead"
        if self.force:
            return ""
        return "already replayed" if replayed_at else "discarded" if discarded_at else ""

    def _so_far(self, ledger: Ledger) -> Replayed:
        return Replayed(action=ledger.action, count=self.count, skipped=self.skipped.copy())


def _in_words(rows: Rows) -> str:
    """The condition, much as the database reads it."""
    try:
        sql, values = rows.order_by().values("pk").query.get_compiler(rows.db).as_sql()
    except EmptyResultSet:
        return "nothing"
    if _CONTENTS.search(sql):  # whoever may not see contents reads these words all the same
        return "a condition on what messages carry"
    table = connections[rows.db].ops.quote_name(ArchivedMessage._meta.db_table)
    return (sql % tuple(values)).replace(f"{table}.", "").partition(" WHERE ")[2] or "everything"
