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

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_schema

from ...archive.selection import newest_id
from ...store import get_store
from .. import schemas
from ..job_errors import LakeConflict, LakeError
from ..lake.lake import Lake
from ..lake.lake_source import read_lake
from ..lake.ledger import Ledger
from ..params import AuditOptions, Params, Report, Tell
from ..sources.archive_source import read_archive
from ..sources.outbox_source import read_outbox
from ..sources.queue_source import read_queue
from . import audit_frames as frames
from .audit_lake import AuditedLake
from .audit_repair import AuditRepair, recorded
from .audit_result import AuditResult
from .confirm import confirmed, wait
from .diagnosis import diagnosed
from .findings import EXPORTED_AGAIN, OF_THE_LAKE, Finding, FindingKind

#: The columns of the archive and the lake that tell which messages have ended.
_ENDED = ("id", "message_id", "enqueued_at")


def run(spark: SparkSession, params: Params, tell: Tell) -> Report:
    """Find candidates, check them again, and repair them when the options say so.

    The code is DIFFERENT when there were differences, also when all are repaired: the next audit is
    clean then. Raises Refused, and LakeError when the lake is not as its log says.
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
        self.of_period = bool(params.since or params.until)
        """Whether only the archive and the lake are compared."""
        self.ledger = Ledger(Lake(params.lake)) if params.lake else None
        self.lake: AuditedLake | None = None
        if self.ledger:
            self.lake = AuditedLake(
                spark, params.database, self.ledger, params.period(), options.most
            )

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
        if not (self.params.topic or self.of_period):
            result.note()
        self.report.figures["seconds"] = round(time.monotonic() - begun, 3)
        return self.report

    def _candidates(self) -> tuple[list[Finding], dict[FindingKind, int]]:
        """At most `most` of each kind, and how many there are of each."""
        if self.ledger:
            if self.options.repair:
                self.ledger.catch_up()
            else:
                self.ledger.check()
        found, counts = ([], {}) if self.of_period else self._of_messages()
        if self.lake:
            found = found + self.lake.compare()
            counts = counts | self.lake.counts()
            compared = self.lake.found
            self.report.figures["rows_compared"] = compared.rows.total()
            if days := compared.days():
                self.report.figures["days_that_differ"] = [str(day) for day in days]
        return found, counts

    def _of_messages(self) -> tuple[list[Finding], dict[FindingKind, int]]:
        """Of Redis, the outbox and what has ended."""
        topics = [self.params.topic] if self.params.topic else []
        before = newest_id()
        outbox = read_outbox(self.spark, self.params.database)
        if topics:
            outbox = outbox.where(F.col("topic").isin(topics))
        outbox = self._keep("rows of the outbox", frames.promises(outbox))
        queue = read_queue(self.spark, self.params.redis, topics)
        queue = self._keep("places in Redis", frames.places(queue))
        archived = read_archive(self.spark, self.params.database, (0, newest_id()), _ENDED)
        archive = self._keep("rows of the archive", frames.rows(archived))
        if self.ledger:
            in_lake = read_lake(self.spark, self.ledger.lake, _ENDED)
        else:
            schema = from_arrow_schema(schemas.chosen(schemas.ARCHIVE, _ENDED))
            in_lake = self.spark.createDataFrame([], schema)
        lake = self._keep("rows of the lake", frames.rows(in_lake))
        ended = frames.lives(archive, lake)
        past = frames.lives(archive.where(F.col("row") <= before), lake)
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
        ]
        return self._collected(reduce(DataFrame.unionByName, candidates))

    def _collected(self, found: DataFrame) -> tuple[list[Finding], dict[FindingKind, int]]:
        """At most `most` findings of each kind, and how many there are."""
        found, most = found.persist(), self.options.most
        self.kept.append(found)
        counts = {
            FindingKind(row["kind"]): row["count"]
            for row in found.groupBy("kind").count().collect()
        }
        parts = [found]
        if max(counts.values(), default=0) > most:
            parts = [found.where(F.col("kind") == kind.value).limit(most) for kind in counts]
        rows = [row.asDict() for part in parts for row in part.collect()]
        return msgspec.convert(rows, list[Finding]), counts

    def _keep(self, name: str, frame: DataFrame) -> DataFrame:
        """Read now, and once: later steps see what was there when its turn had come."""
        frame = frame.persist()
        self.kept.append(frame)
        count = frame.count()
        self.report.figures[name.replace(" ", "_")] = count
        self.tell(f"{count:,} {name}")
        return frame

    def _confirmed(self, candidates: Sequence[Finding]) -> list[Finding]:
        """Those that are still there after a pause."""
        self.tell(f"{len(candidates):,} candidates; checking again in {self.options.pause:g} s")
        wait(self.options.pause)
        of_lake = [finding for finding in candidates if finding.kind in OF_THE_LAKE]
        findings = confirmed(
            get_store(), [finding for finding in candidates if finding.kind not in OF_THE_LAKE]
        )
        if of_lake and self.lake:
            again = set(self.lake.compare(of_lake))
            findings += [finding for finding in of_lake if finding in again]
        return findings

    def _repaired(self, findings: Sequence[Finding]) -> list[Finding]:
        by = self.options.by or "audit"
        repaired = AuditRepair(get_store(), by).run(
            [finding for finding in findings if finding.kind not in OF_THE_LAKE]
        )
        again = [finding for finding in findings if finding.kind in EXPORTED_AGAIN]
        if again and self.lake:
            try:
                text = FindingKind.LATE_ROW.repair
                repaired += recorded(again, text, by, self.lake.repair)
            except (LakeConflict, LakeError) as error:
                self.report.problems.append(f"The lake was not repaired: {error}")
        return repaired
