"""What the archive refused: the list, one entry, and the button that tries again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_delayq.models import ArchivedMessage, OperatorAction, UnarchivableEntry
from django_delayq.stats import overview
from tests.admin.browser import address
from tests.admin.test_overview import text_of
from tests.admin.world import World
from tests.database_faults import refusing_bad_rows
from tests.hands import Hands


@pytest.fixture
def aside(hands: Hands, world: World) -> UnarchivableEntry:
    """A dead letter that the archive has refused."""
    UnarchivableEntry.objects.all().delete()
    return UnarchivableEntry.objects.get(pk=world.put_aside("unworthy of a row", key="wrong"))


def said(client: Client, name: str, **arguments: Any) -> str:
    return text_of(client.get(address(name, **arguments)).content.decode())


def test_the_list_says_what_was_refused_and_why(
    aside: UnarchivableEntry, as_user: Callable[..., Client]
):
    text = said(as_user("view_dashboard"), "unarchivable")
    assert (
        "tests.app.tasks.act" in text
        and "wrong" in text
        and "ValueError" in text
        and "dead" in text
    )
    assert "unworthy of a row" not in text and "Archive all of them again" not in text


def test_an_entry_shows_all_that_is_known(aside: UnarchivableEntry, as_user: Callable[..., Client]):
    client = as_user("view_dashboard", "view_payload")
    text = said(client, "unarchivable_entry", pk=aside.pk)
    assert aside.message_id in text and "Attempts 1" in text
    assert text.count("unworthy of a row") >= 2, "the arguments, and what was said of them"
    assert "Archive again" not in text


def test_an_entry_is_archived_again(aside: UnarchivableEntry, as_user: Callable[..., Client]):
    client, before = as_user(superuser=True), OperatorAction.objects.count()
    path = address("unarchivable_archive", pk=aside.pk)
    answer = client.post(path, {"reason": "the trigger is gone"}, follow=True)
    assert "1 entry is archived." in answer.content.decode()
    assert "There are none" in answer.content.decode()
    row = ArchivedMessage.objects.get(message_id=aside.message_id)
    assert (row.state, row.key) == ("dead", "wrong")
    action = OperatorAction.objects.order_by("pk")[before:].get()
    assert (action.action, action.reason, action.count) == (
        "archive again",
        "the trigger is gone",
        1,
    )
    assert "archive again" in said(client, "operator_actions")


def test_what_is_refused_again_is_told(
    aside: UnarchivableEntry, world: World, as_user: Callable[..., Client]
):
    world.put_aside()
    with refusing_bad_rows():
        answer = as_user(superuser=True).post(address("unarchivable_archive_all"), follow=True)
    text = answer.content.decode()
    assert "1 entry is archived." in text and "1 entry was refused again" in text
    assert list(UnarchivableEntry.objects.values_list("pk", flat=True)) == [aside.pk]


def test_one_that_is_gone_is_told(aside: UnarchivableEntry, as_user: Callable[..., Client]):
    aside_pk = aside.pk
    aside.delete()
    client = as_user(superuser=True)
    assert client.get(address("unarchivable_entry", pk=aside_pk)).status_code == 404
    answer = client.post(address("unarchivable_archive", pk=aside_pk), follow=True)
    assert f"There is no unarchivable entry {aside_pk}" in answer.content.decode()


@pytest.mark.parametrize(
    "content", ['{"at_ms": 99999999999999999, "record": "", "attempts": "", "detail": ""}']
)
def test_a_damaged_entry_is_shown(
    aside: UnarchivableEntry, as_user: Callable[..., Client], content: str
):
    UnarchivableEntry.objects.update(content=content)
    client = as_user(superuser=True)
    assert aside.message_id in said(client, "unarchivable_entry", pk=aside.pk)
    assert "modes" in said(client, "unarchivable")


@pytest.mark.parametrize("name", ["archive", "dead_letters", "changelist"])
def test_pages_that_lack_it_say_so(
    name: str, aside: UnarchivableEntry, as_user: Callable[..., Client]
):
    overview.reader_of.cache_clear()
    client = as_user("view_dashboard")
    link = f'href="{address("unarchivable")}"'
    assert link in client.get(address(name)).content.decode()
    aside.delete()
    overview.reader_of.cache_clear()
    assert link not in client.get(address(name)).content.decode()
