"""How the operators' pages write times, amounts and the contents of messages."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

from django import template
from django.utils import formats
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..core import present
from ..core.present import distance, visible
from ..core.times import aware, local

#: Characters of one text that a page shows.
MOST_SHOWN = 100_000

register = template.Library()

for shown in (
    present.amount,
    present.distance,
    present.next_due,
    present.seconds,
    present.selection_words,
    present.visible,
    present.word,
):
    register.filter(shown)


@register.filter
def instant(when: datetime | None, now: datetime | None = None) -> SafeString | str:
    """`<time>` in the project's zone, to the second, and its distance: 2026-11-20 09:00:00, in
    2.4 s. A narrow table shows the distance only."""
    if when is None:
        return "–"
    return format_html(
        '<span class="delayq-instant" title="{}"><span>{}, </span><small>{}</small></span>',
        _clock_time(when),
        moment(when),
        live_distance(when, now),
    )


@register.filter
def live_distance(when: datetime | None, now: datetime | None = None) -> SafeString | str:
    """`in 2.4 s` or `3 min ago`, which times.js keeps up to date."""
    if when is None:
        return "–"
    return format_html(
        '<span data-delayq-at="{}">{}</span>', aware(when).isoformat(), distance(when, now)
    )


@register.filter
def live_next_due(when: datetime | None, now: datetime) -> SafeString | str:
    """`in 2.4 s` or `overdue`, which times.js keeps up to date."""
    if when is None:
        return "–"
    return format_html(
        '<span data-delayq-at="{}" data-delayq-overdue="{}">{}</span>',
        aware(when).isoformat(),
        _("overdue"),
        present.next_due(when, now),
    )


@register.filter
def moment(when: datetime | None) -> SafeString | str:
    """`<time>` in the project's zone, to the second: 2026-11-20 09:00:00."""
    if when is None:
        return "–"
    return format_html('<time datetime="{}">{}</time>', when.isoformat(), _clock_time(when))


def _clock_time(when: datetime) -> str:
    return local(when).replace(tzinfo=None).isoformat(" ", "seconds")


@register.filter
def milliseconds(amount: float | None) -> str:
    """A length of time given in milliseconds."""
    return "–" if amount is None else present.seconds(amount / 1000)


@register.filter
def percent(share: float) -> str:
    """A share of 0 to 1. What is not nothing does not look like it."""
    least = "< " if 0 < share < 0.0005 else ""
    return f"{least}{formats.number_format(max(0.1, round(100 * share, 1)) if share else 0)} %"


@register.filter
def pair_ms(first: float | None, second: float | None) -> str:
    """Two durations in milliseconds, such as p50 and p99; `–` when there are none."""
    if first is None:
        return milliseconds(second)
    return f"{milliseconds(first)}, {milliseconds(second)}"


@register.filter
def pretty_json(value: Any) -> str:
    """Indented; text that is no JSON stays as it is. Control and bidirectional characters are
    escaped."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return visible(value)
    return visible(json.dumps(value, indent=2, ensure_ascii=False))


@register.filter
def shortened(text: Any) -> str:
    """The first 100,000 characters, and how many there are beyond: a page with a megabyte helps
    nobody."""
    text = str(text)
    if len(text) <= MOST_SHOWN:
        return text
    more = _("%(count)s more characters") % {"count": f"{len(text) - MOST_SHOWN:,}"}
    return f"{text[:MOST_SHOWN]}\n… ({more})"


@register.filter
def short_name(task: str) -> str:
    """The name of a task without its module."""
    return task.rpartition(".")[2]


@register.filter
def breakable(name: str) -> SafeString:
    """A name with a possible line break after each dot and underscore."""
    return format_html_join(
        SafeString("<wbr>"), "{}", ((part,) for part in re.findall(r"[^._]*[._]+|[^._]+", name))
    )


@register.filter
def as_uuid_hex(value: Any) -> str:
    """32 hexadecimal digits."""
    return str(getattr(value, "hex", value))
