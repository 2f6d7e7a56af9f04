"""Give the archive a partition for each month, on PostgreSQL.

Pruning then drops a month that is over, in place of deleting its rows. Workers and pages go on
meanwhile: the rows that are there stay in one partition, and the next month gets the first of its
own. Run it again after an error or a kill: the archive is whole at each step. On an archive that
is partitioned it makes the months that are missing; workers do that too.

  python manage.py delayq partition-archive --dry-run
  python manage.py delayq partition-archive --reason "10 million rows a month"
"""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from ...archive.partitioning import ArchivePlan, partition_archive, plan_archive
from ...models import OperatorAction
from ..cli import Answer, Verb, add_record


class Command(Verb):
    """Partitions the archive."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Whether only to look, and for the record."""
        parser.add_argument(
            "--dry-run", action="store_true", help="check everything, and change nothing"
        )
        add_record(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """Check, partition, and say which partitions are new."""
        plan = plan_archive()
        if options["dry_run"]:
            return Answer(
                text=_planned(plan),
                data={"dry_run": True, **asdict(plan)},
                code=1 if plan.problems else 0,
            )
        with OperatorAction.recorded(
            "partition archive",
            options["by"],
            options["reason"][:1_000],
            selection="missing months" if plan.partitioned else "the plain table",
        ):
            made = partition_archive(self.progress)
        if plan.partitioned:
            text = f"New partitions: {', '.join(made)}." if made else "No month is missing."
        else:
            text = (
                "The archive is partitioned. What was enqueued before "
                f"{plan.boundary:%Y-%m-%d} (UTC) is in one partition; of their own are "
                f"{', '.join(made)}. Workers make the months that follow."
            )
        return Answer(text=text, data={"dry_run": False, "made": made})


def _planned(plan: ArchivePlan) -> str:
    if plan.partitioned:
        return "The archive is partitioned. Without --dry-run, missing months are made."
    if plan.problems:
        return "\n".join(("The archive cannot be partitioned.", *plan.problems))
    ready = f" Ready from an earlier call: {' and '.join(plan.done)}." if plan.done else ""
    return (
        f"Nothing speaks against it. The archive has about {plan.rows:,} rows "
        f"({plan.size / 2**20:,.0f} MiB). They stay in one partition with all that is enqueued "
        f"before {plan.boundary:%Y-%m-%d} (UTC); the months that follow get partitions of their "
        f"own.{ready}"
    )
