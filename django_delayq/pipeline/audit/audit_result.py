"""What an audit says at its end, on Spark and without."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...models import AuditRun
from ..job_errors import Code
from ..params import Report
from .findings import Finding, FindingKind

#: Ids that the report names of each kind.
NAMED = 10


class AuditResult(NamedTuple):
    """The result of an audit."""

    counts: Mapping[FindingKind, int]
    """Candidates of each kind."""
    confirmed: Sequence[Finding]
    repaired: Sequence[Finding]
    most: int
    """Candidates of a kind that were checked again."""
    repair: bool
    """Whether it was to repair."""

    def add_to(self, report: Report) -> None:
        """Add the table, the figures, the code and the problems."""
        rows = []
        for kind in FindingKind:
            found = self.counts.get(kind, 0)
            names = [finding.name for finding in self.confirmed if finding.kind == kind]
            if not found and not names:
                continue
            mended = sum(finding.kind == kind for finding in self.repaired)
            rows.append(
                {
                    "difference": kind.value,
                    "found": found,
                    "confirmed": len(names),
                    "repaired": mended,
                    "ids": names[:NAMED],
                }
            )
            if found > self.most:
                report.problems.append(
                    f"{kind.value}: only {self.most:,} of {found:,} candidates were checked again. "
                    "Run it once more."
                )
            if self.repair and len(names) > mended:
                report.problems.append(
                    f"{kind.value}: {len(names) - mended:,} were not repaired; "
                    "docs/pipeline/audit.md says what you can do by hand."
                )
        report.rows = tuple(rows)
        report.figures |= {"confirmed": len(self.confirmed), "repaired": len(self.repaired)}
        report.code = Code.DIFFERENT if self.confirmed else Code.DONE

    def note(self) -> None:
        """Keep how much is left, for the kind "audit" of ALERTS. It is about all topics."""
        left = Counter(one.kind.value for one in self.confirmed)
        left -= Counter(one.kind.value for one in self.repaired)
        # Those beyond the limit have not been checked again, and are probably real.
        beyond = {kind.value: max(0, found - self.most) for kind, found in self.counts.items()}
        left.update(beyond)
        AuditRun.objects.create(findings=left.total(), kinds=json.dumps(+left))
