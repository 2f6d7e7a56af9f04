"""How one message has ended, wherever that stands: among the results, in the finished stream, or in
the archive."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import msgspec

from ..core.conf import get_settings
from ..core.message import stamp_us_of
from ..core.times import epoch_us, stored_ms
from ..models import ArchivedMessage
from ..store import get_store
from ..store.entries import Entry
from .archive_rows import COLUMNS, OBJECTS, detail_of, reported_in, row_of


@dataclass(frozen=True, kw_only=True)
class End:
    """The end of one life of a message."""

    row: ArchivedMessage
    """Its row. Not saved, and without a primary key, when the archiver has not inserted it yet."""
    entry: Entry | None
    """As the scripts wrote it down. None when only the row is left."""

    @property
    def stamp_us(self) -> int:
        """Names the life."""
        return stamp_us_of(self.entry.record) or 0 if self.entry else epoch_us(self.row.enqueued_at)

    @property
    def result(self) -> bytes | None:
        """JSON of the return value. None when there is none, or when only a redacted one is
        left."""
        if self.entry is not None:
            return bytes(detail_of(self.entry.detail).result) or None
        kept = reported_in(self.row.result)
        if "result" not in kept or "redaction" in kept:
            return None
        return msgspec.json.encode(kept["result"])


def find_end(topic: str, message_id: bytes, stamp_us: int | None = None) -> End | None:
    """How the life with this stamp has ended; without a stamp the newest life. None when nobody
    knows.

    Call it after the message was found not to be live: what ends is written down in the same step,
    and its row is committed before the finished stream forgets it. Raises what the store does.
    """
    reports = get_store().reports
    ends: list[End] = []
    for entry in (reports.result(topic, message_id), reports.ended(topic, message_id)):
        if entry is not None and stamp_us in (None, stamp_us_of(entry.record)):
            ends.append(end_in(entry))
    # An exactly_once task that came again has its result in the row of its first run only.
    if stamp_us is None or not any(end.result for end in ends):
        rows = ArchivedMessage.objects.using(get_settings().database)
        lives = rows.filter(message_id=UUID(bytes=message_id), topic=topic)
        if stamp_us is not None:
            lives = lives.filter(enqueued_at=stored_ms(stamp_us / 1000))
        if (row := lives.order_by("-enqueued_at").first()) is not None:
            ends.append(End(row=row, entry=None))
    # Of the same life the entry comes first: its result is not redacted.
    return max(ends, key=lambda end: (end.stamp_us, end.result is not None), default=None)


def end_in(entry: Entry) -> End:
    """The end that a script wrote down."""
    values = zip(COLUMNS, row_of(entry, OBJECTS), strict=True)
    return End(row=ArchivedMessage(**dict(values)), entry=entry)
