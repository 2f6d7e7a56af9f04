"""manage.py delayq check: a line, and an exit code for cron and Nagios."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from django_delayq import pause_topic
from django_delayq.stats import overview
from tests.app.tasks import close_order, record
from tests.database_faults import database_away
from tests.faults import unreachable
from tests.hands import make_due
from tests.operators.test_replay import dead
from tests.test_readme import ROOT

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("delayq"),
]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing is kept of another test."""
    overview.reader_of.cache_clear()
    yield
    overview.reader_of.cache_clear()


def check(*args: str) -> tuple[int, str]:
    """The exit code and what it writes."""
    out = StringIO()
    try:
        call_command("delayq", "check", *args, stdout=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    return 0, out.getvalue()


def overdue() -> None:
    """A message that fell due long ago."""
    make_due(close_order.enqueue(7))


def test_a_queue_without_messages_is_fine() -> None:
    code, text = check()
    assert code == 0
    assert text.startswith("DELAYQ OK - ") and "topics are fine | " in text
    assert "'orders_lag'=0.000s;60;600 'orders_backlog'=0;; 'orders_dead'=0;1;" in text


def test_a_topic_without_a_worker_is_critical_when_messages_wait() -> None:
    record.using(delay=60).enqueue(1)
    code, text = check()
    assert code == 2
    assert "DELAYQ CRITICAL - default: messages wait and no worker serves the topic" in text


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ([], 2, "(limit 10 min)"),
        (["--critical-lag", "4w", "--warn-lag", "3w"], 2, "lag"),
        (["--warn-backlog", "1"], 2, "orders: 1 due message (limit 1)"),
        (["--topic", "default"], 0, "1 topic is fine"),
    ],
)
def test_limits_of_lag_and_backlog(args: list[str], code: int, words: str) -> None:
    overdue()
    found, text = check(*args)
    assert (found, words in text) == (code, True), text


def test_a_pause_is_a_warning_and_hides_the_lag() -> None:
    overdue()
    pause_topic("orders", reason="provider is down")
    code, text = check()
    assert (code, "lag" in text.partition(" | ")[0]) == (1, False)
    assert "orders: the topic is paused" in text


def test_dead_letters_are_a_warning_from_the_first_on() -> None:
    dead(2)
    assert check()[0] == 1
    code, text = check("--critical-dead", "2")
    assert (code, "default: 2 open dead letters (limit 2)" in text) == (2, True)
    assert check("--warn-dead", "3")[0] == 0


def test_a_hundred_dead_letters_in_an_hour_are_critical_as_on_the_pages() -> None:
    now = datetime.now(tz=timezone.utc)
    dead(99, finished_at=now)
    assert check("--warn-dead", "200")[0] == 0, "the limit for open ones holds for a few"
    dead(finished_at=now)
    code, text = check("--warn-dead", "200")
    assert (code, "100 dead letters in an hour" in text) == (2, True)


def test_programs_get_json() -> None:
    dead()
    code, text = check("--json")
    found: dict[str, Any] = json.loads(text)
    assert (code, found["level"]) == (1, "warning")
    (problem,) = found["problems"]
    assert (problem["level"], problem["topic"]) == ("warning", "default")
    topic = next(row for row in found["topics"] if row["topic"] == "default")
    assert (topic["dead_letters"], topic["paused"]) == (1, False)


def test_without_redis_it_is_critical() -> None:
    with unreachable():
        code, text = check()
    assert (code, text.startswith("DELAYQ CRITICAL - ")) == (2, True)


def test_without_redis_programs_get_their_document_too() -> None:
    with unreachable():
        code, text = check("--json")
    found = json.loads(text)
    assert (code, found["level"], found["topics"]) == (2, "critical", [])
    assert "Cannot reach Redis" in found["problems"][0]["problem"]


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "django", "delayq", "check"],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        cwd=ROOT,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (2, "")


def test_without_the_database_nothing_is_known_of_dead_letters() -> None:
    with database_away():
        code, text = check()
    assert (code, text.startswith("DELAYQ UNKNOWN - ")) == (3, True)


def test_an_unknown_topic_is_unknown() -> None:
    code, text = check("--topic", "gone")
    assert (code, "'gone' is not declared" in text) == (3, True)


def test_what_breaks_a_rule_of_alerts_is_critical(settings: Any) -> None:
    rules = [
        {"kind": "backlog", "limit": 1, "to": "ops@example.com"},
        {"kind": "lag", "limit": 60, "topics": ["default"], "to": "ops@example.com"},
    ]
    settings.DELAYQ = {**settings.DELAYQ, "ALERTS": rules}
    overdue()
    code, text = check("--warn-backlog", "1")
    assert code == 2
    assert "orders: 1 due message (limit 1), by the rule 'backlog' of ALERTS" in text
    assert text.count("due message") == 1
    assert check("--topic", "default")[0] == 0


def test_rules_of_alerts_are_not_known_while_the_database_is_away(settings: Any) -> None:
    rules = [{"kind": "outbox", "limit": 1, "to": "ops@example.com"}]
    settings.DELAYQ = {**settings.DELAYQ, "ALERTS": rules}
    with database_away():
        code, text = check()
    assert code == 3 and "ALERTS" not in text
