"""Tells people and log collectors what the worker does: a receiver of signals that writes log
records."""

from __future__ import annotations

import json
import logging
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...core import signals
from ...core.signals import Event, Topic
from ...core.text import on_one_line
from ...core.times import in_words

logger = logging.getLogger("delayq.worker")

#: Lines per second for successes; what is above appears only in the summary.
LINES_PER_SECOND = 50
#: Of what is put off, one line per task is a warning in so many seconds: a crowd of them is one
#: mistake, met again and again.
WARN_AGAIN = 60.0
SUMMARY_INTERVAL = 60.0
#: Most characters of a traceback: an exception may carry a whole document.
MAX_TRACEBACK = 16_000
SAMPLES = 2_000

_MARKS = {
    "acked": "✓", "retried": "↻", "snoozed": "z", "put_off": "…", "dead": "✗",
    "released": "←", "reclaimed": "←", "expired": "⌛", "lease_lost": "!",
}  # fmt: skip
_LEVELS = {"dead": logging.ERROR, "retried": logging.WARNING, "lease_lost": logging.WARNING}
_LIMITED = ("acked", "released")


class Console:
    """Connects itself to the worker's signals. Counts every event, shows up to 50 successes a
    second."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lateness: list[float] = []
        self._window = 0.0
        self._lines = 0
        self._warned_at: dict[str, float] = {}
        self._summary_at = time.monotonic() + SUMMARY_INTERVAL
        # Signals hold their receivers weakly; these functions live as long as the console.
        self._receivers = [self._connect(name) for name in _MARKS]

    def close(self) -> None:
        """Hear no more."""
        for name, receiver in zip(_MARKS, self._receivers, strict=True):
            getattr(signals, name).disconnect(receiver)

    def _connect(self, name: str) -> Any:
        def receive(sender: Topic, events: Sequence[Event], **kwargs: Any) -> None:
            self._take(name, sender, events)

        getattr(signals, name).connect(receive)
        return receive

    def _take(self, name: str, topic: str, events: Sequence[Event]) -> None:
        self.counts[name] += len(events)
        for event in events[: self._allowed(name, len(events))]:
            if name == "acked":
                self._lateness.append(event.lateness_ms)
            level = (
                self._put_off_level(event) if name == "put_off" else _LEVELS.get(name, logging.INFO)
            )
            if logger.isEnabledFor(level):
                text, values = _text(name, topic, event)
                fields = _fields(name, topic, event)
                logger.log(level, text, *values, exc_info=event.error, extra={"delayq": fields})

    def _put_off_level(self, event: Event) -> int:
        now, what = time.monotonic(), f"{event.task} {event.reason}"
        if now - self._warned_at.get(what, -WARN_AGAIN) < WARN_AGAIN:
            return logging.DEBUG
        self._warned_at[what] = now
        return logging.WARNING

    def _allowed(self, name: str, wanted: int) -> int:
        now = time.monotonic()
        if now - self._window >= 1.0:
            self._window, self._lines = now, 0
        allowed = (
            min(wanted, max(0, LINES_PER_SECOND - self._lines)) if name in _LIMITED else wanted
        )
        self._lines += allowed
        return allowed

    def summarise(self) -> None:
        """Once a minute, what happened in it."""
        if time.monotonic() < self._summary_at:
            return
        self._summary_at = time.monotonic() + SUMMARY_INTERVAL
        self._warned_at.clear()
        if self.counts:
            logger.info("· %.0f s: %s%s", SUMMARY_INTERVAL, self.totals(), self._percentiles())
            self.counts.clear()
        self._lateness.clear()

    def totals(self) -> str:
        """Counts in words."""
        counts = list(self.counts.items())  # at once: the settler's thread adds names
        said = (f"{count:,} {_spoken(name)}" for name, count in counts if count)
        return " ".join(said) or "nothing to do"

    def _percentiles(self) -> str:
        if len(self._lateness) < 2:
            return ""
        cuts = statistics.quantiles(self._lateness[-SAMPLES:], n=100)
        return f" · late p50 {cuts[49]:.0f} p99 {cuts[98]:.0f} ms"


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def _text(name: str, topic: str, event: Event) -> tuple[str, list[Any]]:
    """What a record says, and the values in it. Records of one text are one group (Sentry, for
    example), so whatever differs from message to message is a value; the ids are in the fields."""
    text, values = (
        f"{on_one_line(event.task) or topic} {_spoken(name)}".replace("%", "%%"),
        list[Any](),
    )
    if name == "acked":
        text += ", late %s, ran %s"
        values += [in_words(event.lateness_ms / 1000), in_words(event.run_ms / 1000)]
    elif event.reason:
        text += ", attempt %d: %s"
        values += [event.attempt, on_one_line(event.reason, 2_000)]
    if event.delay_ms is not None:
        text += " → again in %s"
        values += [in_words(event.delay_ms / 1000)]
    return text, values


def _fields(name: str, topic: str, event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "event": name,
        "topic": topic,
        "task": event.task,
        "id": event.id,
        "key": event.key,
    }
    fields |= {
        "attempt": event.attempt,
        "late_ms": round(event.lateness_ms, 1),
        "run_ms": round(event.run_ms, 1),
    }
    return {**fields, "delay_ms": event.delay_ms, "error": event.reason or None}


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The end of it. What cannot be shown must not cost the line."""
    try:
        return formatter.formatException(record.exc_info)[-MAX_TRACEBACK:]  # type: ignore[arg-type]
    except Exception as error:
        return f"its traceback cannot be shown ({type(error).__name__})"


