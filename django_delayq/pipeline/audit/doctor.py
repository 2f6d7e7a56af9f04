"""Compares Redis, the outbox and the archive in one process, without Spark, and repairs.

The kinds, their second look and their repair are those of the audit on Spark, which is for sizes
that one process does not master.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import NamedTuple

from ...store.store import RedisStore
from ..params import Report
from .audit_repair import AuditRepair
from .audit_result import AuditResult
from .confirm import confirmed, wait
from .findings import Finding, FindingKind
from .suspicion import suspected

#: Takes a line about the progress, how many ids and rows are done, and of how many.
Progress = Callable[[str, int, int], object]


class Examination(NamedTuple):
    """What is looked at, and what is done."""

    topic: str = ""
    """Only this one; empty: all."""
    repair: bool = False
    by: str = "doctor"
    """Who repairs, for the record."""
    pause: float = 5.0
    """Seconds between the two looks."""
    most: int = 10_000
    """Candidates of a kind that are kept and checked again; all are counted."""


def examine(
    store: RedisStore, given: Examination, progress: Progress = lambda *step: None
) -> Report:
    """Find candidates, check them again after the pause, and repair them if that is wanted.

    The code is DIFFERENT when there were differences, also when all are repaired: the next look is
    clean then. Raises StoreUnavailable and errors of the database.
    """
    begun = time.monotonic()
    kept: dict[FindingKind, dict[Finding, None]] = defaultdict(dict)
    counts = Counter[FindingKind]()
    read = 0

    def tell(done: int, total: int) -> None:
        nonlocal read
        read = done
        progress(f"{done:,} ids and rows read", done, total)

    for finding in suspected(store, [given.topic] if given.topic else (), tell):
        of_kind = kept[finding.kind]
        if finding in of_kind:
            continue  # an id in two structures, or a scan that returns it twice
        counts[finding.kind] += 1
        if len(of_kind) < given.most:
            of_kind[finding] = None
    found = [finding for of_kind in kept.values() for finding in of_kind]
    if found:
        progress(f"{len(found):,} candidates; checking again in {given.pause:g} s", 0, 0)
        wait(given.pause)
    findings = confirmed(store, found)
    repaired = AuditRepair(store, given.by).run(findings) if given.repair else []
    report = Report(job="doctor", figures={"read": read})
    result = AuditResult(counts, findings, repaired, given.most, given.repair)
    result.add_to(report)
    if not given.topic:
        result.note()
    report.figures["seconds"] = round(time.monotonic() - begun, 3)
    return report
