"""manage.py delayq top: one picture of the queue, on a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq.management import terminal
from django_delayq.management.verbs import top
from django_delayq.stats import overview
from tests.admin.test_running_page import DEFAULT, beat, claim
from tests.app.tasks import record
from tests.faults import unreachable
from tests.hands import Hands
from tests.stats.attention.test_conditions import overdue

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    overview.reader_of.cache_clear()
    yield
    overview.reader_of.cache_clear()


def once(*args: str) -> str:
    """What it prints."""
    out = StringIO()
    call_command("delayq", "top", *args, stdout=out)
    return out.getvalue()


@pytest.fixture
def busy(hands: Hands) -> None:
    """One message runs for three minutes, another has been overdue for ten."""
    record.using(key="report:7").enqueue(7)
    (lease,) = claim(hands, DEFAULT, ago=200)
    began_ms = int(hands.store.clock_ms()) - 180_000
    beat(hands, begun={lease.id.hex(): [began_ms, "delayq-pool-3"]})
    overdue()


def test_one_picture_has_what_is_wrong_the_topics_and_what_runs(busy: None) -> None:
    text = once("--once")
    first, *lines = text.splitlines()
    assert first.startswith("delayq  ") and "1 worker, 1 in the backlog, 1 running" in first
    assert "!! default: lag 10 min" in lines
    (topic,) = [line for line in lines if line.startswith("default ")]
    assert "10 min" in topic
    (message,) = [line for line in lines if "report:7" in line]
    for words in ("3 min", "record", "web-7:4711", "delayq-pool-3"):
        assert words in message


def test_programs_get_json(busy: None) -> None:
    found = json.loads(once("--json"))
    assert found["attention"] == [{"level": "critical", "words": "default: lag 10 min"}]
    assert found["running"][0]["key"] == "report:7"


def test_it_is_drawn_again_until_ctrl_c(busy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    pictures: list[str] = []

    def sleep(seconds: float) -> None:
        console = Console(file=StringIO(), width=200)
        console.print(terminal.drawn(top._parts(), 200, 40))
        pictures.append(console.file.getvalue())  # type: ignore[attr-defined]
        if len(pictures) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(top.time, "sleep", sleep)
    once()
    assert len(pictures) == 2
    assert "lag 10 min" in pictures[0] and "report:7" in pictures[0]


def test_a_small_terminal_has_fewer_columns_and_rows_and_cuts_no_figure(busy: None) -> None:
    from rich.console import Console

    for width, height in ((50, 14), (80, 24), (120, 40)):
        console = Console(file=StringIO(), width=width, height=height)
        console.print(terminal.drawn(top._parts(), width, height))
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        text = "\n".join(lines)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        assert "10 min" in text and "3 min" in text and "report:7" in text
        assert ("per second" in text, "thread" in text) == (width == 120,) * 2
        assert ("more" in text) == (height == 14)


def test_without_redis_it_says_so(hands: Hands) -> None:
    with unreachable(), pytest.raises(CommandError, match="Cannot reach Redis"):
        once("--once")


def test_a_hostile_key_obeys_no_terminal(hands: Hands) -> None:
    record.using(key="a\x1b[2Jb").enqueue(1)
    claim(hands, DEFAULT)
    text: Any = once("--once")
    assert "\x1b" not in text and "a\\x1b[2Jb" in text
