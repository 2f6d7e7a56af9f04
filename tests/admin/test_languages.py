"""The pages in German and simplified Chinese."""

from __future__ import annotations

import gettext
import re
from collections.abc import Callable
from datetime import datetime, timezone

import pytest
from django.test import Client
from django.utils import translation

from django_delayq.admin import site
from django_delayq.admin.pages.operator_actions_page import ACTIONS
from django_delayq.archive.selection import Selection
from django_delayq.core.message import State
from django_delayq.core.present import selection_words, word
from django_delayq.models import BulkKind, BulkStatus, Final
from django_delayq.operators.waiting_selection import WaitingSelection
from django_delayq.worker.outcome import Result
from tests.admin.browser import address
from tests.admin.catalogues import (
    LOCALES,
    SOURCE,
    entries_of,
    marked,
    other_names,
    path_of,
    read,
    unmarked,
)
from tests.admin.test_csp import shown_pages
from tests.admin.world import World

#: Tags of the languages, and what their tabs say.
LANGUAGES = {
    "de": [
        "Übersicht", "Dead Letters", "Archiv", "Statistik", "Sammelaktionen", "Worker", "Operator-Aktionen",
        "Einplanen", "Wiederkehrend",
    ],
    "zh-hans": ["概览", "死信", "归档", "统计", "批量操作", "工作进程", "操作记录", "计划", "周期"],
}  # fmt: skip

# The catalogues


@pytest.mark.parametrize("locale", LOCALES)
def test_whatever_is_marked_is_translated_and_nothing_else(locale: str):
    found = [entry.text for entry in entries_of(locale)]
    assert len(found) == len(set(found)), "twice"
    assert sorted(marked() - set(found)) == [], (
        "missing: run makemessages as the head of the file says"
    )
    assert sorted(set(found) - marked()) == [], "no longer used"


@pytest.mark.parametrize("locale", LOCALES)
def test_no_translation_is_empty_or_a_guess(locale: str):
    assert [entry.text.text for entry in entries_of(locale) if not all(entry.translations)] == []
    assert [entry.text.text for entry in entries_of(locale) if "fuzzy" in entry.flags] == []


@pytest.mark.parametrize("locale", LOCALES)
def test_a_translation_has_the_gaps_of_its_text(locale: str):
    def gaps(text: str) -> set[str]:
        return set(re.findall(r"%\(\w+\)[sd]|{\w*}|%%|</?[a-z]+[^>]*>", text))

    wrong = [
        (entry.text.text, translated)
        for entry in entries_of(locale)
        for translated in entry.translations
        if gaps(translated) != gaps(entry.text.text)
    ]
    assert wrong == []


@pytest.mark.parametrize("locale", LOCALES)
def test_what_is_compiled_is_what_is_written(locale: str):
    with path_of(locale, ".mo").open("rb") as file:
        compiled = {
            text: said for text, said in gettext.GNUTranslations(file)._catalog.items() if text
        }  # type: ignore[attr-defined]
    written: dict[object, str] = {}
    for entry in entries_of(locale):
        name = (
            f"{entry.text.context}\x04{entry.text.text}" if entry.text.context else entry.text.text
        )
        forms = dict(enumerate(entry.translations)) if entry.text.plural else {}
        written |= {(name, form): said for form, said in forms.items()} or {
            name: entry.translations[0]
        }
    assert compiled == written, "run compilemessages"


def test_makemessages_knows_every_name_by_which_a_text_is_marked():
    assert other_names() == []


@pytest.mark.parametrize(
    "page", sorted(SOURCE.rglob("templates/**/*.html")), ids=lambda page: page.name
)
def test_a_template_has_no_words_of_its_own(page):
    assert unmarked(page) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_words_that_are_stored_are_told_in_the_language(language: str):
    stored = {
        one.value for kind in (State, Final, BulkKind, BulkStatus, Result) for one in kind
    } | set(ACTIONS)
    with translation.override(language):
        assert sorted(term for term in stored if word(term) == term) == []
        assert word("a word of a later version") == "a word of a later version"


@pytest.mark.parametrize(
    ("stored", "german"),
    [
        ("1 named row", "1 genannte Zeile"),
        (
            "open dead letters, state dead, topic orders, key prefix order:, since 2026-11-26",
            "offene Dead Letters, Zustand tot, Topic orders, Schlüsselanfang order:, seit 2026-11-26",
        ),
        ("everything, with arguments", "alles, mit Argumenten"),
        ("task shop.topic.task", "Task shop.topic.task"),
        ("key state dead", "Schlüssel state dead"),
        ("12 orders of a task", "12 orders of a task"),
    ],
)
def test_what_an_order_is_about_is_told_in_the_language(stored: str, german: str):
    assert selection_words(stored) == stored
    with translation.override("de"):
        assert selection_words(stored) == german


