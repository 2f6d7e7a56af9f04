"""Charts as SVG, made on the server. They need no script, can be printed, and each has a table.

Widths are percentages and heights are pixels: a chart fits every screen, and its text keeps its
size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..core.present import amount
from ..stats.overview import Bucket

#: Pixels: of the bars, of what stands above them (the number of the peak) and below them (the
#: labels).
HEIGHT, ABOVE, BELOW = 120, 18, 20
#: As many labels fit below the bars of a wide picture. A narrow one hides every second of them.
LABELS = 13
#: Units of the drawing of a sparkline, which is stretched to whatever room it has.
SPARK_WIDTH, SPARK_HEIGHT = 100, 24


def bars(
    name: str, buckets: Sequence[Bucket], *, what: str, unit: str, summed: bool = True
) -> SafeString:
    """A figure with one bar for each bucket, and the same numbers as a table below it.

    `name` is unique on the page, `what` names what is counted ("Due in the next hour"), `unit`
    names a bucket ("minute"). `summed`: the sum of the buckets means something and is shown.
    """
    sentence = in_a_sentence(buckets, what, summed=summed)
    return format_html(
        '<figure class="delayq-chart" id="{}"><figcaption>{}</figcaption>{}{}</figure>',
        name,
        sentence,
        _picture(name, buckets, sentence) if _peak(buckets) else "",
        _table(name, buckets, what, (unit, _("Messages") if summed else what)),
    )


def in_a_sentence(buckets: Sequence[Bucket], what: str, *, summed: bool = True) -> str:
    """The bars in words: `Due in the next hour: 1,204, at most 96 (10:23).`"""
    peak = _peak(buckets)
    if not peak:
        return _("%(what)s: nothing.") % {"what": what}
    words = {
        "what": what,
        "total": amount(sum(bucket.count for bucket in buckets)),
        "peak": amount(peak),
        "label": next(bucket.words for bucket in buckets if bucket.count == peak),
    }
    if summed:
        return _("%(what)s: %(total)s, peak %(peak)s at %(label)s.") % words
    return _("%(what)s: peak %(peak)s at %(label)s.") % words


def sparkline(values: Sequence[float], *, title: str) -> SafeString:
    """A line without axes, from the oldest to the newest value. Values are not negative. Fewer than
    two draw nothing."""
    if len(values) < 2:
        return SafeString("")
    top = max(values) or 1
    step = SPARK_WIDTH / (len(values) - 1)
    points = " ".join(
        f"{place * step:.1f},{SPARK_HEIGHT - 1 - value / top * (SPARK_HEIGHT - 2):.1f}"
        for place, value in enumerate(values)
    )
    return format_html(
        '<svg class="delayq-spark" role="img" viewBox="0 0 {} {}" preserveAspectRatio="none">'
        '<title>{}</title><polyline points="{}"/></svg>',
        SPARK_WIDTH,
        SPARK_HEIGHT,
        title,
        points,
    )


def _peak(buckets: Sequence[Bucket]) -> int:
    return max((bucket.count for bucket in buckets), default=0)


def _picture(name: str, buckets: Sequence[Bucket], sentence: str) -> SafeString:
    peak = _peak(buckets)
    width = 100 / len(buckets)
    labelled = range(0, len(buckets), math.ceil(len(buckets) / LABELS))
    labels = format_html_join(
        "",
        '<text class="{}" x="{}%" y="{}">{}</text>',
        (
            (
                "delayq-label delayq-minor" if nth % 2 else "delayq-label",
                f"{(place + 0.5) * width:.3f}",
                ABOVE + HEIGHT + BELOW - 5,
                buckets[place].label,
            )
            for nth, place in enumerate(labelled)
        ),
    )
    return format_html(
        '<svg class="delayq-bars" role="img" aria-labelledby="{}-title" width="100%" height="{}">'
        '<title id="{}-title">{}</title>'
        '<line class="delayq-grid" x1="0" x2="100%" y1="{}" y2="{}"/>'
        '<line class="delayq-grid" x1="0" x2="100%" y1="{}" y2="{}"/>{}'
        '<line class="delayq-axis" x1="0" x2="100%" y1="{}" y2="{}"/>{}'
        '<text class="delayq-peak" x="0" y="{}">{}</text></svg>',
        name,
        ABOVE + HEIGHT + BELOW,
        name,
        sentence,
        *(ABOVE, ABOVE, ABOVE + HEIGHT // 2, ABOVE + HEIGHT // 2),
        format_html_join(
            "", "{}", ((_bar(place, bucket, width, peak),) for place, bucket in enumerate(buckets))
        ),
        *(ABOVE + HEIGHT, ABOVE + HEIGHT),
        labels,
        ABOVE - 5,
        amount(peak),
    )


def _bar(place: int, bucket: Bucket, width: float, peak: int) -> SafeString:
    """An empty bucket has no bar; every other has one that can be seen."""
    if not bucket.count:
        return SafeString("")
    height = max(2.0, bucket.count / peak * HEIGHT)
    return format_html(
        '<rect x="{}%" y="{}" width="{}%" height="{}"><title>{}: {}</title></rect>',
        f"{(place + 0.1) * width:.3f}",
        f"{ABOVE + HEIGHT - height:.1f}",
        f"{width * 0.8:.3f}",
        f"{height:.1f}",
        bucket.words,
        amount(bucket.count),
    )


def _table(name: str, buckets: Sequence[Bucket], what: str, heads: tuple[str, str]) -> SafeString:
    rows = format_html_join(
        "",
        '<tr><th scope="row">{}</th><td class="delayq-number">{}</td></tr>',
        ((bucket.words, amount(bucket.count)) for bucket in buckets if bucket.count),
    )
    if not rows:
        return SafeString("")
    return format_html(
        '<details id="{}-numbers"><summary>{}</summary><div class="delayq-scroll"><table '
        'class="delayq-table">'
        '<caption>{}</caption><thead><tr><th scope="col">{}</th><th scope="col" '
        'class="delayq-number">{}</th></tr>'
        "</thead><tbody>{}</tbody></table></div></details>",
        name,
        _("The numbers"),
        what,
        *heads,
        rows,
    )
