"""The course of a load that makes a message of each row: what is refused, the fence, the memory of
Redis, the rejects, the writing. With Spark (schedule.py) and without (send_file.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...core.job_report import Report, Tell
from ...core.message import task_code
from ...store.keys import Partition
from ...store.store import RedisStore
from ..job_errors import Refused
from ..params import ScheduleOptions
from ..sinks.loader import LoadSpec
from . import loads
from .messages import LoadTotals

#: Rows that a refusal names.
NAMED = 5


class Rows(Protocol):
    """The rows of a source, as messages."""

    good: LoadTotals
    bad: int
    """How many cannot be messages."""

    def named(self) -> Sequence[Mapping[str, Any]]:
        """The first NAMED of the bad ones: key and reason."""

    def write_rejects(self) -> None:
        """Write the bad ones, in the place of those of an earlier run."""

    def write(self, spec: LoadSpec) -> None:
        """Write the good ones, each split in the order of its ids."""

    def rate(self) -> float | None:
        """Messages per second of each Loader; None: no limit."""


def schedule(
    rows: Rows, options: ScheduleOptions, store: RedisStore, dry_run: bool, tell: Tell
) -> Report:
    """Enqueue. When it raises Refused, nothing is enqueued. After another error the enqueued
    messages stay, and the same job again adds the rest."""
    total = rows.good.rows + rows.bad
    tell(f"{total:,} rows, {rows.bad:,} of them refused")
    if rows.bad and not (options.rejects or dry_run):
        first = "; ".join(_said(row) for row in rows.named())
        raise Refused(
            f"{rows.bad:,} of {total:,} rows cannot be messages, and nothing was enqueued. "
            f"{first}. Mend the source, or give a directory for rejects to enqueue the others."
        )
    topic = options.task.topic
    count = store.topics.configured(topic)
    fences = loads.Fences(store, options.job, [Partition(topic, number) for number in range(count)])
    # What may not differ between two runs of a job. The hash holds what is in the messages.
    fingerprint = {
        "rows": rows.good.rows, "hash": rows.good.hash, "topic": topic,
        "partitions": count, "splits": options.splits, "delay_ms": options.delay_ms,
    }  # fmt: skip
    # In all partitions: the topic of the task, or its partitions, may have been others.
    loads.Fences(store, options.job, store.topics.used_partitions()).check(fingerprint)
    note = loads.check_memory(store, rows.good, sum(fences.counts().values()), count)
    report = Report(
        job="schedule",
        figures={"rows": total, "refused": rows.bad},
        problems=[note] if note else [],
    )
    if dry_run:
        report.figures["messages"], report.rows = rows.good.rows, rows.named()
        return report
    if rows.bad:
        rows.write_rejects()
    tell(f"writing {rows.good.rows:,} messages")
    spec = LoadSpec(
        job=options.job, fingerprint=loads.encode_fingerprint(fingerprint),
        tasks={task_code(options.task.name).hex(): options.task.name}, rows=rows.good.rows,
        per_second=rows.rate(),
    )  # fmt: skip
    report.figures |= fences.add(rows.write, spec, options.delay_ms)
    return report


def _said(row: Mapping[str, Any]) -> str:
    line = f"line {row['line']:,}, " if "line" in row else ""
    return f"{line}row {row['key']!r}: {row['reason']}"
