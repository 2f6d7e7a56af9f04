"""The batches of a lake in SQL. The commits of the lake decide: after a crash, the ledger is
updated from them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from django.db.models import Count, Max, Min, QuerySet
from django.utils import timezone

from ...core.times import stored
from ...models import ArchivedMessage, BatchState, LakeBatch
from ..job_errors import Refused
from .lake import Commit, Lake

#: Hexadecimal digits that name the archive, at the beginning of the random part of an attempt's
#: name.
NAME_LENGTH = 12

PLANNED, WRITTEN, VERIFIED, COMMITTED, PRUNED = BatchState.values


class Ledger:
    """The batches of one lake."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.name = str(lake.root.resolve())
        if len(self.name) > 400:
            raise Refused(
                f"The path of the lake has {len(self.name)} characters: 400 are the most."
            )

    @property
    def batches(self) -> QuerySet[LakeBatch]:
        """In the order of their ids."""
        rows: QuerySet[LakeBatch] = LakeBatch.objects.filter(lake=self.name).order_by("lo")
        return rows

    @property
    def archive(self) -> str:
        """The random name under which this lake knows this database's archive; empty before the
        first batch."""
        first = self.batches.first()
        return archive_of(first.attempt) if first else ""

    def check(self) -> list[Commit]:
        """The commits. Raises Refused when they are not of the archive of this database, LakeError
        when the lake is not as they say."""
        commits = self.lake.commits()
        known = {batch.lo: batch for batch in self.batches}
        if commits and not known:
            # The lake may have been at another path before.
            archive = commits[0].archive or "-"
            known = {
                batch.lo: batch
                for batch in LakeBatch.objects.filter(attempt__contains=f".{archive}")
            }
            for name in {batch.lake for batch in known.values()}:
                if Path(name).exists():
                    raise Refused(
                        f"{self.name} is a copy of the lake {name}: use that one, or an empty "
                        f"directory."
                    )
        _refuse_another(self.name, commits, known)
        newest = max((batch.seq or 0 for batch in known.values()), default=0)
        if newest > len(commits):
            raise Refused(
                f"The lake {self.name} has {len(commits)} commits, but this database saw {newest}: "
                f"it is not mounted, was emptied, or is an older copy. Bring it back, or begin a "
                f"new lake in another directory."
            )
        return commits

    def catch_up(self) -> list[Commit]:
        """check(), and then update the ledger from the commits, also from those of runs that died
        before they did it."""
        commits = self.check()
        if commits and not self.batches.exists():  # the lake was moved to another path
            moved = LakeBatch.objects.filter(attempt__contains=f".{commits[0].archive}")
            moved.update(lake=self.name)
        known = {batch.lo: batch for batch in self.batches}
        for commit in commits:
            if any((known[batch.lo].seq or 0) < commit.seq for batch in commit.sums):
                self.committed(commit)
        return commits

    def pending(self, lo: int) -> LakeBatch | None:
        """The batch after this id, if it was begun and is not committed."""
        batch: LakeBatch | None = self.batches.filter(lo=lo, seq=None).first()
        return batch

    def plan(self, lo: int, hi: int) -> Path:
        """Enter that (lo, hi] is begun. Returns where its files go."""
        first = {
            "hi": hi,
            "state": PLANNED,
            "attempt": f"{lo}-{hi}.{os.urandom(NAME_LENGTH // 2).hex()}",
        }
        LakeBatch.objects.get_or_create(lake=self.name, lo=lo, defaults=first)
        # The name of the archive is that in the first batch: all processes read it there.
        attempt = self.lake.attempt(lo, hi, self.archive)
        self._set({"lo": lo, "seq": None}, hi=hi, state=PLANNED, attempt=attempt.name, problem="")
        return attempt

    def enter(self, attempt: Path, state: str, **fields: Any) -> None:
        """Enter how far this attempt is, unless another attempt works on the same batch now."""
        self._set({"attempt": attempt.name, "seq": None}, state=state, **fields)

    def committed(self, commit: Commit) -> None:
        """Enter a commit of any kind but compact. After an append or a repair the hours of its rows
        have to be counted; after an erasure the figures stay as they are."""
        fields: dict[str, Any] = {"seq": commit.seq, "problem": ""}
        if commit.kind != "erase":
            fields["counted_at"] = None
        if commit.kind == "append":
            fields |= {
                "hi": commit.hi,
                "state": COMMITTED,
                "oldest_at": stored_instant(commit.oldest),
                "newest_at": stored_instant(commit.newest),
            }
            if commit.files:
                fields["attempt"] = commit.files[0].path.split("/")[1]
        for batch in commit.sums:
            held = {"rows": batch.rows, "signature": batch.signature}
            if commit.kind == "erase" and (row := self.batches.filter(lo=batch.lo).first()):
                # Of those that were pruned from SQL, some are not in the lake any more.
                in_sql = ArchivedMessage.objects.filter(pk__gt=row.lo, pk__lte=row.hi).count()
                held |= {"pruned": max(0, batch.rows - in_sql)} if row.pruned else {}
            # A batch that a later commit has changed stays as that one says.
            rows = self.batches.filter(lo=batch.lo).exclude(seq__gt=commit.seq)
            rows.update(changed_at=timezone.now(), **fields, **held)

    def _set(self, where: Mapping[str, Any], **fields: Any) -> None:
        LakeBatch.objects.filter(lake=self.name, **where).update(
            changed_at=timezone.now(), **fields
        )


def archive_of(attempt: str) -> str:
    """The name of the archive, which is part of the name of an attempt."""
    return attempt.rpartition(".")[2][:NAME_LENGTH]


def stored_instant(text: str) -> datetime | None:
    """The time in a commit, as the models of this project hold it."""
    return stored(datetime.fromisoformat(text.replace("Z", "+00:00"))) if text else None


def _refuse_another(name: str, commits: Sequence[Commit], known: Mapping[int, LakeBatch]) -> None:
    ours = archive_of(known[0].attempt) if 0 in known else ""
    for commit in commits:
        if commit.kind != "append":
            continue
        if commit.archive != ours or not ours:
            raise Refused(
                f"The lake {name} is of another archive: the ledger of this database does not know "
                f"its commit {commit.seq}. Use another directory for this database."
            )
        if batch := known.get(commit.lo):
            if batch.seq is not None or batch.hi == commit.hi:
                continue
            # The batch was begun when the database was backed up, and committed with other ids
            # afterwards: then SQL does not have its rows. Two exports at once can also commit
            # other ids than the ledger says, for a moment: then SQL has them.
            held = ArchivedMessage.objects.filter(pk__gt=commit.lo, pk__lte=commit.hi).aggregate(
                rows=Count("pk"), oldest=Min("finished_at"), newest=Max("finished_at")
            )
            if held == {
                "rows": commit.rows,
                "oldest": stored_instant(commit.oldest),
                "newest": stored_instant(commit.newest),
            }:
                continue
        raise Refused(
            f"The lake {name} has the rows up to id {commit.hi} (commit {commit.seq}), of "
            f"which the ledger of this database knows nothing: the database was restored from "
            f"a backup, and may give these ids to other messages. Begin a new lake in an empty "
            f"directory."
        )
