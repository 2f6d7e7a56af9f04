"""What settings make of the rows: which there are, what they show, and in which time zone."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.utils import timezone as django_timezone

from django_delayq.core.exceptions import NoResult
from django_delayq.core.times import stored_ms
from tests.app.tasks import answer, noop
from tests.archive.test_archive_rows import NOW_US, body
from tests.hands import DEFAULT, ORDERS, Hands, lose_redis, only_row, put_entry, stored_record

pytestmark = pytest.mark.databases


@pytest.mark.parametrize(
    ("archive", "states"), [("all", ["acked", "dead"]), ("dead", ["dead"]), ("none", [])]
)
def test_a_topic_says_what_is_archived(
    hands: Hands, settings: Any, archive: str, states: list[str]
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"default": {"archive": archive}}}
    put_entry(hands.store, DEFAULT, record=stored_record(NOW_US, b"[1]"))
    put_entry(hands.store, DEFAULT, record=stored_record(NOW_US + 1, b"[1]"), state="dead")
    assert sorted(row.state for row in hands.archive()) == states
    assert hands.left()[DEFAULT] == 0


def test_the_setting_of_all_topics_counts_where_a_topic_says_nothing(
    hands: Hands, settings: Any
) -> None:
    settings.DELAYQ = {
        **settings.DELAYQ,
        "ARCHIVE": "none",
        "TOPICS": {"orders": {"archive": "all"}},
    }
    put_entry(hands.store, DEFAULT, record=stored_record(NOW_US, b"[1]"))
    put_entry(hands.store, ORDERS, record=stored_record(NOW_US, b"[1]"))
    assert [row.topic for row in hands.archive()] == ["orders"]


def hide(
    topic: str, task: str, args: list[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Redacts."""
    return ["***", topic, task, *args[1:]], dict.fromkeys(kwargs, "***")


def hide_wrongly(*given: Any) -> Any:
    """Redacts into what is not JSON."""
    return [object()], {}


def test_redact_changes_what_is_archived(hands: Hands, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDACT": f"{__name__}.hide"}
    noop.enqueue("secret", 2, password="secret")
    hands.work()
    hands.archive()
    shown = {"args": ["***", "default", "tests.app.tasks.noop", 2], "kwargs": {"password": "***"}}
    assert body(only_row()) == {**shown, "redaction": "done"}, "marked, so that nobody replays it"


@pytest.mark.parametrize("redact", [f"{__name__}.hide_wrongly", "no.such.function"])
def test_a_redactor_that_fails_leaves_the_arguments_out(
    hands: Hands, settings: Any, redact: str
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDACT": redact}
    noop.enqueue("secret")
    hands.work()
    hands.archive()
    assert body(only_row()) == {"args": [], "kwargs": {}, "redaction": "failed"}


def test_redact_keeps_what_cannot_be_read_out_of_the_archive(hands: Hands, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDACT": f"{__name__}.hide"}
    damaged = stored_record(NOW_US, b'["secret"')
    put_entry(hands.store, record=damaged)
    hands.archive()
    assert "record" not in body(only_row())


def test_without_use_tz_instants_are_local(hands: Hands, settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Tokyo"
    put_entry(hands.store, record=stored_record(NOW_US, b"[1]"))
    hands.archive()
    assert only_row().enqueued_at == datetime(2025, 11, 20, 18, 50, 0, 123456)


def test_without_use_tz_an_activated_time_zone_changes_nothing(settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Tokyo"
    with django_timezone.override("America/New_York"):
        assert stored_ms(NOW_US / 1000) == datetime(2025, 11, 20, 18, 50, 0, 123456)


def test_redact_changes_results_too(hands: Hands, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDACT": f"{__name__}.hide"}
    handle = answer.enqueue("secret")
    hands.work()
    assert handle.wait() == "secret"  # Redis has what the task returned
    hands.archive()
    assert only_row().result == '{"result":"***","redaction":"done"}'
    lose_redis(hands.store)
    with pytest.raises(NoResult, match="redacted"):
        handle.wait()


def test_a_redact_that_fails_leaves_the_result_out(hands: Hands, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDACT": f"{__name__}.hide_wrongly"}
    answer.enqueue("secret")
    hands.work()
    hands.archive()
    assert only_row().result == '{"redaction":"failed"}'
