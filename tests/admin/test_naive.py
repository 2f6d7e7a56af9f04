"""A project without USE_TZ: the database's instants are naive local times, and those of Redis are
aware.

`make test` runs the other tests of this folder once more in such a project.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test import Client

from django_delayq.core.present import distance, next_due
from django_delayq.models import ArchivedMessage
from tests.admin.browser import address
from tests.admin.test_csp import shown_pages
from tests.admin.test_overview import text_of
from tests.admin.world import World
from tests.hands import Hands

NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def naive(settings: Any) -> None:
    """Local times of a zone that is not UTC's."""
    settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"
    connection.close()


def local(when: datetime) -> datetime:
    return when.astimezone(ZoneInfo("Europe/Berlin")).replace(tzinfo=None)


@pytest.mark.parametrize(
    "when", [NOON - 3 * MINUTE, local(NOON - 3 * MINUTE)], ids=["aware", "naive"]
)
@pytest.mark.parametrize("now", [NOON, local(NOON)], ids=["aware", "naive"])
def test_a_distance_is_the_same_whatever_has_a_zone(naive: None, when: datetime, now: datetime):
    assert distance(when, now) == "3 min ago"
    assert next_due(when, now) == "overdue"


def test_every_page_is_there_and_its_times_are_local(
    naive: None, hands: Hands, as_user: Callable[..., Client]
):
    world, client = World(hands), as_user(superuser=True)
    answers = {
        one.name: client.get(address(one.name, **world.fill(one)), follow=True)
        for one in shown_pages()
    }
    assert {
        name: answer.status_code for name, answer in answers.items() if answer.status_code != 200
    } == {}
    said = {name: text_of(answer.content.decode()) for name, answer in answers.items()}
    waiting = world.waiting.get()
    assert waiting is not None
    assert f"{local(waiting.enqueued_at):%Y-%m-%d %H:%M:%S}" in said["message"]
    finished_at = ArchivedMessage.objects.get(pk=world.dead).finished_at
    assert f"{finished_at:%Y-%m-%d %H:%M:%S}" in said["archived"]
    assert abs(finished_at - local(datetime.now(tz=timezone.utc))) < MINUTE
    assert all("ago" in said[name] for name in ("archived", "message", "workers"))


def test_a_day_before_the_calendar_is_no_mistake_of_ours(
    naive: None, as_user: Callable[..., Client], db: None
):
    for year in ("0001-01-01", "9999-12-31"):
        answer = as_user("view_dashboard").get(
            address("archive"), {"since": f"{year} 00:00", "until": f"{year} 23:59"}
        )
        assert answer.status_code == 200
