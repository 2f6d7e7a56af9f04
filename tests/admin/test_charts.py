"""Charts are right, safe, and can be read without eyes."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from typing import Any
from xml.etree import ElementTree

import pytest

from django_delayq.admin import charts
from django_delayq.admin.charts import Axis, Chart, Series

MARKUP = "<script>alert(1)</script>\"'&"
AT = datetime(2026, 11, 20, 10, 20, tzinfo=timezone.utc).timestamp()


def chart(*counts: int, **changes: Any) -> Chart:
    """Bars of minutes."""
    usual: dict[str, Any] = {
        "name": "due",
        "title": "Due in the next hour",
        "axes": [Axis(title="Messages")],
        "series": [Series(label="Messages", values=counts)],
        "at": [AT + 60 * nth for nth in range(len(counts))],
        "step": 60,
        "x_title": "Due",
        "ranges": [f"10:{20 + nth}" for nth in range(len(counts))],
    }
    return Chart(**{**usual, **changes})


def figure(of: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(of.html)


def drawn(of: Chart) -> dict[str, Any]:
    """What the script reads."""
    plot = figure(of).find("div[@role='img']")
    assert plot is not None
    return json.loads(plot.attrib["data-delayq-chart"])


def rows(of: Chart) -> list[str]:
    return [
        " ".join(text.strip() for text in row.itertext())
        for row in figure(of).iterfind(".//tbody/tr")
    ]


def test_the_script_and_the_table_have_the_same_numbers():
    of = chart(4, 0, 96)
    assert drawn(of)["series"][0]["values"] == [4, 0, 96]
    assert drawn(of)["at"] == [AT, AT + 60, AT + 120]
    assert rows(of) == ["10:20 4", "10:22 96"], "nothing is written for nothing"


def test_a_sentence_says_what_the_picture_shows():
    of = chart(4, 96)
    plot = figure(of).find("div[@role='img']")
    assert plot is not None
    assert plot.attrib["aria-label"] == "Due in the next hour: 100, peak 96 at 10:21."
    assert figure(of).findtext("figcaption") == plot.attrib["aria-label"]


def test_what_stands_on_each_other_is_told_apart_by_its_name():
    series = [
        Series(label="orders", values=[1, 2], colour="0"),
        Series(label="all others", values=[3, 0], colour="6"),
    ]
    of = chart(series=series, at=[AT, AT + 60], ranges=["10:20", "10:21"])
    assert [item.text for item in figure(of).iterfind("ul/li")] == ["orders", "all others"]
    assert rows(of) == ["10:20 1 3", "10:21 2 0"]
    assert "Due in the next hour: 6, peak 4 at 10:20." in of.html


def test_times_and_rates_have_their_units():
    axes = [Axis(title="Finished", unit="rate"), Axis(title="Lag", unit="duration")]
    series = [Series(label="F", values=[12.5]), Series(label="L", values=[4380.0], axis=1)]
    of = chart(axes=axes, series=series, at=[AT], ranges=["10:20"])
    assert rows(of) == ["10:20 12.5/s 1 h 13 min"]


def test_a_bar_leads_to_the_list_of_its_messages():
    of = chart(5, 0, 7, listed="/waiting/?topic=a&")
    assert [of.link(nth) for nth in range(3)] == [
        "/waiting/?topic=a&until=2026-11-20T10:21Z",  # the first one has what is overdue, too
        "",
        "/waiting/?topic=a&since=2026-11-20T10:22Z&until=2026-11-20T10:23Z",
    ]
    assert [link.attrib["href"] for link in figure(of).iterfind(".//tbody//a")] == [
        of.link(0),
        of.link(2),
    ]


def test_a_part_of_a_bar_leads_to_its_own_messages():
    series = [
        Series(label="orders", values=[1, 2], colour="0", listed="/waiting/?topic=orders&"),
        Series(label="all others", values=[3, 0], colour="6"),
    ]
    of = chart(series=series, at=[AT, AT + 60], ranges=["10:20", "10:21"], listed="/waiting/?")
    assert [link.attrib["href"] for link in figure(of).iterfind(".//tbody//a")] == [
        "/waiting/?until=2026-11-20T10:21Z",
        "/waiting/?topic=orders&until=2026-11-20T10:21Z",
        "/waiting/?since=2026-11-20T10:21Z&until=2026-11-20T10:22Z",
        "/waiting/?topic=orders&since=2026-11-20T10:21Z&until=2026-11-20T10:22Z",
    ]


@pytest.mark.parametrize("none", [(), (0, 0)])
def test_nothing_is_said_and_not_drawn(none: tuple[int, ...]):
    parts = figure(chart(*none))
    assert "div" not in [part.tag for part in parts] and parts.find("details") is None
    if none:
        assert parts.findtext("figcaption") == "Due in the next hour: nothing."


def test_markup_in_labels_is_text():
    of = chart(
        *(1, 2), title=MARKUP, x_title=MARKUP, ranges=[MARKUP] * 2, axes=[Axis(title=MARKUP)],
        series=[Series(label=MARKUP, values=[1, 2])] * 2,
        marks=[(datetime.now(tz=timezone.utc), MARKUP)],
    )  # fmt: skip
    assert "<script" not in of.html
    assert drawn(of)["marks"][0][1] == MARKUP
    assert str(figure(of).findtext("figcaption")).startswith(MARKUP)


def test_no_style_that_a_strict_policy_would_refuse():
    html = chart(*range(60)).html + charts.sparkline([1.0, 2.0], title="Lag")
    assert not re.search(r"\bstyle=|\bon\w+=|<style", html)


def test_the_table_can_be_scrolled_by_keyboard_and_has_a_name():
    box = figure(chart(1)).find(".//div[@class='delayq-scroll']")
    assert box is not None
    assert (box.attrib["tabindex"], box.attrib["role"]) == ("0", "region")
    assert box.attrib["aria-label"] == "Due in the next hour"


def test_a_line_without_axes_has_a_name():
    line = ElementTree.fromstring(charts.sparkline([0.0, 10.0, 5.0], title=MARKUP))
    assert json.loads(line.attrib["data-delayq-spark"]) == [0, 10, 5]
    assert (line.attrib["role"], line.attrib["aria-label"]) == ("img", MARKUP)


@pytest.mark.parametrize("values", [[], [1.0]])
def test_one_value_is_no_line(values: list[float]):
    assert charts.sparkline(values, title="Lag") == ""