class PrettyFormatter(logging.Formatter):
    """`10:02:03.120 ✓ shop.tasks.close_order ...` for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and below it the traceback, indented: nothing in it looks like a line of
        ours."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        event = getattr(record, "delayq", None)
        text = _pretty(event) if event else on_one_line(record.getMessage(), 10_000)
        text = f"{clock}.{int(record.msecs):03d} {text}"
        if not record.exc_info:
            return text
        lines = _traceback(self, record).split("\n")
        return "\n".join([text, *(f"    {on_one_line(line, 10_000)}" for line in lines)])


def _pretty(event: dict[str, Any]) -> str:
    parts = [
        _MARKS[event["event"]],
        f"{on_one_line(event['task']) or event['topic']:<24}",
        event["id"],
    ]
    if event["key"]:
        parts.append(on_one_line(event["key"]))
    if event["event"] == "acked":
        parts.append(
            f"late {in_words(event['late_ms'] / 1000)}  ran {in_words(event['run_ms'] / 1000)}"
        )
    else:
        name, error = _spoken(event["event"]), event["error"]
        parts.append(f"{name}, attempt {event['attempt']}: {on_one_line(error)}" if error else name)
    if event["delay_ms"] is not None:
        parts.append(f"→ again in {in_words(event['delay_ms'] / 1000)}")
    return "  ".join(parts)


class FieldFormatter(logging.Formatter):
    """logfmt or JSON: `at`, `level`, `message`, and the fields of the event."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = (
            time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z"
        )
        fields = {"at": at, "level": record.levelname.lower()}
        event = getattr(record, "delayq", None)
        fields |= (
            {k: v for k, v in event.items() if v is not None}
            if event
            else {"message": record.getMessage()}
        )
        if record.exc_info:
            fields["exception"] = _traceback(self, record)
        if self._as_json:
            return _json(fields)
        return " ".join(f"{name}={_logfmt(value)}" for name, value in fields.items())


def _logfmt(value: Any) -> str:
    text = str(value)
    return _json(text) if not text.isprintable() or not text or set(text) & set(' "=') else text


def _json(value: Any) -> str:
    """Readable, but nothing that a terminal obeys or UTF-8 cannot carry, and one line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value).replace("\x7f", "\\u007f")


def configure_logging(style: str, verbosity: int) -> None:
    """Send the package's records to the terminal, unless the project has said where they go."""
    root = logging.getLogger("delayq")
    root.setLevel([logging.WARNING, logging.INFO, logging.INFO, logging.DEBUG][min(verbosity, 3)])
    if root.handlers or logging.getLogger().handlers:
        return
    if style == "auto":
        style = "pretty" if sys.stdout.isatty() else "logfmt"
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        PrettyFormatter() if style == "pretty" else FieldFormatter(style == "json")
    )
    root.addHandler(handler)
