"""The pages tell what is wrong: Redis or the database is away, nobody serves a topic, somebody has
paused it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError
from django.test import Client

from django_delayq.client import topics
from django_delayq.models import ArchivedMessage
from django_delayq.operators import operations
from django_delayq.stats import overview
from django_delayq.store.store import RedisStore
from django_delayq.store.topic_state import Pause
from tests.admin import by_hand
from tests.admin.browser import address
from tests.admin.test_overview import HOSTILE, page, text_of
from tests.app.tasks import close_order
from tests.database_faults import without_table


@pytest.mark.django_db(transaction=True)
def test_a_page_without_its_table_says_what_to_do(viewer: Client, delayq: RedisStore, caplog: Any):
    with without_table(ArchivedMessage):
        answer = viewer.get(address("archive"))
    assert answer.status_code == 503
    text = text_of(answer.content.decode())
    assert "Run manage.py migrate." in text
    assert ArchivedMessage._meta.db_table not in text
    assert "A page could not be shown" in caplog.text


def test_a_database_that_goes_away_in_the_midst_of_an_action_leaves_it_open_what_was_done(
    as_user: Callable[..., Client], delayq: RedisStore, monkeypatch: pytest.MonkeyPatch
):
    def lose_it(*args: Any, **options: Any) -> None:
        raise OperationalError("connection to server at db.internal as user delayq_app failed")

    monkeypatch.setattr(operations, "pause", lose_it)
    answer = as_user("view_dashboard", "pause_topic").post(
        address("topic_pause", topic="orders"), {"reason": "the bank is away"}
    )
    text = text_of(answer.content.decode())
    assert answer.status_code == 503
    assert "The database does not answer: OperationalError." in text
    assert "The operation may or may not have been carried out" in text
    assert "db.internal" not in text and "delayq_app" not in text
    assert "Reload" not in text


def test_a_row_that_the_database_refuses_is_a_mistake_and_not_an_outage(
    viewer: Client, shown: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    def refuse() -> None:
        raise IntegrityError("a bug")

    monkeypatch.setattr(overview, "overview", refuse)
    with pytest.raises(IntegrityError):
        viewer.get(address("changelist"))


def test_redis_is_down_and_the_page_says_so(viewer: Client, settings: Any, delayq: RedisStore):
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": "redis://127.0.0.1:1/0"}
    html = page(viewer)
    assert 'id="delayq-problem"' in html and 'role="alert"' in html
    assert "No figures are known yet." in html
    assert "Nothing was enqueued yet" not in html


def test_redis_is_down_and_the_last_figures_are_shown_with_their_time(
    viewer: Client, shown: Callable[..., None]
):
    shown(by_hand.overview(problem=f"Connection refused {HOSTILE}", stale=True))
    html = page(viewer)
    assert '<div class="delayq-stale" data-delayq-figures data-since="10:20:11">' in html
    banner = text_of(re.findall(r'id="delayq-problem".*?</div>', html, re.S)[0])
    assert "Connection refused" in banner
    assert "the last known figures, from 2026-11-20 10:20:11" in banner
    assert "1,200" in html
    assert "<script>alert" not in html


def test_a_topic_that_nobody_serves(viewer: Client, shown: Callable[..., None]):
    shown(by_hand.overview(topics=[by_hand.topic(workers=0), by_hand.topic("mail")]))
    html = page(viewer)
    assert html.count("delayq-badge-err") == 1
    assert "Included, but not starting at the moment: orders (no worker)" in text_of(html)


def test_a_topic_that_only_quiet_workers_serve(viewer: Client, shown: Callable[..., None]):
    quiet = by_hand.worker("two", quiet_requested=True)
    topics = [by_hand.topic(workers=0, quiet_workers=1), by_hand.topic("mail", quiet_workers=1)]
    shown(by_hand.overview(topics=topics, workers=[by_hand.worker("one"), quiet]))
    html = page(viewer)
    assert "Workers 2 1 of them quiet" in text_of(html)
    assert re.search(r'delayq-badge-err">only quiet workers</span>', html)
    assert html.count("only quiet workers") == 1


def test_nothing_waits_for_a_worker_that_is_not_there(viewer: Client, shown: Callable[..., None]):
    shown(by_hand.overview(topics=[by_hand.topic(workers=0, backlog=0, delayed=0, leased=0)]))
    html = page(viewer)
    assert "delayq-held" not in html
    assert html.count("delayq-badge-err") == 0
    assert 'delayq-badge-quiet">no worker</span>' in html


def test_a_paused_topic_is_a_warning_that_says_who_and_why(
    viewer: Client, delayq: RedisStore, db: None
):
    close_order.using(delay=60).enqueue(1)
    topics.pause_topic("orders", by=f"anna {HOSTILE}", reason=f"the bank is away {HOSTILE}")
    html = page(viewer)
    banner = text_of(re.findall(r'<div[^>]*id="delayq-paused".*?</div>', html, re.S)[0])
    assert banner.startswith("Paused: orders by anna &lt;script&gt;")
    assert "the bank is away" in banner and "until somebody resumes it." in banner
    row = re.findall(r'<th scope="row"><a href="[^"]*/orders/">.*?</th>', html, re.S)[0]
    assert "delayq-badge-warn" in row and "delayq-badge-err" not in row
    for character in "\u202e\u200b\x1b":
        assert character not in html
    assert "<script>alert" not in html


def test_a_pause_that_ends_by_itself_says_when(viewer: Client, shown: Callable[..., None]):
    minute = timedelta(minutes=1)
    pause = Pause(by="", reason="", since=by_hand.AT - minute, until=by_hand.AT + 10 * minute)
    shown(by_hand.overview(topics=[by_hand.topic(paused=pause, workers=0)]))
    html = page(viewer)
    assert "until 2026-11-20 10:30:11 , in 10 min" in text_of(html)
    assert "Included, but not starting at the moment: orders (paused)" in text_of(html)


def test_with_nothing_in_use_the_page_says_what_to_do(viewer: Client, shown: Callable[..., None]):
    shown(by_hand.empty())
    html = page(viewer)
    assert "Nothing was enqueued yet" in html
    assert "run_delayq" in html
    assert "delayq-tiles" not in html
