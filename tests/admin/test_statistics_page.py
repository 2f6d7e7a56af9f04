"""The page of statistics: what finished by hour or day, how late it was, and what died of what."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_delayq.models import ArchivedMessage
from django_delayq.stats.hourly import DAY, HOUR, compute_day, compute_hour, day_of, hour_of
from django_delayq.templatetags.delayq import pair_ms, percent
from tests.admin.browser import POLICY, address
from tests.admin.test_hostile import MARKUP, UNSEEN, hostile, shown
from tests.faults import unreachable
from tests.stats.test_history import NOW, standing  # noqa: F401 - a fixture
from tests.stats.test_hourly import finish

pytestmark = pytest.mark.django_db


@pytest.fixture
def count(delayq: Any) -> Callable[[], None]:
    """Computes the figures of all that has finished."""

    def compute() -> None:
        whens = list(ArchivedMessage.objects.values_list("finished_at", flat=True))
        for hour in {hour_of(when) for when in whens}:
            compute_hour(hour)
        for day in {day_of(when) for when in whens}:
            compute_day(day)

    return compute


@pytest.fixture
def busy(count: Callable[[], None]) -> None:
    """Two topics with a quiet past."""
    finish(NOW, topic="orders", task="shop.tasks.close", count=150)
    finish(
        NOW,
        topic="orders",
        task="shop.tasks.close",
        state="dead",
        error_class="shop.PriceMissing",
        count=50,
    )
    finish(
        NOW - 2 * HOUR,
        topic="orders",
        task="shop.tasks.close",
        lateness_ms=800.0,
        run_ms=90_000.0,
        attempts=3,
    )
    finish(
        NOW - 2 * HOUR,
        topic="mail",
        task="shop.tasks.remind",
        state="expired",
        lateness_ms=None,
        run_ms=None,
    )
    finish(NOW - 3 * DAY, topic="mail", task="shop.tasks.remind", lateness_ms=40_000.0, count=7)
    count()


def page(client: Client, **question: str) -> str:
    """What the page says."""
    answer = client.get(f"{address('statistics')}?{urlencode(question)}")
    assert answer.status_code == 200
    return str(answer.content.decode())


def figure(html: str, name: str) -> ElementTree.Element:
    """One picture of the page."""
    found = re.search(rf'<figure class="delayq-chart" id="{name}">.*?</figure>', html, re.DOTALL)
    assert found, name
    return ElementTree.fromstring(found.group())


def bars(html: str, name: str) -> list[str]:
    """What is said of the bars, also to those who do not see them."""
    drawn = figure(html, name)
    said = [f"{row.findtext('th')}: {row.findtext('td')}" for row in drawn.iterfind(".//tbody/tr")]
    assert sum(bool(value) for value in script_of(drawn)["series"][0]["values"]) == len(said)
    return said


def script_of(drawn: ElementTree.Element) -> dict[str, Any]:
    """What the script draws."""
    plot = drawn.find("div[@role='img']")
    assert plot is not None
    return json.loads(plot.attrib["data-delayq-chart"])


def tiles(html: str) -> dict[str, str]:
    """The figures of the whole period, by name."""
    found = re.findall(r'<li class="delayq-tile"><span>(.*?)</span><b>(.*?)</b>', html)
    return {name: re.sub(r"<.*?>", " ", value) for name, value in found}


def task_rows(html: str) -> list[list[str]]:
    """The table of tasks, by cells."""
    body = html.rpartition("<tbody>")[2]
    rows = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in body.split("</tr>")[:-1]
    ]
    return [[" ".join(re.sub(r"<.*?>", " ", cell).split()) for cell in row] for row in rows]


# What it shows


def test_a_day_by_hours_is_shown_at_first(busy: None, as_user: Callable[..., Client]):
    html = page(as_user("view_dashboard"))
    assert bars(html, "finished") == ["10:00 to 11:00: 2", "12:00 to 13:00: 200"]
    assert bars(html, "dead") == ["12:00 to 13:00: 50"]
    assert bars(html, "late") == ["10:00 to 11:00: 800 ms", "12:00 to 13:00: 2 ms"]
    # Hours without messages have their place.
    assert len(script_of(figure(html, "finished"))["at"]) == 24
    assert '<option value="24h" selected>' in html


def test_longer_periods_are_shown_by_days(busy: None, as_user: Callable[..., Client]):
    client = as_user("view_dashboard")
    for period in ("7d", "30d", "90d"):
        html = page(client, period=period)
        assert bars(html, "finished") == ["2026-11-17: 7", "2026-11-20: 202"]
        assert f'<option value="{period}" selected>' in html


def test_pictures_say_what_they_show(busy: None, as_user: Callable[..., Client]):
    html = page(as_user("view_dashboard"))
    assert (
        figure(html, "finished").findtext("figcaption")
        == "Finished by hour: 202, peak 200 at 12:00 to 13:00."
    )
    assert (
        figure(html, "late").findtext("figcaption")
        == "p99 lateness by hour: peak 800 ms at 10:00 to 11:00."
    )
    assert [th.text for th in figure(html, "dead").findall(".//thead//th")] == [
        "Hour",
        "Dead",
    ]
    assert (
        figure(page(as_user("view_dashboard"), period="7d"), "dead").findtext(".//thead//th")
        == "Day (UTC)"
    )


def test_milliseconds_are_not_called_messages(busy: None, as_user: Callable[..., Client]):
    html = page(as_user("view_dashboard"))
    assert "Messages" not in [th.text for th in figure(html, "late").findall(".//thead//th")]


def test_tiles_are_the_figures_of_the_whole_period(busy: None, as_user: Callable[..., Client]):
    html = page(as_user("view_dashboard"))
    assert tiles(html) == {
        "Finished": "202", "Acked": "151", "Dead": "50", "Cancelled": "0", "Expired": "1",
        "Lateness p50, p99": "2 ms, 2 ms", "Ran p50, p99": "20 ms, 20 ms",
    }  # fmt: skip
    assert "<b>50</b><small>24.9 % of acked and dead</small>" in html
    assert "max 800 ms" in html
    assert "max 1 min 30 s" in html


def test_tasks_have_a_row_each(busy: None, as_user: Callable[..., Client]):
    assert task_rows(page(as_user("view_dashboard"))) == [
        [
            "shop.tasks.close orders",
            "201",
            "1",
            "50 24.9 %",
            "2 ms, 2 ms",
            "20 ms, 20 ms",
            "shop.PriceMissing 50",
        ],
        ["shop.tasks.remind mail", "1", "0", "0", "–", "–", ""],
    ]


def test_thousands_are_parted(count: Callable[[], None], as_user: Callable[..., Client]):
    finish(NOW, count=1234)
    count()
    html = page(as_user("view_dashboard"))
    assert (tiles(html)["Acked"], bars(html, "finished")) == ("1,234", ["12:00 to 13:00: 1,234"])


def test_one_topic_may_be_chosen(busy: None, as_user: Callable[..., Client]):
    html = page(as_user("view_dashboard"), period="7d", topic="mail")
    assert (tiles(html)["Finished"], bars(html, "finished")) == (
        "8",
        ["2026-11-17: 7", "2026-11-20: 1"],
    )
    assert [row[0] for row in task_rows(html)] == ["shop.tasks.remind mail"]
    assert '<option value="mail" selected>mail</option>' in html
    assert '<option value="orders">orders</option>' in html


def test_nothing_is_said_of_nothing(delayq: Any, as_user: Callable[..., Client]):
    html = page(as_user("view_dashboard"))
    assert "No message finished in this period" in html
    assert "<figure" not in html and "delayq-tile" not in html
    assert 'name="period"' in html


def test_other_pages_lead_to_it(busy: None, as_user: Callable[..., Client]):
    overview = as_user("view_dashboard").get(address("changelist")).content.decode()
    assert f'href="{address("statistics")}"' in overview


def test_it_is_made_of_few_queries_and_none_of_the_archive(
    busy: None, as_user: Callable[..., Client]
):
    client = as_user("view_dashboard")
    page(client)
    with CaptureQueriesContext(connection) as queries:
        page(client, period="90d")
    ours = [
        one["sql"]
        for one in queries
        if "django_delayq" in one["sql"] and "permission" not in one["sql"]
    ]
    assert len(ours) <= 4
    assert not any(ArchivedMessage._meta.db_table in sql for sql in ours)


def test_it_is_shown_while_redis_is_away(busy: None, as_user: Callable[..., Client]):
    client = as_user("view_dashboard")
    with unreachable():
        assert tiles(page(client))["Finished"] == "202"


# Who may see it


def test_who_may_see_the_pages_sees_it(busy: None, as_user: Callable[..., Client]):
    assert as_user().get(address("statistics")).status_code == 403
    assert as_user("view_payload").get(address("statistics")).status_code == 403
    assert as_user("view_dashboard").get(address("statistics")).status_code == 200
    assert as_user("view_dashboard").post(address("statistics")).status_code in (403, 405)


# Hostile questions and names


@pytest.mark.parametrize(
    "period", ["1y", "", "24H", "0", "7d ", "\x00", "__class__", "9" * 5000, MARKUP]
)
def test_an_unknown_period_is_the_last_day(period: str, busy: None, as_user: Callable[..., Client]):
    html = page(as_user("view_dashboard"), period=period)
    assert '<option value="24h" selected>' in html
    assert "onerror=hit()>" not in html


@pytest.mark.parametrize(
    "topic",
    [
        "never used",
        "x" * 5000,
        MARKUP,
        UNSEEN,
        "'; DROP TABLE x; --",
        "%",
        "\ud83c",
        pytest.param("\0"),
    ],
)
def test_an_unknown_topic_has_nothing(topic: str, busy: None, as_user: Callable[..., Client]):
    question = urlencode({"topic": topic}, errors="surrogatepass")
    answer = as_user("view_dashboard").get(f"{address('statistics')}?{question}")
    assert answer.status_code == 200
    html = answer.content.decode()
    assert "No message finished in this period" in html
    assert "<script>hit()" not in html


def test_characters_that_nobody_sees_are_written_out_in_the_form(
    busy: None, as_user: Callable[..., Client]
):
    html = page(as_user("view_dashboard"), topic="a\u202eb")
    assert "\u202e" not in html.replace('value="a\u202eb"', "")


@pytest.fixture
def attacked(count: Callable[[], None], transactional_db: None) -> None:
    """Tasks, topics and errors have names that would do harm."""
    for number in range(3):
        names = {
            "topic": hostile("topic")[:64],
            "task": hostile("task")[:200],
            "error_class": shown("error") + UNSEEN,
        }
        finish(NOW - timedelta(days=number), state="dead", **names)
    count()


def test_hostile_names_are_text(
    attacked: None, browser_page: Callable[..., Any], as_user: Callable[..., Client]
):
    tab = browser_page(as_user(superuser=True))
    tab.add_init_script("window.hit = () => { window.wasHit = true; }")
    tab.goto(f"{address('statistics')}?{urlencode({'period': '7d', 'topic': MARKUP[:60]})}")
    tab.goto(f"{address('statistics')}?period=7d")
    table = tab.locator("table").last.inner_text()
    for field in ("topic", "task", "error"):
        assert shown(field) in table
    assert [c for c in UNSEEN if c in table and not c.isprintable()] == []
    assert tab.locator("img[src=x]").count() == 0
    assert tab.evaluate("() => window.wasHit") is None


# In the browser


@pytest.mark.usefixtures("transactional_db", "busy")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_a_telephone_and_obeys_the_strict_policy(
    dark: bool, browser_page: Callable[..., Any], as_user: Callable[..., Client]
):
    tab = browser_page(as_user("view_dashboard"), width=390, dark=dark)
    answer = tab.goto(address("statistics"))
    assert answer.headers["content-security-policy"] == POLICY
    tab.evaluate(
        "document.querySelectorAll('.delayq details').forEach((one) => { one.open = true; })"
    )
    assert tab.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0
    tab.locator(".delayq-plot canvas").nth(2).wait_for()
    plots = tab.locator(".delayq-plot")
    assert all(plots.nth(n).bounding_box()["height"] > 100 for n in range(3))


@pytest.mark.usefixtures("transactional_db", "busy")
def test_period_and_topic_are_chosen_without_scripts(
    browser_page: Callable[..., Any], as_user: Callable[..., Client]
):
    tab = browser_page(as_user("view_dashboard"), javascript=False)
    tab.goto(address("statistics"))
    tab.get_by_label("Period", exact=True).select_option("7d")
    tab.get_by_label("Topic", exact=True).select_option("mail")
    tab.get_by_role("button", name="Filter").click()
    assert "period=7d" in tab.url and "topic=mail" in tab.url
    assert tab.get_by_label("Period", exact=True).input_value() == "7d"
    assert tab.get_by_label("Topic", exact=True).input_value() == "mail"
    assert tab.locator(".delayq-tile b").first.inner_text() == "8"


#: Notes what is written into pictures, and where.
_NOTE_TEXTS = """
window.written = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, ...rest) {
  window.written.push([text, x, this.canvas]);
  return write.call(this, text, x, ...rest);
};
"""


@pytest.mark.django_db(transaction=True)
def test_a_day_stands_where_utc_begins_it_whatever_the_zone_of_the_project(
    busy: None,
    standing: None,  # noqa: F811
    settings: Any,
    browser_page: Callable[..., Any],
    as_user: Callable[..., Client],
) -> None:
    settings.TIME_ZONE = "America/New_York"
    tab = browser_page(as_user("view_dashboard"), width=1280)
    tab.add_init_script(_NOTE_TEXTS)
    tab.goto(f"{address('statistics')}?period=7d")
    tab.locator("#finished .u-over").wait_for()
    left, width = tab.locator("#finished .u-over").evaluate("b => [b.offsetLeft, b.clientWidth]")
    days = [(day_of(NOW) - DAY * n).strftime("%m/%d") for n in range(6, -1, -1)]
    written = tab.evaluate(
        "window.written.filter(([text, x, canvas]) => canvas.closest('#finished'))"
        ".map(([text, x]) => [text, x])"
    )
    drawn = [(text, x) for text, x in written if text in days]
    assert len(drawn) >= 3
    for text, x in drawn:
        assert abs(left + width * days.index(text) / 7 - x) < 3, text


def test_small_shares_and_what_is_not_known_do_not_look_like_nothing() -> None:
    assert [percent(share) for share in (0, 0.0001, 0.0006, 0.125, 1)] == [
        "0 %", "< 0.1 %", "0.1 %", "12.5 %", "100 %",
    ]  # fmt: skip
    assert [pair_ms(None, None), pair_ms(1, 20)] == ["–", "1 ms, 20 ms"]


@pytest.mark.parametrize("period", ["24h", "30d"])
def test_it_is_said_where_days_begin(
    period: str,
    busy: None,
    standing: None,  # noqa: F811
    viewer: Client,
) -> None:
    assert page(viewer, period=period).count("Days begin and end at midnight UTC.") == 1
