"""Replaces the figures of hours and days in SQL: each whole, and not by figures of rows of which
some were pruned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from enum import Enum
from typing import Any

from django.db import connections, transaction
from django.db.models import QuerySet

from ..core.conf import get_settings
from ..models import Final, TaskDay, TopicHour
from .histogram import Histogram, decode

#: What only grows when messages come to an hour or a day.
COUNTS = (*Final.values, "attempts", "retried")
HISTOGRAMS = ("lateness", "run")
#: What says which hour, or day, a row is of.
_SPAN: Mapping[type[Any], str] = {TopicHour: "hour", TaskDay: "day"}

Spans = Mapping[Any, Sequence[Any]]
"""Hour, or day -> its new rows; none: nothing finished in it."""


class Outcome(Enum):
    """What has become of the new figures."""

    REPLACED = "replaced"
    SAME = "same"
    """They are what was stored: nothing was written."""
    KEPT = "kept"
    """What was stored counts messages that the new figures do not: it stayed."""


def replace(old: QuerySet[Any], rows: Sequence[Any], *, fewer: bool = False) -> Outcome:
    """Put these rows in the place of the stored ones of an hour or a day.

    The messages of an hour only become more. Figures that lack some which were counted before were
    computed of an archive, or a lake, that does not have them any more: they are not taken, unless
    `fewer`.
    """
    with transaction.atomic(using=get_settings().database):
        outcome = compare(old, rows, fewer=fewer)
        if outcome is Outcome.REPLACED:
            replace_all(old, rows)
    return outcome


def replace_each(model: type[Any], spans: Spans, *, fewer: bool = False) -> dict[Any, Outcome]:
    """replace() of several hours, or days, in one transaction: each is replaced or stays by
    itself."""
    with transaction.atomic(using=get_settings().database):
        outcomes = compare_each(model, spans, fewer=fewer)
        replaced = [span for span, outcome in outcomes.items() if outcome is Outcome.REPLACED]
        if replaced:
            replace_all(_stored(model, replaced), [row for span in replaced for row in spans[span]])
    return outcomes


def compare(old: QuerySet[Any], rows: Sequence[Any], *, fewer: bool = False) -> Outcome:
    """What replace() would do. Within its transaction the stored rows are locked."""
    return _outcome(_read(old), rows, fewer)


def compare_each(model: type[Any], spans: Spans, *, fewer: bool = False) -> dict[Any, Outcome]:
    """What replace_each() would do, in the order of the spans. Locks as compare()."""
    stored = defaultdict(list)
    for row in _read(_stored(model, list(spans))):
        stored[stored_as(getattr(row, _SPAN[model]))].append(row)
    return {span: _outcome(stored[stored_as(span)], rows, fewer) for span, rows in spans.items()}


def stored_as(span: date) -> Any:
    """An hour, or day, as the database has it: equal for two hours that are one there, when clocks
    are put back in the zone of its times."""
    if not isinstance(span, datetime):
        return span
    if (
        span.tzinfo is not None
    ):  # else instants of several zones are unequal in the hour that comes twice (PEP 495)
        span = span.astimezone(timezone.utc)
    return connections[get_settings().database].ops.adapt_datetimefield_value(span)


def replace_all(old: QuerySet[Any], rows: Sequence[Any]) -> None:
    """Delete the old rows and insert the new ones, in one transaction."""
    alias = get_settings().database
    with transaction.atomic(using=alias):
        old.using(alias).delete()
        if rows:
            # Another process may have computed the same at the same moment; MariaDB takes Orders
            # and orders for one.
            type(rows[0]).objects.using(alias).bulk_create(rows, ignore_conflicts=True)


def _stored(model: type[Any], spans: Sequence[Any]) -> QuerySet[Any]:
    found: QuerySet[Any] = model._default_manager.filter(**{f"{_SPAN[model]}__in": spans})
    return found


def _read(old: QuerySet[Any]) -> list[Any]:
    alias = get_settings().database
    old = old.using(alias)
    if transaction.get_connection(alias).in_atomic_block:
        list(old.select_for_update().order_by("pk").values_list("pk", flat=True))
    return list(old)  # after the lock: another process may have replaced them


def _outcome(old: Sequence[Any], rows: Sequence[Any], fewer: bool) -> Outcome:
    stored, new = ({_group(row): row for row in some} for some in (old, rows))
    if stored.keys() == new.keys() and all(
        _figures(stored[group]) == _figures(new[group]) for group in new
    ):
        return Outcome.SAME
    is_whole = all(group in new and _has_all(row, new[group]) for group, row in stored.items())
    return Outcome.REPLACED if fewer or is_whole else Outcome.KEPT


def _group(row: Any) -> tuple[str, str]:
    return row.topic, getattr(row, "task", "")


def _figures(row: Any) -> Mapping[str, Any]:
    return {
        field.attname: getattr(row, field.attname)
        for field in row._meta.concrete_fields
        if field.attname not in ("id", "hour", "day", "computed_at")
    }


def _has_all(stored: Any, new: Any) -> bool:
    """Whether whatever was counted is counted now."""
    if any(getattr(new, name) < getattr(stored, name) for name in COUNTS):
        return False
    return all(
        _covers(decode(getattr(new, name)), decode(getattr(stored, name))) for name in HISTOGRAMS
    )


def _covers(new: Histogram, stored: Histogram) -> bool:
    return all(new.get(bucket, 0) >= count for bucket, count in stored.items())
