"""Selects rows of the archive: a filter form makes a selection, a bulk operation stores it, and a
link carries it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

import msgspec
from django.db.models import Q, QuerySet

from ..core.exceptions import InvalidKey, InvalidMessage
from ..core.message import check_key, key_id, key_id_range, parse_id
from ..core.present import counted
from ..core.times import stored, stored_ms
from ..models import ArchivedMessage, Final

#: What every zone's calendar has, in ms.
_FIRST_MS, _LAST_MS = (
    datetime(*day, tzinfo=timezone.utc).timestamp() * 1000 for day in ((1, 1, 2), (9999, 12, 30))
)

Rows = QuerySet[ArchivedMessage]

#: Rows that may be named one by one.
MOST_IDS = 1_000


class Selection(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Each part that is given narrows it down. An empty selection is the whole archive."""

    state: str = ""
    """acked, dead, cancelled or expired."""
    open: bool = False
    """Only dead letters that nobody has replayed or discarded."""
    topic: str = ""
    task: str = ""
    error: str = ""
    """Class of the error, in full or its last part, or the row's reason. With = before it: just
    this class, or of rows without one just this reason."""
    since: datetime | None = None
    """Finished then or later; aware."""
    until: datetime | None = None
    """Finished before then; aware."""
    message_id: str = ""
    """32 hexadecimal digits."""
    key: str = ""
    """Business key: in the topic, else in every one."""
    key_prefix: str = ""
    """The first characters of the key. The search needs a period: no index has them."""
    ids: tuple[int, ...] = ()
    """Ids of rows, 1,000 at most."""
    topics: tuple[str, ...] | None = None
    """Only of these, because the user may see no others. No order keeps it."""
    argument: str = ""
    """`name` or `a.b` of an argument. Not a condition of rows(): the search compares each row."""
    value: str = ""
    """What that argument is, as JSON or as a plain word."""

    def __post_init__(self) -> None:
        if self.state and self.state not in Final.values:
            raise InvalidMessage(f"state is {self.state!r}: use one of {', '.join(Final.values)}.")
        if len(self.ids) > MOST_IDS:
            raise InvalidMessage(
                f"At most {MOST_IDS:,} rows can be named one by one; say what they have in common."
            )
        if self.message_id:
            parse_id(self.message_id)
        for key in filter(None, (self.key, self.key_prefix)):
            check_key(key)

    @property
    def is_everything(self) -> bool:
        """Whether nothing narrows it down."""
        return self.narrowed(topics=None) == Selection()

    def narrowed(self, **changes: Any) -> Selection:
        """The same with other parts. Raises InvalidMessage."""
        return msgspec.structs.replace(self, **changes)

    def rows(self) -> Rows:
        """The rows, without an order. Nothing here looks at a body."""
        rows: Rows = ArchivedMessage.objects.all()
        conditions: dict[str, Any] = {
            "state": self.state,
            "topic": self.topic,
            "task": self.task,
            "finished_at__gte": _as_stored(self.since),
            "finished_at__lt": _as_stored(self.until),
        }
        rows = rows.filter(**{name: value for name, value in conditions.items() if value})
        if self.topics is not None:
            rows = rows.filter(topic__in=self.topics)
        if self.open:
            rows = rows.filter(state=Final.DEAD, replayed_at=None, discarded_at=None)
        if self.error.startswith("="):
            error = self.error[1:]
            without_class = Q(error_class="", reason=error)
            rows = rows.filter(Q(error_class=error) | without_class if error else without_class)
        elif error := self.error:
            rows = rows.filter(
                Q(error_class=error) | Q(error_class__endswith=f".{error}") | Q(reason=error)
            )
        if self.message_id:
            rows = rows.filter(message_id=self.message_id)
        if self.key:
            rows = (
                rows.filter(message_id=key_id(self.topic, self.key).hex())
                if self.topic
                # Ids of other messages may lie between those of a key.
                else rows.filter(message_id__range=key_id_range(self.key), key=self.key)
            )
        if self.key_prefix:
            rows = rows.filter(key__startswith=self.key_prefix)
        return rows.filter(pk__in=self.ids) if self.ids else rows

    def encode(self) -> str:
        """As JSON, with what is given only."""
        given = {name: value for name, value in msgspec.to_builtins(self).items() if value}
        return msgspec.json.encode(given).decode()

    @classmethod
    def decode(cls, text: str) -> Selection:
        """From encode(). Raises InvalidMessage."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, InvalidKey) as error:
            raise InvalidMessage(f"{text!r:.200} is not a selection: {error}") from error

    def in_words(self) -> str:
        """One line for people."""
        words = [counted(len(self.ids), "named row")] if self.ids else []
        words += ["open dead letters"] if self.open else []
        named = {
            "state": self.state,
            "topic": self.topic,
            "task": self.task,
            "error": self.error and (self.error.removeprefix("=") or "none"),
            "key": self.key,
            "key prefix": self.key_prefix,
            "id": self.message_id,
        }
        words += [f"{name} {value}" for name, value in named.items() if value]
        words += [f"{self.argument} = {self.value}"] if self.argument else []
        words += [f"since {self.since.isoformat(' ', 'seconds')}"] if self.since else []
        words += [f"until {self.until.isoformat(' ', 'seconds')}"] if self.until else []
        return ", ".join(words) or "everything"


def _as_stored(when: datetime | None) -> datetime | None:
    """The instant as the database has it: naive where the project has no time zones (USE_TZ). An
    instant beyond the calendar of UTC becomes the end of the calendar."""
    if when is None:
        return None
    try:
        return stored(when)
    except (ValueError, OverflowError):
        return stored_ms(_FIRST_MS if when.year < 5000 else _LAST_MS)


def newest_id() -> int:
    """The highest id in the archive; 0 when it is empty."""
    return ArchivedMessage.objects.order_by("-pk").values_list("pk", flat=True).first() or 0


def pages_by_time(rows: Rows, columns: Sequence[str], size: int) -> Iterator[Sequence[Any]]:
    """finished_at, pk and these columns of the rows, in the order of finishing, `size` rows at a
    time. They are read along the index of finished_at, so each query is short, also one for rows
    that are rare."""
    values = rows.order_by("finished_at", "pk").values_list("finished_at", "pk", *columns)
    page = list(values[:size])
    while page:
        yield page
        finished_at, pk = page[-1][:2]
        further = Q(finished_at__gt=finished_at) | Q(pk__gt=pk)
        full = len(page) == size
        page = list(values.filter(further, finished_at__gte=finished_at)[:size]) if full else []
