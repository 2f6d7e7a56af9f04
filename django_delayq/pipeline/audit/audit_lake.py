"""The archive against the lake: which batches differ, in which rows, and how they become equal
again.

SQL is the truth about what it still has; the lake about what has been pruned. A batch is written
anew as a whole, by a commit of kind "repair" that replaces its files; what SQL has lost goes back
into SQL.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from django.db.models import Max
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...core.chunks import chunked
from ...core.times import aware
from ...models import OperatorAction
from ..job_errors import LakeError
from ..lake import batches
from ..lake.lake import Commit, Digest, LakeFile, WrittenFiles
from ..lake.ledger import PRUNED, Ledger
from ..lake.reader import read_files
from ..params import Database
from ..sources.archive_source import read_archive
from . import audit_frames as frames
from .finding_kinds import Difference, Kind, difference_of
from .restore import SOME, PutBack, stored_ids

Sum = tuple[int, int]
"""Rows, and the sum of their hashes."""
NOTHING: Sum = (0, 0)
#: Whose batch is written anew.
REWRITTEN = (Kind.LATE_ROW, Kind.CHANGED_ROW, Kind.SURPLUS_ROW)


class Batch(NamedTuple):
    """A batch of the lake."""

    number: int
    lo: int
    hi: int
    said: Sum
    """By its newest commit."""
    pruned: bool
    """Whether an export has deleted rows of it from SQL."""


def batches_of(ledger: Ledger, commits: Sequence[Commit]) -> list[Batch]:
    """In the order of their ids."""
    pruned = {one.lo for one in ledger.batches if one.state == PRUNED or one.pruned}
    appended = [commit for commit in commits if commit.kind == "append"]
    said = {commit.lo: (commit.rows, int(commit.signature or 0)) for commit in appended}
    said |= {
        c.lo: (c.batch_rows, int(c.batch_signature or 0)) for c in commits if c.kind == "repair"
    }
    return [
        Batch(number, commit.lo, commit.hi, said[commit.lo], commit.lo in pruned)
        for number, commit in enumerate(appended)
    ]


def compared(
    archive: DataFrame, lake: DataFrame, some: Sequence[Batch], most: int, pruned: datetime | None
) -> tuple[list[Difference], dict[Kind, int]]:
    """Rows that differ (at most so many of a kind), batches that nobody can vouch for, and how many
    there are of each.

    Both frames: see audit_frames.rows() and batched(). `pruned`: see pruned_before().
    """
    ours, theirs = sums_of(archive), sums_of(lake)
    altered = [
        Difference(Kind.ALTERED_BATCH, row=one.hi, batch=one.number)
        for one in some
        if one.said not in (theirs.get(one.number, NOTHING), ours.get(one.number, NOTHING))
    ]
    odd = [one for one in some if ours.get(one.number, NOTHING) != theirs.get(one.number, NOTHING)]
    odd = [one for one in odd if not one.pruned or one.number in ours]
    if not odd:
        return altered, {Kind.ALTERED_BATCH: len(altered)} if altered else {}
    whole = [one.number for one in odd if not one.pruned]
    vouched = [one.number for one in odd if ours.get(one.number) == one.said]
    found = frames.differing(archive, lake, [one.number for one in odd], whole, pruned)
    rows, counts = taken(frames.surplus(found, vouched), most)
    return [*altered, *rows], counts | ({Kind.ALTERED_BATCH: len(altered)} if altered else {})


def taken(found: DataFrame, most: int) -> tuple[list[Difference], dict[Kind, int]]:
    """At most so many differences of each kind, and how many there are."""
    found = found.persist()
    try:
        counts = {
            Kind(row["kind"]): row["count"] for row in found.groupBy("kind").count().collect()
        }
        many = (
            [found.where(F.col("kind") == kind.value).limit(most) for kind in counts]
            if _above(counts, most)
            else [found]
        )
        some = [row for frame in many for row in frame.collect()]
    finally:
        found.unpersist()
    return [difference_of(row) for row in some], counts


def _above(counts: dict[Kind, int], most: int) -> bool:
    return max(counts.values(), default=0) > most


def sums_of(frame: DataFrame) -> dict[int, Sum]:
    """By the number of the batch."""
    return {
        row["batch"]: (row["rows"], int(row["signature"])) for row in frames.sums(frame).collect()
    }


def pruned_before(ledger: Ledger) -> datetime | None:
    """What finished before this may have been pruned from SQL by another than this lake's export;
    None: nothing was."""
    prunes = OperatorAction.objects.filter(action="prune").exclude(lake=ledger.name)
    before: datetime | None = prunes.aggregate(Max("before"))["before__max"]
    return aware(before) if before else None


class LakeRepair:
    """Makes batches of the lake and their rows in SQL equal."""

    def __init__(
        self, spark: SparkSession, database: Database, ledger: Ledger, some: Sequence[Batch]
    ) -> None:
        self._spark, self._database, self._ledger = spark, database, ledger
        self._batches = {one.number: one for one in some}

    def run(self, found: Sequence[Difference], lake: DataFrame) -> list[bool]:
        """AuditRepair; returns what was. `lake`: its rows with their batches. Raises LakeError,
        LakeConflict."""
        back = PutBack(self._spark, self._ledger.lake).run(
            [one.row or 0 for one in found if one.kind == Kind.LOST_ROW]
        )
        drops = self._surplus([one for one in found if one.kind == Kind.TWICE], lake)
        solved = {message_id for some in drops.values() for message_id, _ in some}
        for one in found:
            if one.batch is not None and one.kind in REWRITTEN:
                drops[one.batch].append(
                    (one.message_id, (one.row or 0) if one.kind == Kind.SURPLUS_ROW else 0)
                )
        for number in sorted(drops):
            self._rewrite(self._batches[number], {row for _, row in drops[number]})
        return [
            one.row in back
            if one.kind == Kind.LOST_ROW
            else one.kind in REWRITTEN or (one.kind == Kind.TWICE and one.message_id in solved)
            for one in found
        ]

    def _surplus(
        self, found: Sequence[Difference], lake: DataFrame
    ) -> dict[int, list[tuple[str, int]]]:
        """By batch: message ids, and ids of rows that have to go, of lives that are in the lake
        twice. The row that SQL has stays, else the first; 0 in place of an id: the same row is
        there twice."""
        drops: dict[int, list[tuple[str, int]]] = defaultdict(list)
        held: dict[tuple[str, int], Counter[tuple[int, int]]] = defaultdict(Counter)
        lives = {(one.message_id, one.stamp) for one in found}
        ids = sorted({message_id for message_id, _ in lives})
        for some_ids in chunked(ids, SOME):
            there = lake.where(F.col("message_id").isin(some_ids))
            for row in there.select("message_id", "stamp", "row", "batch").collect():
                held[row["message_id"], row["stamp"]][row["row"], row["batch"]] += 1
        held = {life: some for life, some in held.items() if life in lives}
        stored = stored_ids({row for some in held.values() for row, _ in some})
        for (message_id, _), some in held.items():
            stays = min((pk for pk, _ in some), key=lambda pk: (pk not in stored, pk))
            for (pk, batch), times in some.items():
                if pk != stays or times > 1:
                    drops[batch].append((message_id, 0 if pk == stays else pk))
        return drops

    def _rewrite(self, batch: Batch, drop: Set[int]) -> Commit:
        """One batch anew: what SQL has of it, and of the lake what SQL has not, but for the rows to
        drop. SQL is read once: what a prune deletes meanwhile is there in SQL, or else in the lake.
        """
        lake, (lo, hi) = self._ledger.lake, (batch.lo, batch.hi)
        old = [
            one
            for one in lake.files()
            if not one.highest or (one.lowest <= hi and one.highest > lo)
        ]
        inside = _inside(batch)
        before = read_files(self._spark, lake, old)
        stays = before.where(inside & ~F.col("id").isin(sorted(drop)))
        stored = read_archive(self._spark, self._database, (lo, hi))
        frame = before.where(~inside).unionByName(frames.merged(stored, stays))
        attempt = lake.attempt(lo, hi, self._ledger.archive)
        source = batches.write_files(self._spark, frame, attempt)
        written = batches.verified(self._spark, lake, lambda: frame, attempt, source)
        own = self._own(batch, written, attempt, before.where(~inside), stays)
        hour = F.date_format("finished_at", "yyyy-MM-dd'T'HH:00:00'Z'").alias("hour")
        hours = [row["hour"] for row in before.where(inside).select(hour).distinct().collect()]
        if written.files:
            lake.persist(attempt)
        return self._commit(batch, written, own, old, hours)

    def _own(
        self,
        batch: Batch,
        written: WrittenFiles,
        attempt: Path,
        others: DataFrame,
        stays: DataFrame,
    ) -> Digest:
        """What was written of the batch. Raises LakeError when rows of it are missing, or others
        are not as before."""
        now = read_files(self._spark, self._ledger.lake, written.files)
        own = batches.digest_of(now.where(_inside(batch)))
        least = stays.select("id").distinct().count()
        if own.rows < least or batches.digest_of(now.where(~_inside(batch))) != batches.digest_of(
            others
        ):
            raise LakeError(
                f"{attempt} has {own.rows:,} rows of its batch, where at least {least:,} have to "
                f"be, or rows of other "
                "batches are not as they were: it is not committed."
            )
        return own

    def _commit(
        self,
        batch: Batch,
        written: WrittenFiles,
        own: Digest,
        old: Sequence[LakeFile],
        hours: Sequence[str],
    ) -> Commit:
        ledger, lake = self._ledger, self._ledger.lake
        commit = lake.add(
            Commit.of(
                "repair",
                written,
                lo=batch.lo,
                hi=batch.hi,
                hours=sorted({*written.hours, *hours}),
                settled_at=_settled_at(lake.commits()),
                removes=[one.path for one in old],
                batch_rows=own.rows,
                batch_signature=str(own.signature),
                archive=ledger.archive,
            )
        )
        ledger.committed(commit)
        return commit


def _inside(batch: Batch) -> Column:
    return (F.col("id") > batch.lo) & (F.col("id") <= batch.hi)


def _settled_at(commits: Sequence[Commit]) -> str:
    """As the newest batch says: who looks at the last commit learns the same."""
    return next((one.settled_at for one in reversed(commits) if one.kind == "append"), "")
