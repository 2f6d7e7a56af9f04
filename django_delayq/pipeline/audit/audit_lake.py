"""Compares the archive with the lake: on which days they differ, in which rows; and exports these
rows again.

SQL is the truth about what it still has, the lake about what has been pruned.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date, datetime

from django.db.models import Max, Min, Q
from pyspark.sql import SparkSession

from ...core.times import stored, utc
from ...models import ArchivedMessage, LakeBatch, OperatorAction
from ..lake import batches
from ..lake.differences import Differences, Scope, compare_batches, export_again
from ..lake.ledger import Ledger
from ..params import Database
from .findings import Finding, FindingKind

_KINDS = {
    batches.LATE: FindingKind.LATE_ROW,
    batches.CHANGED: FindingKind.CHANGED_ROW,
    batches.ANOTHER: FindingKind.ANOTHER_LIFE,
    batches.GONE: FindingKind.LOST_ROW,
}


class AuditedLake:
    """The comparison of one audit."""

    def __init__(
        self,
        spark: SparkSession,
        database: Database,
        ledger: Ledger,
        period: tuple[datetime | None, datetime | None],
        most: int,
    ) -> None:
        self._spark, self._database, self._ledger = spark, database, ledger
        self._since, self._until = period
        self._most = most
        self.found = Differences()
        """Of the last comparison."""

    def compare(self, again: Sequence[Finding] | None = None) -> list[Finding]:
        """Rows that differ, at most `most` of each kind; `again`: only of these findings. Raises
        LakeError."""
        rows = None if again is None else {finding.row or 0 for finding in again}
        self.found = compare_batches(
            self._spark,
            self._database,
            self._ledger,
            self._batches(rows),
            Scope(self._since, self._until, lost_after=self._pruned_before()),
            self._most,
        )
        return [
            Finding(kind, row=pk)
            for name, kind in _KINDS.items()
            for pk in self.found.ids[name]
            if rows is None or pk in rows
        ]

    def counts(self) -> dict[FindingKind, int]:
        """How many rows there are of each kind."""
        counts = {kind: self.found.count(name) for name, kind in _KINDS.items()}
        return {kind: count for kind, count in counts.items() if count}

    def repair(self, found: Sequence[Finding]) -> list[bool]:
        """Export rows again, all in one commit, and return which findings were repaired. Raises
        LakeError, LakeConflict."""
        self._ledger.lake.refresh()
        ids = [finding.row or 0 for finding in found]
        exported = export_again(self._database, self._ledger, ids)
        return [pk in exported for pk in ids]

    def _batches(self, rows: Collection[int] | None) -> list[LakeBatch]:
        """Those that may have rows of the period, or these rows."""
        done = self._ledger.batches.filter(version__isnull=False)
        if rows is not None:
            return [one for one in done if any(one.lo < pk <= one.hi for pk in rows)]
        if self._since is None and self._until is None:
            return list(done)
        stored_rows = ArchivedMessage.objects.all()
        if self._since is not None:
            stored_rows = stored_rows.filter(finished_at__gte=stored(self._since))
        if self._until is not None:
            stored_rows = stored_rows.filter(finished_at__lt=stored(self._until))
        edges = stored_rows.aggregate(first=Min("pk"), last=Max("pk"))
        days = [f"{utc(at):%Y-%m-%d}" if at else "" for at in (self._since, self._until)]
        files = self._ledger.lake.files(since=days[0], until=days[1])
        spans = [(file.lowest, file.highest) for file in files]
        if edges["first"] is not None:
            spans.append((edges["first"], edges["last"]))
        if not spans:
            return []
        first, last = min(lo for lo, _ in spans), max(hi for _, hi in spans)
        return list(done.filter(Q(lo__lt=last) & Q(hi__gte=first)))

    def _pruned_before(self) -> date:
        """SQL has to have the rows that finished on later days, of batches that no export has
        pruned."""
        prunes = OperatorAction.objects.filter(action="prune").exclude(lake=self._ledger.name[:400])
        before: datetime | None = prunes.aggregate(Max("before"))["before__max"]
        return utc(before).date() if before else date.min