def test_every_name_in_the_words_of_a_selection_is_translated():
    now, later = (datetime(2026, 11, day, tzinfo=timezone.utc) for day in (26, 27))
    of_archive = Selection(
        ids=(1, 2), open=True, state="dead", topic="a", task="a.b", error="A", key="k",
        message_id="0190a5f0000070008000000000000001", since=now, until=later,
    )  # fmt: skip
    of_waiting = WaitingSelection(
        topic="a", task="a.b", key_prefix="k", since=now, until=later, argument="n", value="1"
    )
    words = {"named rows", "open dead letters", "state", "topic", "task", "error", "key", "id"}
    words |= {"since", "until", "key prefix", "due since", "due before", "argument"}
    told = f"{of_archive.in_words()}, {of_waiting.in_words()}"
    assert all(name in told for name in words)
    with translation.override("zh-hans"):
        assert re.findall(r"[a-z]{5,}", selection_words(told)) == []


@pytest.mark.parametrize(
    ("language", "one", "many"),
    [
        ("de", "1 Nachricht erneut senden", "2 Nachrichten erneut senden"),
        ("zh-hans", "重放 1 条消息", "重放 2 条消息"),
    ],
)
def test_a_number_has_its_plural(language: str, one: str, many: str):
    texts = ("Replay %(number)s message", "Replay %(number)s messages")
    with translation.override(language):
        assert [translation.ngettext(*texts, number) % {"number": number} for number in (1, 2)] == [
            one,
            many,
        ]


# The pages


def english_on(html: str, language: str) -> list[str]:
    """Our texts that stand on the page as they are in English, though the language has words for
    them."""
    ours = {entry.text.text for entry in entries_of(translation.to_locale(language))}
    with translation.override(language):
        theirs = {translation.gettext(text) for text in ours}
    # Data: why the row of the world is dead, and a parameter of its tasks.
    data = {"failed", "reason"}
    return [text for text in read(html) if text in ours - theirs - data]


def seen_on(client: Client, page: site.PageRoute, world: World) -> str:
    answer = client.get(address(page.name, **world.fill(page)), follow=True)
    assert answer.status_code == 200, page.name
    return answer.content.decode()


@pytest.mark.parametrize("language", ["de", pytest.param("zh-hans", marks=pytest.mark.long)])
def test_every_page_speaks_the_language(
    language: str, world: World, as_user: Callable[..., Client], settings
):
    settings.LANGUAGE_CODE = language
    client = as_user(superuser=True)
    shown = list(shown_pages())
    assert len(shown) >= 12
    for page in shown:
        html = seen_on(client, page, world)
        assert f'<html lang="{language}"' in html
        assert [tab for tab in LANGUAGES[language] if tab not in read(html)] == [], page.name
        assert english_on(html, language) == [], page.name


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_a_page_is_asked_for_is_in_the_language_too(
    language: str, world: World, as_user: Callable[..., Client], settings
):
    settings.LANGUAGE_CODE = language
    client = as_user(superuser=True)
    queries = [
        ("changelist", "?columns=totals"), ("topic", "?by=task"), ("archived", "?edit=1"), ("topic", "?in=database"), ("archive", "?q=x"), ("find", "?q=nobody"),
        ("schedule", "?task=tests.app.tasks.close_order"), ("bulk_new", "?kind=replay&topic=modes"),
        ("bulk_new", "?kind=purge&topic=orders"), ("operator_actions", "?operator=nobody"),
    ]  # fmt: skip
    for name, query in queries:
        page = next(page for page in site._pages if page.name == name)
        html = client.get(address(name, **world.fill(page)) + query).content.decode()
        assert english_on(html, language) == [], name + query


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_form_says_what_is_wrong_in_the_language(
    language: str, world: World, as_user: Callable[..., Client], settings
):
    settings.LANGUAGE_CODE = language
    nothing = {"delay_0": "", "delay_1": "60", "at": ""}
    there = address("message_reschedule", topic="orders", message_id=world.waiting.id)
    html = as_user(superuser=True).post(there, nothing).content.decode()
    said = {
        "de": "Eines von beiden ausfüllen: eine Verzögerung oder einen Zeitpunkt.",
        "zh-hans": "请填写其中一项：延时或时间。",
    }
    assert said[language] in html
    assert english_on(html, language) == []


@pytest.mark.long
@pytest.mark.parametrize("language", ["de", pytest.param("zh-hans", marks=pytest.mark.long)])
def test_nothing_is_wider_than_a_telephone(
    language: str,
    world: World,
    as_user: Callable[..., Client],
    browser_page: Callable[..., object],
    settings,
):
    settings.LANGUAGE_CODE = language
    view = browser_page(as_user(superuser=True), width=390, height=844)
    for name in (
        "changelist",
        "topic",
        "message",
        "archive",
        "archived",
        "dead_letters",
        "bulk",
        "workers",
        "recurring",
        "schedule",
    ):
        page = next(page for page in site._pages if page.name == name)
        view.goto(address(name, **world.fill(page)))
        wide = view.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide == 0, name
