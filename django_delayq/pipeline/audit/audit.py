"""Redis x outbox x archive x lake: what is where it should not be, or is nowhere; and its repair.

All is read in the direction in which messages move: the outbox, Redis, the archive, the lake. What
moves meanwhile is seen twice, perhaps, but never missed. For what must not be there twice only
those rows of the archive count that were there before the first of it was read. So a healthy system
in motion gives few candidates; a second look by id decides.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

from django.db.models import Max
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_schema

from ...core.conf import get_settings
from ...models import ArchivedMessage
from ...store import get_store
from .. import schemas
from ..job_errors import Code, LakeConflict, LakeError
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
from .confirm import SecondLook
from .finding_kinds import OF_THE_LAKE, Difference, Kind

#: Ids that the report names of each kind.
NAMED = 10
LAKE_DEED = (
    "the archive and the lake were made equal again; a dead letter that SQL had lost is discarded "
    "there, for somebody "
    "may have replayed it, unless a replay of it is known"
)


def run(spark: SparkSession, params: Params, tell: Tell) -> Report:
    """Look, look again, and repair when the options say so.

    The code is DIFFERENT when there were differences, also when all are repaired: the next audit is
    clean then. Raises Refused, and LakeError when the lake is not as its commits say.
    """
    options = params.options(AuditOptions)
    return _Audit(spark, params, options, tell).run()


class _Audit:
    """One run."""

    def __init__(
        self, spark: SparkSession, params: Params, options: AuditOptions, tell: Tell
    ) -> None:
        self.spark, self.params, self.options, self.tell = spark, params, options, tell
        self.kept: list[DataFrame] = []
        self.counts: dict[Kind, int] = {}
        self.report = Report(job="audit")
        self.ledger = Ledger(Lake(params.lake)) if params.lake else None
        self.batches: Sequence[audit_lake.Batch] = ()

    def run(self) -> Report:
        """All steps."""
        begun = time.monotonic()
        try:
            found = self._first_look()
            confirmed = self._second_look(found)
            repaired = self._repair(confirmed) if self.options.repair else []
        finally:
            for frame in self.kept:
                frame.unpersist()
        self._tell_of(confirmed, repaired)
        self.report.figures["seconds"] = round(time.monotonic() - begun, 3)
        return self.report

    # The first look

    def _first_look(self) -> list[Difference]:
        database, topic = self.params.database, self.params.topic
        if self.ledger:
            commits = self.ledger.catch_up() if self.options.repair else self.ledger.check()
            self.batches = audit_lake.batches_of(self.ledger, commits)
        before = _newest()
        outbox = self._keep(
            "rows of the outbox", frames.promises(self._of_topic(read_outbox(self.spark, database)))
        )
        queue = read_queue(self.spark, self.params.redis, [topic] if topic else ())
        queue = self._keep("places in Redis", frames.places(queue))
        self.archive = self._keep(
            "rows of the archive", self._batched(frames.rows(self._archive((0, _newest()))))
        )
        self.lake = self._keep("rows of the lake", self._batched(frames.rows(self._lake())))
        ended = frames.lives(self.archive, self.lake)
        past = frames.lives(self.archive.where(F.col("row") <= before), self.lake)
        candidates = [
            frames.in_redis(queue, self._partition_counts()),
            frames.ends(queue, outbox, ended),
            frames.unclosed(outbox, past),
            frames.lost(outbox, queue, ended),
            frames.live_again(queue, past),
            frames.twice(self.archive, self.lake),
        ]
        found, self.counts = audit_lake.taken(
            reduce(DataFrame.unionByName, candidates), self.options.most
        )
        return found + self._compared(self.archive, self.lake)

    def _compared(self, archive: DataFrame, lake: DataFrame) -> list[Difference]:
        if not self.ledger or not self.batches:
            return []
        pruned = audit_lake.pruned_before(self.ledger)
        found, counts = audit_lake.compared(archive, lake, self.batches, self.options.most, pruned)
        self.counts |= counts
        return found

    def _keep(self, name: str, frame: DataFrame) -> DataFrame:
        """Read now, once: later looks see what was there when it was its turn."""
        frame = frame.persist()
        self.kept.append(frame)
        count = frame.count()
        self.report.figures[name.replace(" ", "_")] = count
        self.tell(f"{count:,} {name}")
        return frame

    def _of_topic(self, frame: DataFrame) -> DataFrame:
        return frame.where(F.col("topic") == self.params.topic) if self.params.topic else frame

    def _archive(self, ids: tuple[int, int]) -> DataFrame:
        return read_archive(self.spark, self.params.database, ids)

    def _lake(self) -> DataFrame:
        if self.ledger:
            return read_lake(self.spark, self.ledger.lake)
        return self.spark.createDataFrame([], from_arrow_schema(schemas.ARCHIVE))

    def _batched(self, rows: DataFrame) -> DataFrame:
        return frames.batched(rows, [one.hi for one in self.batches])

    def _partition_counts(self) -> DataFrame:
        store = get_store()
        store.partitions.forget()
        topics = {*store.topics.names(), *store.client.settings.topics}
        counts = [(topic, sorted(store.partitions.counts(topic))) for topic in sorted(topics)]
        return self.spark.createDataFrame(counts, "topic string, counts array<int>")

    # The second look

    def _second_look(self, found: Sequence[Difference]) -> list[Difference]:
        if not found:
            return []
        self.tell(f"{len(found):,} candidates; looking again in {self.options.pause:g} s")
        wait(self.options.pause)
        confirmed = SecondLook(get_store()).confirmed(
            [one for one in found if one.kind not in OF_THE_LAKE]
        )
        confirmed += [one for one in found if one.kind == Kind.TWICE]
        of_rows = [one for one in found if one.kind in OF_THE_LAKE and one.kind != Kind.TWICE]
        if of_rows:
            again = set(self._compared_again({one.batch for one in of_rows}))
            confirmed += [one for one in of_rows if one in again]
        return confirmed

    def _compared_again(self, numbers: set[int | None]) -> list[Difference]:
        """SQL once more, where it differed; the lake's files do not change."""
        assert self.ledger
        some = [
            one
            for one in audit_lake.batches_of(self.ledger, self.ledger.lake.commits())
            if one.number in numbers
        ]
        ranges = [self._archive((one.lo, one.hi)) for one in some]
        archive = self._batched(frames.rows(reduce(DataFrame.unionByName, ranges))).persist()
        self.kept.append(archive)
        lake = self.lake.where(F.col("batch").isin([one.number for one in some]))
        return audit_lake.compared(
            archive, lake, some, self.options.most, audit_lake.pruned_before(self.ledger)
        )[0]

    # AuditRepair and report

    def _repair(self, confirmed: Sequence[Difference]) -> list[Difference]:
        by = self.options.by
        repaired = AuditRepair(get_store(), by).run(
            [one for one in confirmed if one.kind not in OF_THE_LAKE]
        )
        of_lake = [one for one in confirmed if one.kind in OF_THE_LAKE]
        if of_lake and self.ledger:
            work = audit_lake.LakeRepair(
                self.spark, self.params.database, self.ledger, self.batches
            )
            try:
                repaired += recorded(
                    of_lake, LAKE_DEED, by or "audit", lambda some: work.run(some, self.lake)
                )
            except (LakeConflict, LakeError) as error:
                self.report.problems.append(f"The lake was not repaired: {error}")
        return repaired

    def _tell_of(self, confirmed: Sequence[Difference], repaired: Sequence[Difference]) -> None:
        for kind in Kind:
            seen = [one for one in confirmed if one.kind == kind]
            if self.counts.get(kind) or seen:
                mended = sum(one.kind == kind for one in repaired)
                self.report.rows = [*self.report.rows, self._row(kind, seen, mended)]
                self.report.problems += self._problems(kind, len(seen) - mended)
        self.report.figures |= {"confirmed": len(confirmed), "repaired": len(repaired)}
        self.report.code = Code.DIFFERENT if confirmed else Code.DONE

    def _row(self, kind: Kind, seen: Sequence[Difference], mended: int) -> dict[str, Any]:
        """Candidates of the first look, what the second has confirmed, and what is repaired."""
        names = [one.name for one in seen[:NAMED]]
        found = self.counts.get(kind, 0)
        return {
            "difference": kind.value,
            "found": found,
            "confirmed": len(seen),
            "repaired": mended,
            "ids": names,
        }

    def _problems(self, kind: Kind, left: int) -> Iterator[str]:
        found, most = self.counts.get(kind, 0), self.options.most
        if found > most:
            yield (
                f"{kind.value}: only {most:,} of {found:,} candidates were looked at again. "
                "Run it once more."
            )
        if self.options.repair and left:
            yield (
                f"{kind.value}: {left:,} were not repaired; see docs/pipeline/audit.md for what "
                "can be done by hand."
            )


def wait(seconds: float) -> None:
    """Between the two looks."""
    time.sleep(seconds)


def _newest() -> int:
    """The biggest id of the archive."""
    newest = ArchivedMessage.objects.using(get_settings().database).aggregate(last=Max("pk"))[
        "last"
    ]
    return newest or 0
