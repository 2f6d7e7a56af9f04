"""What a worker prints."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq.core import signals
from django_delayq.core.signals import Event
from django_delayq.worker.process import console as module
from django_delayq.worker.process.console import (
    Console,
    FieldFormatter,
    PrettyFormatter,
    configure_logging,
)

ID = "01938f2e7a5c7d3e8f00aa11bb22cc33"
NASTY = "bad\x1b[31m\r\nfake=1 \x07 \x7f \x9b31m \u2028 \ud800"


@pytest.fixture
def console(caplog: pytest.LogCaptureFixture) -> Iterator[Console]:
    caplog.set_level(logging.INFO, "delayq")
    console = Console()
    yield console
    console.close()


def tell(name: str, *events: Event) -> None:
    signals.report(getattr(signals, name), "orders", events)


def event(**fields: Any) -> Event:
    return Event(**({"id": ID, "task": "shop.close_order", "attempt": 1} | fields))


def raised(text: str) -> ValueError:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


def line(caplog: pytest.LogCaptureFixture, formatter: logging.Formatter) -> str:
    """The newest record as the formatter writes it."""
    return formatter.format(caplog.records[-1])


def test_success_tells_lateness_and_run_time(
    console: Console, caplog: pytest.LogCaptureFixture
) -> None:
    tell("acked", event(key="order:5", lateness_ms=2.4, run_ms=2400))
    assert caplog.messages == ["shop.close_order acked, late 2 ms, ran 2.4 s"]
    said = line(caplog, PrettyFormatter()).split(" ", 1)[1]
    assert said == f"✓  shop.close_order          {ID}  order:5  late 2 ms  ran 2.4 s"
    assert caplog.records[0].levelno == logging.INFO


@pytest.mark.parametrize(
    ("name", "fields", "text", "level"),
    [
        ("retried", {"reason": "E: x", "delay_ms": 7000}, "↻ retried, attempt 1: E: x → again in 7 s", 30),
        ("dead", {"reason": "no such order"}, "✗ dead, attempt 1: no such order", 40),
        ("snoozed", {"delay_ms": 30_000}, "z snoozed → again in 30 s", 20),
        ("released", {}, "← released", 20),
        ("reclaimed", {"reason": "lease ended"}, "← reclaimed, attempt 1: lease ended", 20),
        ("expired", {}, "⌛ expired", 20),
        ("lease_lost", {}, "! lease lost", 30),
        ("put_off", {"reason": "old: x", "delay_ms": 5000}, "… put off, attempt 1: old: x → again in 5 s", 30),
    ],
)  # fmt: skip
def test_every_end_has_a_line(
    console: Console,
    caplog: pytest.LogCaptureFixture,
    name: str,
    fields: Any,
    text: str,
    level: int,
) -> None:
    tell(name, event(**fields))
    said = line(caplog, PrettyFormatter()).split()[1:]
    assert [word for word in said if word not in ("shop.close_order", ID)] == text.split()
    shown, _, again = text[2:].partition(" → ")
    assert caplog.messages == [f"shop.close_order {shown}" + (f" → {again}" if again else "")]
    assert caplog.records[0].levelno == level
    assert console.counts == {name: 1}


def test_failed_attempt_has_its_traceback_in_one_record(
    console: Console, caplog: pytest.LogCaptureFixture
) -> None:
    tell("retried", event(reason="ValueError: order 5", delay_ms=7000, error=raised("order 5")))
    tell("dead", event(reason="ValueError: order 5", error=raised("order 5")))
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    for formatter in (PrettyFormatter(), FieldFormatter(False), FieldFormatter(True)):
        assert "in raised" in line(caplog, formatter)
        assert "ValueError: order 5" in line(caplog, formatter)


@pytest.mark.parametrize(
    "formatter", [PrettyFormatter(), FieldFormatter(False), FieldFormatter(True)]
)
def test_whatever_was_raised_has_its_line(
    console: Console, caplog: pytest.LogCaptureFixture, formatter: logging.Formatter
) -> None:
    tell("dead", event(reason="x", error=raised("x" * 1_000_000)))
    assert len(line(caplog, formatter)) < 2 * module.MAX_TRACEBACK
    unspeakable = SyntaxError("bytes", ("file", 1, 1, b"text"))  # traceback cannot format it
    exc_info = (SyntaxError, unspeakable, None)
    told = formatter.format(logging.LogRecord("delayq", 40, __file__, 1, "x", (), exc_info))
    assert "its traceback cannot be shown (TypeError)" in told


def test_records_of_one_kind_of_failure_have_one_text(
    console: Console, caplog: pytest.LogCaptureFixture
) -> None:
    """So that what collects errors sees one group; ids, keys and what differs from message to
    message are beside it."""
    for number in range(3):
        key, reason = f"order:{number}", f"ValueError: order {number}"
        tell("dead", event(id=f"{number:032x}", key=key, reason=reason, attempt=number))
    assert {record.msg for record in caplog.records} == {"shop.close_order dead, attempt %d: %s"}
    assert [record.delayq["id"] for record in caplog.records] == [
        f"{number:032x}" for number in range(3)
    ]  # type: ignore[attr-defined]


def test_percent_sign_is_no_placeholder(console: Console, caplog: pytest.LogCaptureFixture) -> None:
    tell("dead", event(task="100%d", reason="5 % s"))
    assert caplog.messages == ["100%d dead, attempt 1: 5 % s"]


def test_crowd_that_is_put_off_is_one_warning_a_minute(
    console: Console, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    tell("put_off", *[event(task="shop.new", reason="unknown_task: x")] * 100)
    tell("put_off", event(task="shop.new", reason="bad_args: y"))
    now[0] += module.WARN_AGAIN
    tell("put_off", event(task="shop.new", reason="unknown_task: x"))
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
    assert console.counts["put_off"] == 102


def test_topic_stands_for_a_task_that_is_unknown(
    console: Console, caplog: pytest.LogCaptureFixture
) -> None:
    tell("expired", event(task=""))
    assert "orders" in caplog.messages[0]


def test_more_than_50_successes_a_second_collapse(
    console: Console, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    for _ in range(3):
        tell("acked", *[event()] * 100)
    assert len(caplog.records) == 50
    assert console.counts["acked"] == 300
    now[0] += 1
    tell("acked", *[event()] * 30)
    assert len(caplog.records) == 80


def test_failures_never_collapse(console: Console, caplog: pytest.LogCaptureFixture) -> None:
    tell("acked", *[event()] * 100)
    tell("dead", *[event(reason="x")] * 60)
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 60


def test_summary_comes_once_a_minute(
    console: Console, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell("acked", *[event(lateness_ms=n) for n in range(1, 41)])
    tell("dead", event(reason="x"))
    caplog.clear()
    console.summarise()
    assert caplog.messages == []
    monkeypatch.setattr(console, "_summary_at", 0.0)
    console.summarise()
    assert caplog.messages == ["· 60 s: 40 acked 1 dead · late p50 20 p99 41 ms"]
    monkeypatch.setattr(console, "_summary_at", 0.0)
    console.summarise()
    assert len(caplog.messages) == 1


def test_totals_in_words(console: Console) -> None:
    assert console.totals() == "nothing to do"
    tell("acked", *[event()] * 1200)
    assert console.totals() == "1,200 acked"


def test_closed_console_says_nothing(console: Console, caplog: pytest.LogCaptureFixture) -> None:
    console.close()
    tell("acked", event())
    assert caplog.messages == []


# Formats


def test_pretty_line_has_a_clock(console: Console, caplog: pytest.LogCaptureFixture) -> None:
    tell("acked", event())
    clock, text = line(caplog, PrettyFormatter()).split(" ", 1)
    assert len(clock) == len("10:02:03.120")
    assert text.startswith("✓  shop.close_order")


def test_logfmt_line(console: Console, caplog: pytest.LogCaptureFixture) -> None:
    tell("retried", event(reason='ValueError: "x"', delay_ms=7000, run_ms=3.14159))
    said = line(caplog, FieldFormatter(False))
    assert said.startswith("at=20")
    assert said.split(" ", 1)[1] == (
        f"level=warning event=retried topic=orders task=shop.close_order id={ID} attempt=1 "
        f"late_ms=0.0 run_ms=3.1 "
        'delay_ms=7000 error="ValueError: \\"x\\""'
    )


def test_json_line(console: Console, caplog: pytest.LogCaptureFixture) -> None:
    tell("dead", event(key="order:5", reason="löschen"))
    said = json.loads(line(caplog, FieldFormatter(True)))
    assert said.pop("at").endswith("Z")
    assert said == {
        "level": "error", "event": "dead", "topic": "orders", "task": "shop.close_order", "id": ID, "key": "order:5",
        "attempt": 1, "late_ms": 0.0, "run_ms": 0.0, "error": "löschen",
    }  # fmt: skip


@pytest.mark.parametrize(
    "formatter", [PrettyFormatter(), FieldFormatter(False), FieldFormatter(True)]
)
def test_other_records_are_written_too(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("x")
    except ValueError as error:
        exc_info = (ValueError, error, error.__traceback__)
    said = formatter.format(
        logging.LogRecord("delayq", 30, __file__, 1, "Redis is %s", ("back",), exc_info)
    )
    said = said.replace("\\n", "\n")
    assert "Redis is back" in said
    assert "ValueError: x" in said


@pytest.mark.parametrize(
    "formatter", [PrettyFormatter(), FieldFormatter(False), FieldFormatter(True)]
)
@pytest.mark.parametrize("field", ["reason", "key", "task"])
def test_messages_cannot_write_lines_or_colours_of_their_own(
    console: Console, caplog: pytest.LogCaptureFixture, formatter: logging.Formatter, field: str
) -> None:
    tell("dead", event(**{"reason": "x", field: NASTY}))
    said = line(caplog, formatter)
    assert said.isprintable(), said
    assert said.encode()


def test_traceback_cannot_look_like_lines_of_ours(
    console: Console, caplog: pytest.LogCaptureFixture
) -> None:
    tell("dead", event(reason="x", error=raised("a\r\n12:00:00.000 ✓ fake \x1b[2J")))
    _, *below = line(caplog, PrettyFormatter()).split("\n")
    assert all(one.startswith("    ") and one.isprintable() for one in below)


@pytest.mark.parametrize("nasty", ["\x1b[31m", "\x9b31m", "\u2028", "\r", "\t"])
def test_single_word_with_a_control_character_is_escaped_in_logfmt(
    console: Console, caplog: pytest.LogCaptureFixture, nasty: str
) -> None:
    tell("dead", event(reason=f"bad{nasty}word"))
    assert line(caplog, FieldFormatter(False)).isprintable()


# Where it goes

Configure = Callable[..., logging.Logger]


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Iterator[Configure]:
    """Configures logging as in a project that says nothing about it, but for the handlers that are
    given."""
    logger = logging.getLogger("delayq")
    level = logger.level

    def call(style: str, verbosity: int, *handlers: logging.Handler) -> logging.Logger:
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        monkeypatch.setattr(logger, "handlers", list(handlers))
        configure_logging(style, verbosity)
        return logger

    yield call
    logger.setLevel(level)


@pytest.mark.parametrize(
    ("style", "pretty"), [("pretty", True), ("logfmt", False), ("json", False), ("auto", False)]
)
def test_style_chooses_the_format(configure: Configure, style: str, pretty: bool) -> None:
    (handler,) = configure(style, 1).handlers
    assert isinstance(handler.formatter, PrettyFormatter if pretty else FieldFormatter)


@pytest.mark.parametrize(("verbosity", "level"), [(0, 30), (1, 20), (2, 20), (3, 10), (9, 10)])
def test_verbosity_chooses_the_level(configure: Configure, verbosity: int, level: int) -> None:
    assert configure("auto", verbosity).level == level


def test_projects_own_handlers_are_left_alone(configure: Configure) -> None:
    own = logging.NullHandler()
    assert configure("json", 1, own).handlers == [own]
