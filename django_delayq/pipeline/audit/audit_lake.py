"""Compares the archive with the lake: which batches differ, in which rows; and makes them equal
again.

SQL is the truth about what it still has, the lake about what has been pruned. A batch is written
again as a whole, by a commit of kind "repair" that replaces its files. Rows that SQL has lost go
back into SQL.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from datetime import datetime
from typing import NamedTuple

import msgspec
from django.db.models import Max
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...core.chunks import chunked
from ...core.times import aware
from ...models import OperatorAction
from ..job_errors import LakeError
from ..lake import batches
from ..lake.lake import BatchSum, Commit, batch_sums
from ..lake.ledger import PRUNED, Ledger
from ..lake.reader import read_files
from ..params import Database
from ..sources.archive_source import read_archive
from . import audit_frames as frames
from .findings import Finding, FindingKind
from .restore import IDS, restore_rows, stored_ids

Sum = tuple[int, int]
"""Rows, and the sum of their hashes."""
NOTHING: Sum = (0, 0)
#: For the record of a repair.
REPAIR = (
    "the archive and the lake were made equal again; a dead letter that SQL had lost is discarded "
    "there, for somebody may have replayed it, unless a replay of it is known"
)
#: Their batches are written again.
REWRITTEN = (FindingKind.LATE_ROW, FindingKind.CHANGED_ROW, FindingKind.SURPLUS_ROW)


class AuditedBatch(NamedTuple):
    """A batch of the lake."""

    number: int
    lo: int
    hi: int
    committed: Sum
    """What its newest commit says."""
    pruned: bool
    """Whether an export has deleted rows of it from SQL."""


def batches_of(ledger: Ledger, commits: Sequence[Commit]) -> list[AuditedBatch]:
    """In the order of their ids."""
    pruned = {row.lo for row in ledger.batches if row.state == PRUNED or row.pruned}
    appended = [commit for commit in commits if commit.kind == "append"]
    sums = {
        lo: (batch.rows, int(batch.signature or 0)) for lo, batch in batch_sums(commits).items()
    }
    return [
        AuditedBatch(number, commit.lo, commit.hi, sums[commit.lo], commit.lo in pruned)
        for number, commit in enumerate(appended)
    ]


def compared(
    archive: DataFrame, lake: DataFrame, chosen: Sequence[AuditedBatch], most: int, ledger: Ledger
) -> tuple[list[Finding], dict[FindingKind, int]]:
    """Rows that differ (at most `most` of a kind), batches that nobody can vouch for, and how many
    there are of each.

    Both frames: see audit_frames.hashed_rows() and batched().
    """
    # What finished before this may have been pruned from SQL, by something else than this lake's
    # export.
    prunes = OperatorAction.objects.filter(action="prune").exclude(lake=ledger.name)
    before: datetime | None = prunes.aggregate(Max("before"))["before__max"]
    ours, theirs = sums_of(archive), sums_of(lake)
    altered = [
        Finding(FindingKind.ALTERED_BATCH, row=batch.hi, batch=batch.number)
        for batch in chosen
        if batch.committed
        not in (theirs.get(batch.number, NOTHING), ours.get(batch.number, NOTHING))
    ]
    counts = {FindingKind.ALTERED_BATCH: len(altered)} if altered else {}
    odd = [
        batch
        for batch in chosen
        if ours.get(batch.number, NOTHING) != theirs.get(batch.number, NOTHING)
        and (batch.number in ours or not batch.pruned)
    ]
    if not odd:
        return altered, counts
    numbers = [batch.number for batch in odd]
    whole = [batch.number for batch in odd if not batch.pruned]
    vouched = [batch.number for batch in odd if ours.get(batch.number) == batch.committed]
    pruned = aware(before) if before else None
    found = frames.differing(archive, lake, numbers, whole, pruned)
    rows, more = collected(frames.surplus(found, vouched), most)
    return altered + rows, more | counts


def collected(found: DataFrame, most: int) -> tuple[list[Finding], dict[FindingKind, int]]:
    """At most `most` findings of each kind, and how many there are."""
    found = found.persist()
    try:
        counts = {
            FindingKind(row["kind"]): row["count"]
            for row in found.groupBy("kind").count().collect()
        }
        parts = [found]
        if max(counts.values(), default=0) > most:
            parts = [found.where(F.col("kind") == kind.value).limit(most) for kind in counts]
        rows = [row.asDict() for part in parts for row in part.collect()]
        return msgspec.convert(rows, list[Finding]), counts
    finally:
        found.unpersist()


def sums_of(frame: DataFrame) -> dict[int, Sum]:
    """By the number of the batch."""
    return {
        row["batch"]: (row["rows"], int(row["signature"])) for row in frames.sums(frame).collect()
    }


class LakeRepair:
    """Makes batches of the lake and their rows in SQL equal."""

    def __init__(
        self,
        spark: SparkSession,
        database: Database,
        ledger: Ledger,
        chosen: Sequence[AuditedBatch],
    ) -> None:
        self._spark, self._database, self._ledger = spark, database, ledger
        self._batches = {batch.number: batch for batch in chosen}

    def run(self, found: Sequence[Finding], lake: DataFrame) -> list[bool]:
        """Repair, and return which findings were. `lake`: its rows with their batches. Raises
        LakeError, LakeConflict."""
        lost = {finding.row or 0 for finding in found if finding.kind == FindingKind.LOST_ROW}
        back = restore_rows(self._spark, self._ledger.lake, lost)
        drops = _surplus([finding for finding in found if finding.kind == FindingKind.TWICE], lake)
        solved = {message_id for dropped in drops.values() for message_id, _ in dropped}
        for finding in found:
            if finding.batch is not None and finding.kind in REWRITTEN:
                row = finding.row if finding.kind == FindingKind.SURPLUS_ROW else 0
                drops[finding.batch].append((finding.message_id, row or 0))
        for number in sorted(drops):
            self._rewrite(self._batches[number], {row for _, row in drops[number]})
        return [
            finding.row in back
            if finding.kind == FindingKind.LOST_ROW
            else finding.kind in REWRITTEN
            or (finding.kind == FindingKind.TWICE and finding.message_id in solved)
            for finding in found
        ]

    def _rewrite(self, batch: AuditedBatch, drop: Set[int]) -> None:
        """Write one batch again: what SQL has of it, and of the lake what SQL has not, but for the
        rows to drop. SQL is read once: a row that a prune deletes meanwhile is there in SQL, or
        else in the lake.

        Raises LakeError when rows of the batch are missing, or other batches are not as before.
        """
        ledger, lake = self._ledger, self._ledger.lake
        old = [file for file in lake.files() if file.may_have(batch.lo, batch.hi)]
        inside = (F.col("id") > batch.lo) & (F.col("id") <= batch.hi)
        before = read_files(self._spark, lake, old)
        others, stays = (
            before.where(~inside),
            before.where(inside & ~F.col("id").isin(sorted(drop))),
        )
        stored = read_archive(self._spark, self._database, (batch.lo, batch.hi))
        frame = others.unionByName(frames.archive_over_lake(stored, stays))
        attempt = lake.attempt(batch.lo, batch.hi, ledger.archive)
        source = batches.write_files(self._spark, frame, attempt)
        written = batches.verified(self._spark, lake, lambda: frame, attempt, source)
        now = read_files(self._spark, lake, written.files)
        own, least = batches.digest_of(now.where(inside)), stays.select("id").distinct().count()
        if own.rows < least or batches.digest_of(now.where(~inside)) != batches.digest_of(others):
            raise LakeError(
                f"{attempt} has {own.rows:,} rows of its batch, where at least {least:,} have to "
                "be, or rows of other batches are not as they were: it is not committed."
            )
        hour = F.date_format("finished_at", "yyyy-MM-dd'T'HH:00:00'Z'").alias("hour")
        hours = [row["hour"] for row in before.where(inside).select(hour).distinct().collect()]
        if written.files:
            lake.persist(attempt)
        # As the newest batch says: whoever reads only the last commit learns the same.
        settled = (
            commit.settled_at for commit in reversed(lake.commits()) if commit.kind == "append"
        )
        commit = lake.add(
            Commit.of(
                "repair",
                written,
                lo=batch.lo,
                hi=batch.hi,
                hours=sorted({*written.hours, *hours}),
                settled_at=next(settled, ""),
                removes=[file.path for file in old],
                batches=[BatchSum(batch.lo, own.rows, str(own.signature))],
                archive=ledger.archive,
            )
        )
        ledger.committed(commit)


def _surplus(found: Sequence[Finding], lake: DataFrame) -> dict[int, list[tuple[str, int]]]:
    """By batch: message ids, and ids of rows that have to go, of lives that are in the lake twice.
    The row that SQL has stays, else the first; 0 in place of an id: the same row is there twice."""
    drops: dict[int, list[tuple[str, int]]] = defaultdict(list)
    held: dict[tuple[str, int | None], Counter[tuple[int, int]]] = defaultdict(Counter)
    lives = {(finding.message_id, finding.stamp) for finding in found}
    for ids in chunked(sorted({message_id for message_id, _ in lives}), IDS):
        there = lake.where(F.col("message_id").isin(ids))
        for row in there.select("message_id", "stamp", "row", "batch").collect():
            if (life := (row["message_id"], row["stamp"])) in lives:
                held[life][row["row"], row["batch"]] += 1
    stored = stored_ids({pk for rows in held.values() for pk, _ in rows})
    for (message_id, _), rows in held.items():
        stays = min((pk for pk, _ in rows), key=lambda pk: (pk not in stored, pk))
        for (pk, batch), times in rows.items():
            if pk != stays or times > 1:
                drops[batch].append((message_id, 0 if pk == stays else pk))
    return drops
