"""The overview shows the newest forecast that the pipeline has written."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import translation
from django.utils.timezone import make_naive

from django_delayq.models import Forecast, ForecastCount
from django_delayq.stats import overview
from django_delayq.stats.history import FORECAST_DAYS, KeptForecast, newest_forecast
from django_delayq.store.store import RedisStore
from tests.admin import by_hand
from tests.admin.test_overview import page, text_of
from tests.hands import stored

DAY = timedelta(days=1)
TODAY = by_hand.AT.replace(hour=0, minute=0, second=0, microsecond=0)


def kept(**changes: Any) -> KeptForecast:
    """Of an hour ago, with 61,000 at noon."""
    usual: dict[str, Any] = {
        "taken_at": by_hand.AT - timedelta(hours=1),
        "waiting": 70_500,
        "overdue": 3,
        "peak_at": TODAY + timedelta(hours=12),
        "peak": 61_000,
        "drain_rate": 4_357.0,
        "hours": [(TODAY + timedelta(hours=12), 62_000), (TODAY + DAY * 13, 500)],
    }
    return KeptForecast(**{**usual, **changes})


def section(html: str) -> str:
    """What is between its heading and the next one."""
    found = re.search(r'<h2 id="delayq-forecast">(.*?)<h2', html, re.S)
    return found.group(1) if found else ""


def test_the_peak_is_told_as_work(viewer: Client, shown: Callable[..., None]):
    shown(by_hand.overview(forecast=kept()))
    said = text_of(section(page(viewer)))
    assert (
        "As of 2026-11-20 09:20:11 , 1 h ago : 70,500 waiting messages in Redis and in the outbox, 3 of them "
        "overdue." in said
    )
    assert "Busiest minute: 2026-11-20 12:00:00 , in 1 h 40 min , 61,000 messages." in said
    assert "That is 14 s of work at 4,357 messages per second." in said
    assert "Due after these days: 8,000." in said
    assert "older than a day" not in said


def test_days_are_a_picture_with_its_numbers(viewer: Client, shown: Callable[..., None]):
    shown(by_hand.overview(forecast=kept()))
    html = section(page(viewer))
    assert "Due by day: 62,500, peak 62,000 at 2026-11-20 or overdue." in html
    rows = re.findall(r'<th scope="row"><a href=".*?">(.*?)</a></th><td .*?>(.*?)</td>', html)
    assert rows == [("2026-11-20 or overdue", "62,000"), ("2026-12-03", "500")]


def test_days_are_those_of_the_projects_zone(
    viewer: Client, shown: Callable[..., None], settings: Any
):
    settings.TIME_ZONE = "Asia/Tokyo"
    shown(by_hand.overview(forecast=kept(hours=[(TODAY + timedelta(hours=16), 7)])))
    assert "Due by day: 7, peak 7 at 2026-11-21." in section(page(viewer))


def test_a_forecast_of_yesterday_has_a_warning(viewer: Client, shown: Callable[..., None]):
    for age, warned in ((timedelta(hours=23), False), (timedelta(hours=25), True)):
        shown(by_hand.overview(forecast=kept(taken_at=by_hand.AT - age)))
        assert (
            '<span class="delayq-badge delayq-badge-warn">older than a day</span>' in page(viewer)
        ) == warned


def test_what_is_not_known_is_not_told(viewer: Client, shown: Callable[..., None]):
    shown(by_hand.overview(forecast=kept(drain_rate=None)))
    said = section(page(viewer))
    assert "Busiest minute" in said and "of work" not in said
    shown(by_hand.overview(forecast=kept(waiting=0, overdue=0, peak=0, peak_at=None, hours=[])))
    said = section(page(viewer))
    assert "Busiest minute" not in said and "Due after" not in said
    assert "Due by day: nothing." in said


def test_who_makes_none_sees_nothing_of_it(viewer: Client, shown: Callable[..., None]):
    shown(by_hand.overview())
    assert "forecast" not in page(viewer).lower()


@pytest.mark.parametrize(("language", "word"), [("de", "Vorausschau"), ("zh-hans", "预测")])
def test_it_speaks_the_language(
    viewer: Client, shown: Callable[..., None], settings: Any, language: str, word: str
):
    settings.LANGUAGE_CODE = language
    shown(by_hand.overview(forecast=kept(taken_at=by_hand.AT - 2 * DAY)))
    with translation.override(language):
        said = section(page(viewer))
    assert word in page(viewer)
    assert not re.search(r"waiting|overdue|Busiest|work|older|Due", text_of(said))


# Reading it


def written(
    at: datetime, counts: dict[datetime, int], topics: tuple[str, ...] = ("a",)
) -> Forecast:
    total = sum(counts.values()) * len(topics)
    forecast = Forecast.objects.create(
        taken_at=stored(at), waiting=total, overdue=1, peak_at=stored(at), peak=2, drain_rate=4.0
    )
    for unit in ("hour", "day"):
        for when, messages in counts.items():
            sums = {**dict.fromkeys(topics, messages), "": messages * len(topics)}
            for topic, count in sums.items():
                ForecastCount.objects.create(
                    forecast=forecast, unit=unit, at=stored(when), topic=topic, messages=count
                )
    return forecast


@pytest.mark.django_db
def test_the_newest_is_read_with_its_next_days(delayq: RedisStore):
    written(by_hand.AT - DAY, {TODAY: 99})
    written(by_hand.AT, {TODAY: 3, TODAY + 13 * DAY: 4, TODAY + 14 * DAY: 5}, ("a", "b"))
    written(by_hand.AT - 2 * DAY, {TODAY: 99})
    found = newest_forecast()
    assert found is not None
    assert (found.taken_at, found.waiting, found.work, found.later()) == (by_hand.AT, 24, 0.5, 10)
    assert len(found.days()) == FORECAST_DAYS
    assert {at: messages for at, messages in found.days() if messages} == {
        TODAY: 6,
        TODAY + 13 * DAY: 8,
    }


@pytest.mark.django_db
def test_times_without_a_zone_are_those_of_the_project(delayq: RedisStore, settings: Any):
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Kolkata"
    naive = {at: make_naive(at, ZoneInfo("Asia/Kolkata")) for at in (by_hand.AT, TODAY)}
    written(naive[by_hand.AT], {naive[TODAY]: 3})
    found = newest_forecast()
    assert found is not None
    assert (found.taken_at, found.peak_at) == (by_hand.AT, by_hand.AT)
    assert found.hours == [(TODAY, 3)]
    assert found.hours[0][0].tzinfo == timezone.utc


@pytest.mark.django_db
def test_it_costs_two_queries_and_reaches_the_page(viewer: Client, delayq: RedisStore):
    assert newest_forecast() is None
    now = datetime.now(tz=timezone.utc)
    written(now, {now.replace(hour=0, minute=0, second=0, microsecond=0): 3})
    with CaptureQueriesContext(connection) as queries:
        newest_forecast()
    assert len(queries) == 2
    overview.reader_of.cache_clear()
    assert "3 waiting messages in Redis and in the outbox, 1 of them overdue." in text_of(
        section(page(viewer))
    )
