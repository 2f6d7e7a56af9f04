"""Replays dead letters, or discards them: in batches that may be interrupted, and each only
once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import FieldError, ValidationError
from django.db.models import QuerySet

from ..archive.selection import Rows
from ..core.conf import get_settings
from ..core.exceptions import InvalidMessage
from ..core.times import Duration, duration_ms
from ..models import ArchivedMessage, BulkKind, Final
from ..tasks.argument_edit import ArgumentEdit
from .bulk_run import Replayed, foresee_in_place, run_in_place
from .replayer import Edit
from .walk import Walk

__all__ = [
    "ArgumentEdit",
    "Preview",
    "Replayed",
    "discard",
    "preview_discard",
    "preview_replay",
    "replay",
]


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What replay() or discard() would take up."""

    count: int
    """Messages that would be replayed, or discarded."""
    first: Sequence[ArchivedMessage]
    """The first ten of them."""
    skipped: Counter[str]
    """How many rows would be left as they are, by the reason in words."""


# Public calls


def replay(  # noqa: PLR0913 - keyword-only, and each of them is what an operator may say
    selection: Rows | None = None,
    *,
    delay: Duration = 0,
    rate: float | None = None,
    edit: Edit | ArgumentEdit | None = None,
    force: bool = False,
    limit: int | None = None,
    by: str = "",
    reason: str = "",
    progress: Callable[[Replayed], object] | None = None,
    **filters: Any,
) -> Replayed:
    """Send dead letters again, each as a new durable message that names its origin. The relay
    brings them to Redis.

    `selection` is a queryset of ArchivedMessage; `filters` are field lookups, on their own or
    within it (the row's own reason is `reason__exact`). The oldest come first, in transactions of
    500 rows: to interrupt is safe, and to run again goes on where it ended. A row that was replayed
    or discarded is skipped, unless `force`. Rows that are not dead, whose task or topic is not
    declared, whose body was redacted or cannot be read, and whose arguments the task no longer
    takes are skipped too. So is a row whose key is live, and one with a newer row of the same key
    in the selection: of those only the newest that is not discarded counts, even if it was
    replayed.

    `delay`: seconds or timedelta before they are due, 0 to ten years. `rate`: messages per second,
    more than 0; spreads the due times evenly from then on. `limit`: most messages to replay.
    `edit`: an ArgumentEdit, which gives one argument of one task another value, or a function of a
    row that returns other `(args, kwargs)`, or None. `by` and `reason` are for the
    OperatorAction. `progress(replayed)` is called first and after each transaction.

    Raises InvalidMessage: for arguments of a function that are refused nothing of their transaction
    is replayed. Raises StoreUnavailable when Redis cannot be asked for keys. What was committed
    before stays, and `action.count` tells it.
    """
    rows = _selected(selection, filters, edit)
    if rate is not None and (
        isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf
    ):
        raise InvalidMessage(f"rate is a number of messages per second above 0, not {rate!r}.")
    return run_in_place(
        BulkKind.REPLAY,
        rows,
        by=by,
        reason=reason,
        delay_ms=duration_ms(delay),
        rate=rate,
        edit=edit,
        force=force,
        limit=limit,
        progress=progress,
    )


def discard(
    selection: Rows | None = None,
    *,
    reason: str,
    by: str = "",
    limit: int | None = None,
    progress: Callable[[Replayed], object] | None = None,
    **filters: Any,
) -> Replayed:
    """Mark dead letters as needing no replay: they count as dealt with, and prune() may delete
    them.

    Selection, batches, `limit`, `by` and `progress` are those of replay(). A `reason` is required.
    Raises InvalidMessage.
    """
    if not reason.strip():
        raise InvalidMessage("Say why these messages need no replay: discard(..., reason=...).")
    return run_in_place(
        BulkKind.DISCARD,
        _selected(selection, filters),
        by=by,
        reason=reason,
        limit=limit,
        progress=progress,
    )


def preview_replay(
    selection: Rows | None = None,
    *,
    edit: Edit | ArgumentEdit | None = None,
    force: bool = False,
    limit: int | None = None,
    **filters: Any,
) -> Preview:
    """A dry run of replay(): all of its checks, and nothing is changed. Raises what replay()
    does."""
    walk = Walk(_selected(selection, filters, edit), force=force, limit=limit)
    return _foreseen(BulkKind.REPLAY, walk, edit)


def preview_discard(
    selection: Rows | None = None, *, limit: int | None = None, **filters: Any
) -> Preview:
    """A dry run of discard(). Raises InvalidMessage."""
    return _foreseen(BulkKind.DISCARD, Walk(_selected(selection, filters), limit=limit))


def _foreseen(kind: str, walk: Walk, edit: Edit | ArgumentEdit | None = None) -> Preview:
    foresee_in_place(kind, walk, edit=edit)
    first = list(walk.table.filter(pk__in=walk.first).order_by("pk"))
    return Preview(count=walk.count, first=first, skipped=walk.skipped)


# What is asked for


def _selected(
    selection: Rows | None,
    filters: Mapping[str, Any],
    edit: Edit | ArgumentEdit | None = None,
) -> Rows:
    """The rows in the order of their ids; lookups alone are about dead ones. An ArgumentEdit is
    about rows of its task. Raises InvalidMessage."""
    if selection is None and not filters:
        raise InvalidMessage(
            "Say which: a queryset or field lookups. For everything: ArchivedMessage.objects.all()."
        )
    rows: Rows = (
        ArchivedMessage.objects.filter(state=Final.DEAD) if selection is None else selection
    )
    if not isinstance(rows, QuerySet) or rows.model is not ArchivedMessage:
        raise InvalidMessage(
            f"The selection is a queryset of ArchivedMessage, not {selection!r:.80}."
        )
    if rows.query.is_sliced or rows.query.combinator:
        raise InvalidMessage(
            "A sliced or combined queryset cannot be walked in batches: use filter() and limit=."
        )
    try:
        rows = rows.using(get_settings().database).filter(**filters)
    except (FieldError, ValidationError, TypeError, ValueError) as error:
        raise InvalidMessage(f"These lookups do not fit ArchivedMessage: {error}") from None
    if isinstance(edit, ArgumentEdit):
        rows = rows.filter(task=edit.task)
    rows.query.standard_ordering = True  # whatever reverse() has said
    return rows.order_by("pk")
