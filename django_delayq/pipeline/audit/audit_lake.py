"""Compares the archive with the lake: on which days they differ, in which rows; and exports these
rows again.

SQL is the truth about what it still has, the lake about what has been pruned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime

from django.db.models import Max, Min
from pyspark.sql import SparkSession

from ...archive.selection import Selection
from ...core.job_report import Report
from ...core.times import utc
from ...models import LakeBatch, OperatorAction
from ...operators.doctor.findings import Candidates, Finding, FindingKind
from ...operators.doctor.repairs import recorded
from ..job_errors import LakeConflict, LakeError
from ..lake import batches
from ..lake.differences import Differences, Scope, compare_batches, export_again
from ..lake.lake import Lake
from ..lake.ledger import Ledger
from ..params import AuditOptions, Params

_KINDS = {
    batches.LATE: FindingKind.LATE_ROW,
    batches.CHANGED: FindingKind.CHANGED_ROW,
    batches.ANOTHER: FindingKind.ANOTHER_LIFE,
    batches.GONE: FindingKind.LOST_ROW,
}


class AuditedLake:
    """The comparison of one audit. Raises Refused for a lake of another archive."""

    def __init__(self, spark: SparkSession, params: Params) -> None:
        self.lake = Lake(params.lake)
        self._spark, self._database = spark, params.database
        self._ledger = Ledger(self.lake)
        self._since, self._until = params.period()
        options = params.options(AuditOptions)
        self._most = options.most
        if options.repair:
            self._ledger.catch_up()
        else:
            self._ledger.check()

    def compare(self, report: Report) -> Candidates:
        """Rows that differ. Raises LakeError."""
        found = self._compared(self._batches_of_period())
        report.figures["rows_compared"] = found.rows.total()
        if days := found.days():
            report.figures["days_that_differ"] = [str(day) for day in days]
        counts = {kind: count for name, kind in _KINDS.items() if (count := found.count(name))}
        return Candidates(_findings(found), counts)

    def confirmed(self, found: Sequence[Finding]) -> list[Finding]:
        """Those rows that still differ, after a second comparison. Raises LakeError."""
        ids = [finding.row for finding in found]
        meant = [one for one in self._committed() if any(one.lo < pk <= one.hi for pk in ids)]
        again = set(_findings(self._compared(meant)))
        return [finding for finding in found if finding in again]

    def repaired(self, found: Sequence[Finding], by: str, report: Report) -> list[Finding]:
        """Export rows again, all in one commit. Returns those that were; the report says it when
        the lake cannot be written."""
        again = [finding for finding in found if finding.kind.repair]
        try:
            return recorded(again, by, self._export) if again else []
        except (LakeConflict, LakeError) as error:
            report.problems.append(f"The lake was not repaired: {error}")
            return []

    def _export(self, found: Sequence[Finding]) -> list[Finding]:
        self.lake.refresh()
        ids = [finding.row for finding in found]
        exported = export_again(self._database, self._ledger, ids)
        return [finding for finding in found if finding.row in exported]

    def _compared(self, chosen: Sequence[LakeBatch]) -> Differences:
        # SQL has to have the rows that finished on later days, of batches that no export has
        # pruned.
        prunes = OperatorAction.objects.filter(action="prune").exclude(lake=self._ledger.name[:400])
        before: datetime | None = prunes.aggregate(Max("before"))["before__max"]
        lost_after = utc(before).date() if before else date.min
        scope = Scope(self._since, self._until, lost_after=lost_after)
        return compare_batches(self._spark, self._database, self._ledger, chosen, scope, self._most)

    def _committed(self) -> Iterable[LakeBatch]:
        return self._ledger.batches.filter(version__isnull=False)

    def _batches_of_period(self) -> list[LakeBatch]:
        """Those that may have rows of the period, in SQL or in the lake."""
        if self._since is None and self._until is None:
            return list(self._committed())
        rows = Selection(since=self._since, until=self._until).rows()
        edges = rows.aggregate(first=Min("pk"), last=Max("pk"))
        days = [f"{at:%Y-%m-%d}" if at else "" for at in (self._since, self._until)]
        spans = [(one.lowest, one.highest) for one in self.lake.files(since=days[0], until=days[1])]
        if edges["first"] is not None:
            spans.append((edges["first"], edges["last"]))
        first = min((lo for lo, _ in spans), default=0)
        last = max((hi for _, hi in spans), default=0)
        return [one for one in self._committed() if one.lo < last and one.hi >= first]


def _findings(found: Differences) -> list[Finding]:
    return [Finding(kind, row=pk) for name, kind in _KINDS.items() for pk in found.ids[name]]
