"""What SQL knows of dead letters, and the marks of the job replay in it. On the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain, islice
from typing import Any
from uuid import UUID

import pyarrow as pa
from django.db import connections, transaction
from django.db.models import F
from django.db.models.expressions import RawSQL
from django.utils import timezone

from ...archive.archive_rows import instant_of
from ...core.conf import get_settings
from ...models import ArchivedMessage, Final, OperatorAction
from ...store.client import BATCH
from ..options import ReplayOptions
from .replay_frames import DISCARDED, OPEN, REPLAYED


def standings(since: datetime | None, until: datetime | None, topic: str, last: int) -> pa.Table:
    """`id` and `standing` of every dead letter of the period and topic with an id up to `last`."""
    rows = ArchivedMessage.objects.using(get_settings().database).filter(
        state=Final.DEAD, pk__lte=last
    )
    times = {"finished_at__gte": since, "finished_at__lt": until}
    rows = rows.filter(
        **{name: instant_of(when.timestamp() * 1000) for name, when in times.items() if when}
    )
    rows = rows.filter(topic=topic) if topic else rows
    ids, words = [], []
    for pk, replayed_at, discarded_at in rows.order_by("pk").values_list(
        "pk", "replayed_at", "discarded_at"
    ).iterator(chunk_size=10_000):  # fmt: skip
        ids.append(pk)
        words.append(REPLAYED if replayed_at else DISCARDED if discarded_at else OPEN)
    return pa.table({"id": pa.array(ids, pa.int64()), "standing": pa.array(words, pa.string())})


class Marks:
    """Writes into origins which message replays them, and one OperatorAction for the whole job."""

    def __init__(self, options: ReplayOptions, selection: str) -> None:
        self._alias = get_settings().database
        self._table = ArchivedMessage.objects.using(self._alias)
        self._actions = OperatorAction.objects.using(self._alias)
        name = f"pipeline job {options.job}: "
        mine = (
            self._actions.filter(action="replay", selection__startswith=name).order_by("pk").first()
        )
        self._action = mine or self._actions.create(
            action="replay",
            operator=options.by[:150],
            reason=options.reason,
            selection=f"{name}{selection}"[:2_000],
        )
        self.kept = 0
        """Origins that stay open, because another message has their key."""

    def mark(self, links: Iterable[tuple[int, UUID | None]]) -> int:
        """Mark these origins that are still open. Returns how many. To repeat it is safe."""
        count = 0
        for page in _pages(links):
            given = {pk: message_id for pk, message_id in page if message_id is not None}
            self.kept += len(page) - len(given)
            if given:
                count += self._marked(given)
        self._actions.filter(pk=self._action.pk).update(finished_at=timezone.now())
        return count

    def _marked(self, given: dict[int, UUID]) -> int:
        # Case and When take Django longer than the database.
        field: Any = ArchivedMessage._meta.get_field("replayed_by")
        connection = connections[self._alias]
        values = [
            (pk, field.get_db_prep_value(message_id, connection))
            for pk, message_id in given.items()
        ]
        cases = f"CASE {connection.ops.quote_name('id')} {'WHEN %s THEN %s ' * len(values)}END"
        by = RawSQL(cases, tuple(chain.from_iterable(values)), field)
        mine = self._actions.filter(pk=self._action.pk)
        with transaction.atomic(using=self._alias):
            mine.update(count=F("count"))  # a write first: see replay_walk.Ledger.open
            still_open = self._table.filter(pk__in=given, replayed_at=None, discarded_at=None)
            marked: int = still_open.update(replayed_by=by, replayed_at=timezone.now())
            mine.update(count=F("count") + marked)
        return marked


def _pages(links: Iterable[tuple[int, UUID | None]]) -> Iterator[list[tuple[int, UUID | None]]]:
    rest = iter(links)
    while page := list(islice(rest, BATCH)):
        yield page
