"""Compares Redis, the outbox, the archive and the lake: finds what is lost, twice or in a wrong
place, and repairs it.

All is read in the direction in which messages move: the outbox, Redis, the archive, the lake. A
message that moves meanwhile may be seen twice, but is never missed. To find a message that must not
be there twice, only those rows of the archive count that were there before the first of it was
read. So a healthy system in motion gives few candidates. A check of each by its id decides.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_schema

from ...archive.selection import newest_id
from ...store import get_store
from .. import schemas
from ..job_errors import LakeConflict, LakeError
from ..lake.lake import Lake
from ..lake.ledger import Ledger
from ..lake.reader import read_lake
from ..params import AuditOptions, Params, Report, Tell
from ..sources.archive_source import read_archive
from ..sources.outbox_source import read_outbox
from ..sources.queue_source import read_queue
from . import audit_frames as frames
from . import audit_lake
from .audit_repair import AuditRepair, recorded
from .audit_result import AuditResult
from .confirm import confirmed, wait
from .diagnosis import diagnosed
from .findings import OF_THE_LAKE, Finding, FindingKind


def run(spark: SparkSession, params: Params, tell: Tell) -> Report:
    """Find candidates, check them again, and repair them when the options say so.

    The code is DIFFERENT when there were differences, also when all are repaired: the next audit is
    clean then. Raises Refused, and LakeError when the lake is not as its commits say.
    """
    return _Audit(spark, params, params.options(AuditOptions), tell).run()


class _Audit:
    """One run."""

    def __init__(
        self, spark: SparkSession, params: Params, options: AuditOptions, tell: Tell
    ) -> None:
        self.spark, self.params, self.options, self.tell = spark, params, options, tell
        self.kept: list[DataFrame] = []
        self.report = Report(job="audit")
        self.ledger = Ledger(Lake(params.lake)) if params.lake else None
        self.batches: Sequence[audit_lake.AuditedBatch] = ()

    def run(self) -> Report:
        """All steps."""
        begun = time.monotonic()
        try:
            candidates, counts = self._candidates()
            findings = self._confirmed(candidates) if candidates else []
            repaired = self._repaired(findings) if self.options.repair else []
        finally:
            for frame in self.kept:
                frame.unpersist()
        result = AuditResult(counts, findings, repaired, self.options.most, self.options.repair)
        result.add_to(self.report)
        if not self.params.topic:
            result.note()
        self.report.figures["seconds"] = round(time.monotonic() - begun, 3)
        return self.report

    def _candidates(self) -> tuple[list[Finding], dict[FindingKind, int]]:
        """At most `most` of each kind, and how many there are of each."""
        topics = [self.params.topic] if self.params.topic else []
        if self.ledger:
            commits = self.ledger.catch_up() if self.options.repair else self.ledger.check()
            self.batches = audit_lake.batches_of(self.ledger, commits)
        before = newest_id()
        outbox = read_outbox(self.spark, self.params.database)
        if topics:
            outbox = outbox.where(F.col("topic").isin(topics))
        outbox = self._keep("rows of the outbox", frames.promises(outbox))
        queue = read_queue(self.spark, self.params.redis, topics)
        queue = self._keep("places in Redis", frames.places(queue))
        archive = self._keep("rows of the archive", self._of_archive([(0, newest_id())]))
        lake = self.spark.createDataFrame([], from_arrow_schema(schemas.ARCHIVE))
        if self.ledger:
            lake = read_lake(self.spark, self.ledger.lake)
        self.lake = self._keep("rows of the lake", self._hashed(lake))
        ended = frames.lives(archive, self.lake)
        past = frames.lives(archive.where(F.col("row") <= before), self.lake)
        store = get_store()
        store.partitions.forget()
        used = sorted({*store.topics.names(), *store.client.settings.topics})
        counts_of = [(topic, sorted(store.partitions.counts(topic))) for topic in used]
        partitions = self.spark.createDataFrame(counts_of, "topic string, counts array<int>")
        candidates = [
            frames.as_findings(diagnosed(frames.suspects(queue), self.params.redis)),
            frames.misplaced(queue, partitions),
            frames.ends(queue, outbox, ended),
            frames.unclosed(outbox, past),
            frames.lost(outbox, queue, ended),
            frames.live_again(queue, past),
            frames.twice(archive, self.lake),
        ]
        found, counts = audit_lake.collected(
            reduce(DataFrame.unionByName, candidates), self.options.most
        )
        if self.ledger and self.batches:
            of_lake, more = audit_lake.compared(
                archive, self.lake, self.batches, self.options.most, self.ledger
            )
            return found + of_lake, counts | more
        return found, counts

    def _keep(self, name: str, frame: DataFrame) -> DataFrame:
        """Read now, and once: later steps see what was there when its turn had come."""
        frame = frame.persist()
        self.kept.append(frame)
        count = frame.count()
        self.report.figures[name.replace(" ", "_")] = count
        self.tell(f"{count:,} {name}")
        return frame

    def _of_archive(self, ranges: Sequence[tuple[int, int]]) -> DataFrame:
        archive = (read_archive(self.spark, self.params.database, ids) for ids in ranges)
        return self._hashed(reduce(DataFrame.unionByName, archive))

    def _hashed(self, rows: DataFrame) -> DataFrame:
        return frames.batched(frames.hashed_rows(rows), [batch.hi for batch in self.batches])

    def _confirmed(self, candidates: Sequence[Finding]) -> list[Finding]:
        """Those that are still there after a pause."""
        self.tell(f"{len(candidates):,} candidates; checking again in {self.options.pause:g} s")
        wait(self.options.pause)
        findings = confirmed(
            get_store(), [finding for finding in candidates if finding.kind not in OF_THE_LAKE]
        )
        findings += [finding for finding in candidates if finding.kind == FindingKind.TWICE]
        of_rows = [
            finding
            for finding in candidates
            if finding.kind in OF_THE_LAKE and finding.kind != FindingKind.TWICE
        ]
        if of_rows and self.ledger:
            # SQL once more, where it differed; the lake's files do not change.
            numbers = {finding.batch for finding in of_rows}
            commits = self.ledger.lake.commits()
            batches = [
                batch
                for batch in audit_lake.batches_of(self.ledger, commits)
                if batch.number in numbers
            ]
            archive = self._of_archive([(batch.lo, batch.hi) for batch in batches]).persist()
            self.kept.append(archive)
            lake = self.lake.where(F.col("batch").isin([batch.number for batch in batches]))
            again, _ = audit_lake.compared(archive, lake, batches, self.options.most, self.ledger)
            findings += [finding for finding in of_rows if finding in set(again)]
        return findings

    def _repaired(self, findings: Sequence[Finding]) -> list[Finding]:
        by = self.options.by or "audit"
        repaired = AuditRepair(get_store(), by).run(
            [finding for finding in findings if finding.kind not in OF_THE_LAKE]
        )
        of_lake = [finding for finding in findings if finding.kind in OF_THE_LAKE]
        if of_lake and self.ledger:
            repair = audit_lake.LakeRepair(
                self.spark, self.params.database, self.ledger, self.batches
            )
            try:
                repaired += recorded(
                    of_lake, audit_lake.REPAIR, by, lambda group: repair.run(group, self.lake)
                )
            except (LakeConflict, LakeError) as error:
                self.report.problems.append(f"The lake was not repaired: {error}")
        return repaired
