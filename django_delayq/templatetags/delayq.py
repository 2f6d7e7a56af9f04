"""How the operators' pages write times, amounts and the contents of messages."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

from django import template
from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from ..core.times import in_words

register = template.Library()


@register.filter
def instant(when: datetime | None, now: datetime | None = None) -> SafeString | str:
    """`<time>` in the project's zone, to the second, with how far that is off: 2026-11-20 09:00:00,
    in 2.4 s."""
    if when is None:
        return "–"
    return format_html("{}, <small>{}</small>", moment(when), distance(when, now))


@register.filter
def moment(when: datetime | None) -> SafeString | str:
    """`<time>` in the project's zone, to the second: 2026-11-20 09:00:00."""
    if when is None:
        return "–"
    shown = when if timezone.is_naive(when) else timezone.localtime(when)
    text = shown.replace(tzinfo=None).isoformat(" ", "seconds")
    return format_html('<time datetime="{}">{}</time>', when.isoformat(), text)


@register.filter
def distance(when: datetime | None, now: datetime | None = None) -> str:
    """`in 2.4 s` or `3.1 min ago`."""
    if when is None:
        return "–"
    seconds = (_aware(when) - _aware(now or timezone.now())).total_seconds()
    words = in_words(abs(seconds), 2)
    return (
        _("in %(time)s") % {"time": words} if seconds > 0 else _("%(time)s ago") % {"time": words}
    )


def _aware(when: datetime) -> datetime:
    """Without USE_TZ the database's instants are naive, and those of Redis are aware all the
    same."""
    return timezone.make_aware(when) if timezone.is_naive(when) else when


@register.filter
def next_due(when: datetime | None, now: datetime) -> str:
    """`in 2.4 s` or `overdue`: then the backlog and its lag say the rest."""
    return _("overdue") if when is not None and _aware(when) <= _aware(now) else distance(when, now)


@register.filter
def seconds(amount: float | None) -> str:
    """A length of time given in seconds."""
    return "–" if amount is None else in_words(amount)


@register.filter
def milliseconds(amount: float | None) -> str:
    """A length of time given in milliseconds."""
    return "–" if amount is None else in_words(amount / 1000)


@register.filter
def amount(number: float | None) -> str:
    """A count or a rate, with separators."""
    if number is None:
        return "–"
    shown = round(number, 1) if isinstance(number, float) and number < 100 else round(number)
    return formats.number_format(shown, force_grouping=True)


@register.filter
def percent(share: float) -> str:
    """A share of 0 to 1."""
    return f"{formats.number_format(round(100 * share, 1))} %"


@register.filter
def pretty_json(value: Any) -> str:
    """Indented; text that is no JSON as it is. Control and bidirectional characters are escaped, so
    that what is shown is what is there."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return visible(value)
    return visible(json.dumps(value, indent=2, ensure_ascii=False))


@register.filter
def visible(text: Any) -> str:
    """Text with the characters that nobody sees written out: control, bidirectional, zero-width."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\u{ord(c):04x}" for c in str(text))


@register.filter
def breakable(name: str) -> SafeString:
    """A name that a line may break after each dot and underscore of."""
    return format_html_join(
        SafeString("<wbr>"), "{}", ((part,) for part in re.findall(r"[^._]*[._]+|[^._]+", name))
    )


_WORDS = {
    # States, and how a run ends.
    gettext_noop("delayed"), gettext_noop("ready"), gettext_noop("leased"), gettext_noop("acked"),
    gettext_noop("dead"), gettext_noop("cancelled"), gettext_noop("expired"),
    gettext_noop("retried"),
    gettext_noop("snoozed"), gettext_noop("put off"), gettext_noop("released"),
    gettext_noop("crashed"),
    # Kinds and statuses of bulk operations.
    gettext_noop("replay"), gettext_noop("discard"), gettext_noop("purge"), gettext_noop("waiting"),
    gettext_noop("running"), gettext_noop("done"), gettext_noop("failed"),
    # What operators do.
    gettext_noop("prune"), gettext_noop("pause"), gettext_noop("resume"), gettext_noop("cancel"),
    gettext_noop("run now"), gettext_noop("reschedule"), gettext_noop("edit"),
    gettext_noop("schedule"),
    gettext_noop("quiet"), gettext_noop("unquiet"), gettext_noop("cancel bulk"),
    gettext_noop("move"),
    gettext_noop("archive again"),
    # Why a row is skipped.
    gettext_noop("not dead"), gettext_noop("already replayed"), gettext_noop("discarded"),
    gettext_noop("locked or deleted"), gettext_noop("newer one with this key"),
    gettext_noop("key live"),
    gettext_noop("unknown task"), gettext_noop("unknown topic"), gettext_noop("undecodable"),
    gettext_noop("redacted"), gettext_noop("arguments refused"),
}  # fmt: skip


@register.filter
def word(term: str) -> str:
    """A state, an outcome, an action or whatever else is stored as one of our words, in the
    reader's language."""
    return _(term) if term in _WORDS else str(term)


@register.filter
def as_uuid_hex(value: Any) -> str:
    """32 hexadecimal digits."""
    return str(getattr(value, "hex", value))
