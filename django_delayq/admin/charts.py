"""Charts: what the script draws (static/django_delayq/chart.js, by uPlot), and the same numbers as
a table below, which needs no script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..core.present import amount, seconds
from ..core.times import from_ms

#: Colours that delayq.css has for what is stacked; the last one is of all others.
COLOURS = 7


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A scale of values."""

    title: str
    unit: str = "count"
    """count, rate (a second) or duration (seconds)."""

    def words(self, value: float | None) -> str:
        """A value with its unit."""
        if self.unit == "duration":
            return seconds(value)
        return (
            _("%(number)s/s") % {"number": amount(value)} if self.unit == "rate" else amount(value)
        )


@dataclass(frozen=True, kw_only=True)
class Series:
    """What is drawn in one colour."""

    label: str
    values: Sequence[float | None]
    colour: str = "run"
    """run, warn, err, or the number of one of COLOURS."""
    axis: int = 0
    listed: str = ""
    """The address of the list of what is counted here, as `listed` of the chart."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure: bars that stand on each other, or lines."""

    name: str
    """Unique on the page."""
    title: str
    """What is shown, in a sentence or a few words."""
    axes: Sequence[Axis]
    """One, or two of them: the second stands on the right."""
    series: Sequence[Series]
    at: Sequence[float] = ()
    """Seconds since 1970: where a bar begins, or a point of a line is."""
    labels: Sequence[str] = ()
    """Of bars that are no times."""
    x_title: str
    ranges: Sequence[str] = ()
    """Of each bar, in words: `16:00 to 17:00`."""
    step: float = 0
    """Seconds that a bar of a time is wide; 0 for a line."""
    zone: str = ""
    """The time zone of the axis; empty: the page's."""
    listed: str = ""
    """The address of the list of what the bars count, which narrows it by `since` and `until`. The
    first bar has no `since`: it also counts what is overdue."""
    marks: Sequence[tuple[datetime, str]] = ()
    """What happened meanwhile, and how it is called."""
    rows: Sequence[tuple[str, Sequence[str]]] = ()
    """The table: a time in words and its values. Empty: one row for each bar that is not 0."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(value for series in self.series for value in series.values)

    @cached_property
    def sentence(self) -> str:
        """The title and, of bars, what they have together and where the peak is."""
        if not self.ranges:
            return self.title
        sums = [sum(value or 0 for value in bar) for bar in self._bars]
        if self.is_empty:
            return _("%(what)s: nothing.") % {"what": self.title}
        peak = max(sums)
        words = {
            "what": self.title,
            "total": amount(sum(sums)),
            "peak": self.axes[0].words(peak),
            "label": self.ranges[sums.index(peak)],
        }
        if self.axes[0].unit != "count":
            return _("%(what)s: peak %(peak)s at %(label)s.") % words
        return _("%(what)s: %(total)s, peak %(peak)s at %(label)s.") % words

    def link(self, nth: int, series: Series | None = None) -> str:
        """Where a bar leads to, or a part of it; nowhere when it is empty."""
        listed = series.listed if series else self.listed
        if not listed or not (series.values[nth] if series else any(self._bars[nth])):
            return ""
        begin, end = (_instant(at) for at in (self.at[nth], self.at[nth] + self.step))
        return f"{listed}{f'since={begin}&' * bool(nth)}until={end}"

    @property
    def html(self) -> SafeString:
        """The whole figure."""
        legend = picture = SafeString("")
        if not self.is_empty:
            picture = format_html(
                '<div class="delayq-plot" role="img" aria-label="{}" data-delayq-chart="{}"></div>',
                self.sentence,
                json.dumps(self._drawn(), separators=(",", ":")),
            )
        if len(self.series) > 1:
            items = ((one.colour, one.label) for one in self.series)
            legend = format_html(
                '<ul class="delayq-legend">{}</ul>',
                format_html_join("", '<li class="delayq-colour-{}">{}</li>', items),
            )
        return format_html(
            '<figure class="delayq-chart" id="{}"><figcaption>{}</figcaption>{}{}{}</figure>',
            self.name,
            self.sentence,
            legend,
            picture,
            self._table(),
        )

    @cached_property
    def _bars(self) -> list[tuple[float | None, ...]]:
        return list(zip(*(series.values for series in self.series), strict=True))

    def _drawn(self) -> dict[str, Any]:
        """What chart.js reads."""
        return {
            "at": list(self.at),
            "labels": list(self.labels),
            "x": self.x_title,
            "step": self.step,
            "zone": self.zone,
            "ranges": list(self.ranges),
            "listed": self.listed,
            "axes": [{"title": axis.title, "unit": axis.unit} for axis in self.axes],
            "series": [
                {
                    "label": series.label,
                    "values": list(series.values),
                    "colour": series.colour,
                    "axis": series.axis,
                    "listed": series.listed,
                }
                for series in self.series
            ],
            "marks": [[at.timestamp(), words] for at, words in self.marks],
        }

    def _table(self) -> SafeString:
        rows: list[tuple[str, Sequence[str]]] = list(self.rows) or [
            (
                _linked(words, self.link(nth)),
                [
                    _linked(self.axes[series.axis].words(value), self.link(nth, series))
                    for series, value in zip(self.series, bar, strict=True)
                ],
            )
            for nth, (words, bar) in enumerate(zip(self.ranges, self._bars, strict=True))
            if any(bar)
        ]
        if not rows:
            return SafeString("")
        lines = (
            (
                words,
                format_html_join("", '<td class="delayq-number">{}</td>', ((v,) for v in values)),
            )
            for words, values in rows
        )
        heads = ((series.label,) for series in self.series)
        return format_html(
            '<details id="{}-numbers"><summary>{}</summary>'
            '<div class="delayq-scroll" role="region" tabindex="0" aria-label="{}">'
            '<table class="delayq-table"><caption>{}</caption>'
            '<thead><tr><th scope="col">{}</th>{}</tr></thead><tbody>{}</tbody></table></div>'
            "</details>",
            self.name,
            _("The numbers"),
            self.title,
            self.title,
            self.x_title,
            format_html_join("", '<th scope="col" class="delayq-number">{}</th>', heads),
            format_html_join("", '<tr><th scope="row">{}</th>{}</tr>', lines),
        )


def _linked(words: str, address: str) -> str:
    return format_html('<a href="{}">{}</a>', address, words) if address else words


def _instant(seconds_since_1970: float) -> str:
    return f"{from_ms(seconds_since_1970 * 1000):%Y-%m-%dT%H:%MZ}"


def sparkline(values: Sequence[float], *, title: str) -> SafeString:
    """A line without axes, from the oldest to the newest value. Values are not negative. Fewer than
    two draw nothing."""
    if len(values) < 2:
        return SafeString("")
    return format_html(
        '<span class="delayq-spark" role="img" aria-label="{}" data-delayq-spark="{}"></span>',
        title,
        json.dumps([round(value, 3) for value in values], separators=(",", ":")),
    )
