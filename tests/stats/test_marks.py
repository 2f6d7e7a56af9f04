"""Marks in the chart: deploys, and what operators did to many messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from django_delayq.archive.selection import Selection
from django_delayq.core.exceptions import InvalidMessage
from django_delayq.models import OperatorAction
from django_delayq.operators import operations
from django_delayq.stats import overview
from django_delayq.stats.marks import leave_mark, read_marks
from tests.admin.browser import address
from tests.admin.conftest import as_user, new_user  # noqa: F401 - fixtures
from tests.app.tasks import close_order
from tests.bulk_hands import OPERATOR, order
from tests.hands import Hands

pytestmark = pytest.mark.databases


def marks() -> list[tuple[str, str, str]]:
    return [mark[1:] for mark in read_marks()]


def test_a_deploy_and_what_people_did_are_marks(hands: Hands) -> None:
    close_order.using(delay=60).enqueue(1)
    call_command("delayq", "mark", " v2.3 ", "--by", "ci", stdout=StringIO())
    operations.pause(OPERATOR, "orders", reason="why")
    order("replay", Selection(topic="orders"))
    OperatorAction.new("cancel", "anna", topic="orders")
    assert marks() == [("mark", "v2.3", ""), ("pause", "", "orders"), ("replay", "", "orders")]
    assert OperatorAction.objects.get(action="mark").operator == "ci"


def test_old_marks_are_left_out(hands: Hands) -> None:
    action = leave_mark("v1", "ci")
    at = timezone.now() - timedelta(hours=25)
    OperatorAction.objects.filter(pk=action.pk).update(started_at=at)
    leave_mark("v2", "ci")
    assert marks() == [("mark", "v2", "")]


@pytest.mark.parametrize("words", ["", "  ", "x" * 61])
def test_a_mark_has_words_and_not_too_many(hands: Hands, words: str) -> None:
    with pytest.raises(InvalidMessage, match="1 to 60 characters"):
        leave_mark(words, "ci")


def test_users_of_some_topics_see_deploys_and_what_was_done_there(hands: Hands) -> None:
    leave_mark("v2", "ci")
    OperatorAction.new("pause", "anna", topic="modes")
    OperatorAction.new("pause", "anna", topic="orders")
    OperatorAction.new("quiet", "anna")
    overview.reader_of.cache_clear()
    close_order.enqueue(1)
    assert len(overview.overview().marks) == 4
    assert [mark[1:] for mark in overview.overview_of(["orders"]).marks] == [
        ("mark", "v2", ""),
        ("pause", "", "orders"),
    ]


@pytest.mark.django_db(transaction=True)
def test_the_overview_shows_them(as_user: Callable[..., Client], hands: Hands) -> None:  # noqa: F811
    close_order.using(delay=60).enqueue(1)
    leave_mark("v2.3 <script>", "ci")
    overview.reader_of.cache_clear()
    html = as_user("view_dashboard").get(address("changelist")).content.decode()
    line: Any = re.search(r'id="delayq-marks">(.*?)</p>', html, re.S)
    assert "v2.3 &lt;script&gt;" in line[1]
