"""Pictures are right, safe, and can be read without eyes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from xml.etree import ElementTree

import pytest

from django_delayq.admin import charts
from django_delayq.stats.overview import Bucket
from tests.admin.by_hand import buckets

MARKUP = "<script>alert(1)</script>\"'&"


def picture(of: Sequence[Bucket], what: str = "Due in the next hour") -> ElementTree.Element:
    return ElementTree.fromstring(charts.bars("due", of, what=what, unit="Minute"))


def test_each_bar_stands_where_its_minute_is_and_is_as_high_as_its_count():
    rects = list(picture(buckets(60, timedelta(minutes=1))).iter("rect"))
    assert len(rects) == 59  # nothing is drawn for nothing
    for rect, count in zip(rects, range(1, 60), strict=True):
        assert float(rect.attrib["height"]) == pytest.approx(
            max(2.0, count / 59 * charts.HEIGHT), abs=0.06
        )
        bottom = float(rect.attrib["y"]) + float(rect.attrib["height"])
        assert bottom == pytest.approx(charts.ABOVE + charts.HEIGHT, abs=0.11)
        middle = float(rect.attrib["x"].rstrip("%")) + float(rect.attrib["width"].rstrip("%")) / 2
        assert middle == pytest.approx((count + 0.5) * 100 / 60, abs=0.01)


def test_the_table_has_the_same_numbers_as_the_bars():
    figure = picture(buckets(24, timedelta(hours=1)))
    tooltips = [rect.findtext("title") for rect in figure.iter("rect")]
    rows = [f"{row.findtext('th')}: {row.findtext('td')}" for row in figure.iterfind(".//tbody/tr")]
    assert rows == tooltips
    assert sum(int(row.split(": ")[1]) for row in rows) == sum(range(24))
    assert "276" in (figure.findtext("figcaption") or "")


def test_a_sentence_says_what_the_picture_shows():
    svg = picture([Bucket(label="10:22", count=4), Bucket(label="10:23", count=96)]).find("svg")
    assert svg is not None
    title = svg.find("title")
    assert title is not None and title.text == "Due in the next hour: 100, peak 96 at 10:23."
    assert svg.attrib["role"] == "img"
    assert svg.attrib["aria-labelledby"] == title.attrib["id"]


def test_one_among_a_million_is_seen():
    figure = picture([Bucket(label="10:22", count=1), Bucket(label="10:23", count=1_000_000)])
    assert [rect.attrib["height"] for rect in figure.iter("rect")] == ["2.0", "120.0"]


@pytest.mark.parametrize("none", [[], [Bucket(label="10:22", count=0)]])
def test_nothing_is_said_and_not_drawn(none: list[Bucket]):
    figure = picture(none)
    assert [part.tag for part in figure] == ["figcaption"]
    assert figure.findtext("figcaption") == "Due in the next hour: nothing."


def test_not_more_labels_than_there_is_room_for():
    labels = [
        text
        for text in picture(buckets(60, timedelta(minutes=1))).iter("text")
        if "label" in text.attrib["class"]
    ]
    assert [label.text for label in labels][:3] == ["10:20", "10:25", "10:30"]
    assert len(labels) == 12
    assert len([label for label in labels if "delayq-minor" in label.attrib["class"]]) == 6


def test_markup_in_labels_is_text():
    html = charts.bars("due", [Bucket(label=MARKUP, count=1)], what=MARKUP, unit=MARKUP)
    assert "<script" not in html
    assert (
        ElementTree.fromstring(html).findtext("figcaption") == f"{MARKUP}: 1, peak 1 at {MARKUP}."
    )


def test_no_style_that_a_strict_policy_would_refuse():
    html = charts.bars("due", buckets(60, timedelta(minutes=1)), what="Due", unit="Minute")
    html += charts.sparkline([1.0, 2.0], title="Lag")
    assert not re.search(r"\bstyle=|\bon\w+=|<style", html)


def test_a_sparkline_runs_from_the_oldest_value_on_the_left_to_the_newest_on_the_right():
    svg = ElementTree.fromstring(charts.sparkline([0.0, 10.0, 5.0], title=MARKUP))
    points = svg.find("polyline")
    assert points is not None and points.attrib["points"] == "0.0,23.0 50.0,1.0 100.0,12.0"
    assert svg.findtext("title") == MARKUP


def test_a_sparkline_of_zeros_is_a_line_at_the_bottom():
    assert 'points="0.0,23.0 100.0,23.0"' in charts.sparkline([0.0, 0.0], title="Lag")


@pytest.mark.parametrize("values", [[], [1.0]])
def test_one_value_is_no_line(values: list[float]):
    assert charts.sparkline(values, title="Lag") == ""
