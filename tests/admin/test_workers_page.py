"""The page of workers: what they say of themselves, who is missing, and how to stop one from
claiming."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_delayq.client import topics
from django_delayq.models import OperatorAction
from django_delayq.stats import overview
from django_delayq.store.store import RedisStore
from tests.admin.browser import address
from tests.app.tasks import record
from tests.faults import unreachable

pytestmark = pytest.mark.django_db(transaction=True)

AsUser = Callable[..., Client]
HOSTILE = "</small><script>alert(1)</script>\u202e"
NAME = "web-7:4711:ab"
MINUTE_MS = 60_000


@pytest.fixture
def beat(delayq: RedisStore) -> Callable[..., None]:
    """Writes a heartbeat as a worker does, so long ago."""

    def write(name: str = NAME, ago_ms: int = 0, **said: Any) -> None:
        at_ms = int(delayq.clock_ms()) - ago_ms
        usual = {
            "host": "web-7",
            "pid": 4711,
            "version": "0.1.0",
            "topics": ["orders", "default"],
            "concurrency": 8,
        }
        usual |= {
            "running": 3,
            "in_flight": 3,
            "started_ms": at_ms - 5 * MINUTE_MS,
            "draining": False,
            "rss_kb": 65_536,
        }
        usual |= {"settled": {"acked": 12_345, "dead": 2}, "at_ms": at_ms}
        delayq.workers.beat(name, json.dumps(usual | said))

    return write


@pytest.fixture
def page(as_user: AsUser) -> Callable[[], str]:
    """The HTML for who may pause."""
    client = as_user("view_dashboard", "pause_topic")

    def get() -> str:
        response = client.get(address("workers"))
        assert response.status_code == 200
        return response.content.decode()

    return get


def read(text: str) -> str:
    """What is read, without markup."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", text)))


def unserved(text: str) -> list[str]:
    """The topics that are named as served by nobody."""
    named = re.search(r"No worker serves these topics:(.*?)</p>", text, re.S)
    return re.findall(r">([^<>]+)</a>", named[1]) if named else []


def test_a_worker_is_shown_as_it_says(page: Callable[[], str], beat: Callable[..., None]) -> None:
    beat(archiver={"archived": 99, "waiting": 7, "lagging": True}, relay={"sent": 5}, reconciler={})
    text = read(page())
    for words in (
        "web-7", "process 4711, version 0.1.0", NAME, "working", "3 of 8 running", "64 MB", "12,345 acked",
        "2 dead", "archiver: archived 99, waiting 7, lagging", "relay: sent 5", "started",
    ):  # fmt: skip
        assert words in text, words
    assert "No worker is alive" not in text


def test_services_speak_the_language_of_the_reader(
    page: Callable[[], str], beat: Callable[..., None], settings: Any
) -> None:
    beat(bulk={"ended": 3})
    settings.LANGUAGE_CODE = "de"
    assert "Sammelaktionen: beendet 3" in read(page())


def test_what_waits_for_a_thread_is_told_apart_from_what_runs(
    page: Callable[[], str], beat: Callable[..., None]
) -> None:
    beat(concurrency=2, running=2, in_flight=16)
    assert "2 of 2 running, 14 held" in read(page())
    beat(concurrency=2, running=50, in_flight=50)  # coroutines need no thread
    assert "50 running" in read(page())
    assert "held" not in read(page()).partition("Dead:")[0]


def test_the_enter_key_in_the_reason_acts_on_no_worker(
    browser_page: Callable[..., Any], as_user: AsUser, beat: Callable[..., None], delayq: RedisStore
) -> None:
    beat()
    tab = browser_page(as_user("view_dashboard", "pause_topic"))
    tab.goto(address("workers"))
    tab.get_by_label("Reason").fill("it eats memory")
    tab.get_by_label("Reason").press("Enter")
    tab.wait_for_timeout(300)
    assert tab.get_by_label("Reason").input_value() == "it eats memory"
    assert not delayq.workers.is_quiet(NAME)
    tab.get_by_role("button", name="Stop claiming").click()
    tab.get_by_text("claims no more messages").wait_for()
    assert OperatorAction.objects.get().reason == "it eats memory"


def test_a_service_that_is_well_says_nothing_of_trouble(
    page: Callable[[], str], beat: Callable[..., None]
) -> None:
    beat(archiver={"archived": 99, "lagging": False})
    assert "lagging" not in read(page())


def test_without_a_worker_the_page_says_how_to_start_one(
    page: Callable[[], str], beat: Callable[..., None]
) -> None:
    assert "No worker is alive" in page()
    assert "python manage.py run_delayq" in page()
    beat(ago_ms=10 * MINUTE_MS)
    assert "python manage.py run_delayq" in page()
    beat()
    assert "python manage.py run_delayq" not in page()


def test_a_worker_that_was_not_heard_of_for_long_is_dead(
    page: Callable[[], str], beat: Callable[..., None]
) -> None:
    beat("host:1:old", ago_ms=30_000)
    beat("host:2:new", ago_ms=20_000)
    new, old = page().partition("<tbody>")[2].split("<tr")[1:]
    assert ("host:2:new" in new, "working" in new, "Stop claiming" in new) == (True, True, True)
    assert ("host:1:old" in old, "dead" in read(old), "Stop claiming" in old) == (True, True, False)
    assert 'class="delayq-quiet"' in old.partition(">")[0]


