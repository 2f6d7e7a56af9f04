"""The batches of a lake in SQL: what the log of its table forgets. The table decides: after a
crash, the ledger is updated from it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from uuid import UUID

from django.db.models import Count, Max, Min, Q, QuerySet
from django.utils.timezone import get_default_timezone, make_aware

from ...archive.selection import newest_id
from ...core.times import epoch_us, stored, stored_ms
from ...models import ArchivedMessage, LakeBatch, OperatorAction
from ..job_errors import Refused
from .files import Range
from .lake import Appended, Lake

#: A prune without an end that began longer than this before the last export was interrupted before
#: it.
LONGEST_PRUNE = timedelta(days=1)
#: Rows after an id among which the one that was archived first is sought. Several archivers insert
#: at a time, so it need not be the first row.
NEXT_ROWS = 1_000
#: Seconds in which rows settle, unless an option says otherwise.
SETTLE = 60.0


class Ledger:
    """The batches of one lake."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.name = lake.uri
        """For people."""

    @property
    def batches(self) -> QuerySet[LakeBatch]:
        """In the order of their ids."""
        if not self.lake.exists:
            return LakeBatch.objects.none()
        rows: QuerySet[LakeBatch] = LakeBatch.objects.filter(table_id=UUID(self.lake.table_id))
        return rows.order_by("lo")

    def check(self) -> list[Appended]:
        """Raise Refused when the lake is not of the archive of this database, or is older than the
        ledger. Returns commits that the ledger does not have."""
        done = self.batches.filter(version__isnull=False)
        seen = done.aggregate(version=Max("version"), last=Max("hi"))
        version, last = seen["version"], seen["last"] or 0
        version = -1 if version is None else version
        lake = self.lake
        # After the ledger: another export commits first, and then enters it.
        lake.refresh()
        if version > lake.version or last > lake.last_id:
            raise Refused(
                f"The lake {self.name} is at version {lake.version}, with the rows up to id "
                f"{lake.last_id:,}, but this database saw version {version} and id {last:,}: it is "
                f"an older copy. Bring the newer one back, or begin a new lake elsewhere."
            )
        if last < lake.last_id and not self.batches.exists():
            raise Refused(
                f"The lake {self.name} is of another archive, or this database was restored from a "
                f"backup: its ledger does not know the table {lake.table_id}. Begin a new lake "
                f"elsewhere."
            )
        if last == lake.last_id:
            return []
        # The whole log: a repair that came after a commit is entered with a later version.
        missing = [one for one in lake.appended(-1) if one.lo >= last]
        for one in missing:
            self._refuse_unknown(one)
        return missing

    def catch_up(self) -> None:
        """check(), and then enter commits of exports that died before they did it."""
        for one in self.check():
            self.committed((one.lo, one.hi), one.version, one.rows)
        # Begun and committed so long ago that the log does not say any more how many rows it has.
        forgotten = self.batches.filter(version=None, hi__lte=self.lake.last_id)
        forgotten.update(version=self.lake.version, problem="The log has forgotten its rows.")

    def other_lakes(self) -> list[str]:
        """A line when a new lake begins, or has begun, beside another one: perhaps the store of the
        old one is not mounted."""
        if self.lake.last_id or not LakeBatch.objects.filter(version__isnull=False).exists():
            return []
        return [
            f"{self.name} is a new lake, and this database has another lake, with the rows that "
            f"were pruned."
        ]

    def pending(self, lo: int) -> LakeBatch | None:
        """The batch after this id, if it was begun and is not committed."""
        batch: LakeBatch | None = self.batches.filter(lo=lo, version=None).first()
        return batch

    def plan(self, ids: Range) -> None:
        """Enter that (lo, hi] is begun: an erasure waits for it."""
        table = UUID(self.lake.table_id)
        fields = {"hi": ids[1], "problem": ""}
        planned, new = LakeBatch.objects.get_or_create(table_id=table, lo=ids[0], defaults=fields)
        if not new:
            LakeBatch.objects.filter(pk=planned.pk, version=None).update(**fields)

    def committed(self, ids: Range, version: int, rows: int) -> None:
        """Enter that the table has these rows: the figures of their hours have to be counted."""
        fields = {"hi": ids[1], "version": version, "rows": rows, "counted_at": None, "problem": ""}
        LakeBatch.objects.update_or_create(
            table_id=UUID(self.lake.table_id), lo=ids[0], defaults=fields
        )

    def repaired(self, ids: Range, version: int) -> None:
        """Enter that rows of batches that meet these ids were exported again."""
        self.batches.filter(version__isnull=False, lo__lt=ids[1], hi__gt=ids[0]).update(
            version=version, counted_at=None, problem=""
        )

    def refuse_restored(self) -> None:
        """Raise Refused when the archive ends below the lake although nobody pruned or erased its
        last rows: the database would give the ids of the lake to other messages."""
        newest, last = newest_id(), self.lake.last_id
        if newest >= last:
            return
        if appended := self.lake.last_appended():
            at = stored(appended.at)
        else:
            finished = max((file.newest for file in self.lake.files()), default=0)
            at = stored_ms(finished / 1000)
        going_on = Q(finished_at=None, started_at__gte=at - LONGEST_PRUNE)
        later = Q(started_at__gte=at) | Q(finished_at__gte=at) | going_on
        if not OperatorAction.objects.filter(later, action__in=("prune", "erase")).exists():
            raise Refused(
                f"The archive ends at id {newest:,}, the lake has rows up to {last:,}, and "
                f"no prune is on record: the archive was restored from a backup, and may give "
                f"these ids to other messages. Begin a new lake elsewhere."
            )

    def _refuse_unknown(self, one: Appended) -> None:
        """The batch was begun when the database was backed up, and committed with other ids
        afterwards: then SQL does not have its rows. Two exports at once can also commit other ids
        than the ledger says, for a moment: then SQL has them."""
        batch = self.batches.filter(lo=one.lo).first()
        if batch and batch.hi == one.hi:
            return
        held = ArchivedMessage.objects.filter(pk__gt=one.lo, pk__lte=one.hi).aggregate(
            rows=Count("pk"), oldest=Min("finished_at"), newest=Max("finished_at")
        )
        edges = (epoch_us(held[name] or stored_ms(0)) for name in ("oldest", "newest"))
        if (held["rows"], *edges) != (one.rows, one.oldest, one.newest):
            raise Refused(
                f"The lake {self.name} has the rows up to id {one.hi:,} (version {one.version}), "
                f"of which the ledger of this database knows nothing: the database was restored "
                f"from a backup, and may give these ids to other messages. Begin a new lake "
                f"elsewhere."
            )


def settled_at(last: int, seconds: float = SETTLE) -> datetime:
    """All rows that were archived before this instant have an id up to `last`, where rows settle
    within `seconds`."""
    following = ArchivedMessage.objects.filter(pk__gt=last).order_by("pk")
    times = [datetime.now(tz=timezone.utc)]
    for when in following.values_list("archived_at", flat=True)[:NEXT_ROWS]:
        if when.tzinfo:
            times.append(when)
        else:
            # Without USE_TZ, one database has the clock of the project's zone, another one UTC.
            times += [when.replace(tzinfo=timezone.utc), make_aware(when, get_default_timezone())]
    return min(times) - timedelta(seconds=seconds)
