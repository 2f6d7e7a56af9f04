"""What follows on the first look, in one process and on Spark: the second look, the repairs and the
report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from time import sleep
from typing import NamedTuple, Protocol

from ...core.job_report import Code, Report, Tell
from ...models import AuditRun
from ...store.store import RedisStore
from .findings import OF_THE_LAKE, Candidates, Finding, FindingKind
from .repairs import repaired
from .second_look import confirmed

#: Ids that the report names of each kind.
NAMED = 10


class Looks(NamedTuple):
    """How the two looks go, and what follows."""

    pause: float
    """Seconds between them. Only what both find counts."""
    repair: bool
    by: str
    """Who repairs, for the record; empty: the job."""
    most: int
    """Findings of a kind that are looked at again and repaired; all are counted."""


class LakeSide(Protocol):
    """What the audit does about findings in the lake."""

    def confirmed(self, found: Sequence[Finding]) -> list[Finding]:
        """Those that are still there."""

    def repaired(self, found: Sequence[Finding], by: str, report: Report) -> list[Finding]:
        """Repair them. Returns those that were."""


def conclude(
    store: RedisStore,
    candidates: Candidates,
    looks: Looks,
    report: Report,
    tell: Tell,
    lake: LakeSide | None = None,
) -> Counter[FindingKind]:
    """Check candidates again after the pause, repair them if that is wanted, and say in the report
    what was found and done. Returns how many are left."""
    found = candidates.found
    if found:
        tell(f"{len(found):,} candidates; checking again in {looks.pause:g} s")
        sleep(looks.pause)
    real = confirmed(store, [one for one in found if one.kind not in OF_THE_LAKE])
    of_lake = lake.confirmed([one for one in found if one.kind in OF_THE_LAKE]) if lake else []
    mended = []
    if looks.repair:
        by = looks.by or report.job
        mended = repaired(store, real, by) + (lake.repaired(of_lake, by, report) if lake else [])
    real += of_lake
    report.figures |= {"confirmed": len(real), "repaired": len(mended)}
    report.code = Code.DIFFERENT if real else Code.DONE
    return _told(candidates.counts, real, mended, looks, report)


def _told(
    counts: Mapping[FindingKind, int],
    real: Sequence[Finding],
    mended: Sequence[Finding],
    looks: Looks,
    report: Report,
) -> Counter[FindingKind]:
    """Add the table and the problems; how many are left of each kind."""
    rows, left = [], Counter[FindingKind]()
    done = Counter(one.kind for one in mended)
    for kind in FindingKind:
        found = counts.get(kind, 0)
        names = [one.name for one in real if one.kind == kind]
        if not found and not names:
            continue
        of_kind = {"found": found, "confirmed": len(names), "repaired": done[kind]}
        rows.append({"difference": kind.value, **of_kind, "ids": names[:NAMED]})
        # Those beyond the limit have not been checked again, and are probably real.
        left[kind] = len(names) - done[kind] + max(0, found - looks.most)
        if found > looks.most:
            report.problems.append(
                f"{kind.value}: only {looks.most:,} of {found:,} candidates were checked again. "
                "Run it once more."
            )
        if looks.repair and len(names) > done[kind]:
            report.problems.append(
                f"{kind.value}: {len(names) - done[kind]:,} were not repaired; "
                "docs/pipeline/audit.md says what you can do by hand."
            )
    report.rows = tuple(rows)
    return left


def note_left(left: Counter[FindingKind]) -> None:
    """Keep how much an audit of all topics has left, for the kind "audit" of ALERTS."""
    kinds = json.dumps({kind.value: count for kind, count in left.items() if count})
    AuditRun.objects.create(findings=left.total(), kinds=kinds)