def test_a_worker_that_drains_is_left_alone(
    page: Callable[[], str], beat: Callable[..., None]
) -> None:
    beat(draining=True)
    row = page().partition("<tbody>")[2]
    assert "draining" in row
    assert "<button" not in row.partition("</table>")[0]


def test_topics_that_nobody_serves_are_named(
    page: Callable[[], str], beat: Callable[..., None], delayq: RedisStore
) -> None:
    beat(topics=["orders"])
    record.using(topic="modes", delay=60).enqueue(1)
    assert unserved(page()) == ["modes"], "nothing waits in others"
    beat("host:3:more", topics=["modes"])
    assert "modes" not in unserved(page())
    delayq.workers.quiet("host:3:more")
    assert "modes" in unserved(page())
    beat("host:3:more", topics=["modes"], draining=True)
    delayq.workers.unquiet("host:3:more")
    assert "modes" in unserved(page())


def test_a_topic_that_is_consumed_over_http_is_not_missing_a_worker(
    page: Callable[[], str], beat: Callable[..., None], settings: Any
) -> None:
    record.using(topic="modes", delay=60).enqueue(1)
    settings.DELAYQ = {**settings.DELAYQ, "API_TOPICS": ["modes"]}
    beat(topics=["orders"])
    assert unserved(page()) == []
    (row,) = [one for one in overview.overview().topics if one.topic == "modes"]
    assert (row.waiting, row.unserved) == (1, False)


def test_a_topic_that_is_paused_is_not_missing_a_worker(
    page: Callable[[], str], beat: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    beat(topics=["orders"])
    record.using(topic="modes", delay=60).enqueue(1)
    topics.pause_topic("modes", by="anna", reason="the bank is away")
    assert "modes" not in unserved(page())


def test_a_worker_is_told_to_stop_and_to_go_on(
    as_user: AsUser, beat: Callable[..., None], delayq: RedisStore
) -> None:
    beat()
    client = as_user("view_dashboard", "pause_topic")
    answer = client.post(address("worker_quiet"), {"worker": NAME, "reason": "it eats memory"})
    assert answer["Location"] == address("workers")
    assert delayq.workers.is_quiet(NAME)
    text = read(client.get(address("workers")).content.decode())
    assert f"{NAME} claims no more messages" in text
    assert "Resume claiming" in text
    assert "Stop claiming" not in text
    client.post(address("worker_unquiet"), {"worker": NAME})
    assert not delayq.workers.is_quiet(NAME)
    done = OperatorAction.objects.order_by("pk").values_list(
        "action", "selection", "reason", "count"
    )
    assert list(done) == [
        ("quiet", f"worker {NAME}", "it eats memory", 1),
        ("unquiet", f"worker {NAME}", "", 1),
    ]


def test_a_worker_that_has_ended_meanwhile_is_told_in_words(
    as_user: AsUser, delayq: RedisStore
) -> None:
    client = as_user("view_dashboard", "pause_topic")
    for worker in ("gone:1:ab", "", "\0", HOSTILE):
        answer = client.post(address("worker_quiet"), {"worker": worker}, follow=True)
        assert "it may have ended" in read(answer.content.decode())
        assert "<script>alert" not in answer.content.decode()
    assert not OperatorAction.objects.exists()


def test_two_operators_who_stop_the_same_worker_agree(
    as_user: AsUser, beat: Callable[..., None], delayq: RedisStore
) -> None:
    beat()
    for _ in range(2):
        as_user("view_dashboard", "pause_topic").post(address("worker_quiet"), {"worker": NAME})
    assert delayq.workers.is_quiet(NAME)
    assert len(set(OperatorAction.objects.values_list("operator", flat=True))) == 2


def test_who_may_only_look_has_no_buttons(
    as_user: AsUser, beat: Callable[..., None], delayq: RedisStore
) -> None:
    beat()
    client = as_user("view_dashboard")
    assert (
        "Stop claiming"
        not in client.get(address("workers")).content.decode().partition("</table>")[0]
    )
    assert client.post(address("worker_quiet"), {"worker": NAME}).status_code == 403
    assert not delayq.workers.is_quiet(NAME)


def test_without_redis_the_page_says_so(as_user: AsUser, delayq: RedisStore) -> None:
    client = as_user("view_dashboard")
    with unreachable():
        assert client.get(address("workers")).status_code == 503


def test_what_a_worker_says_is_inert(page: Callable[[], str], beat: Callable[..., None]) -> None:
    said: dict[str, Any] = {
        "host": HOSTILE,
        "version": HOSTILE,
        "settled": {HOSTILE: 1},
        HOSTILE: {HOSTILE: HOSTILE},
    }
    beat(HOSTILE, topics=[HOSTILE, "orders"], **said)
    text = page()
    assert "alert(1)" in text
    assert "<script>alert" not in text
    assert 'value="</small>' not in text
