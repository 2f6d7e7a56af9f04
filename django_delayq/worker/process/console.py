"""Writes log records about the worker's messages, for people and log collectors: a receiver of
signals."""

from __future__ import annotations

import json
import logging
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from ...core import signals
from ...core.present import on_one_line
from ...core.signals import Event, Topic
from ...core.times import in_words

logger = logging.getLogger("delayq.worker")

#: Lines per second for successes. More of them appear only in the summary.
LINES_PER_SECOND = 50
#: For messages that are put off, one line per task and cause is a warning in so many seconds. Many
#: of them are one mistake that is met again and again.
WARN_AGAIN = 60.0
SUMMARY_INTERVAL = 60.0
#: Most characters of a traceback: an exception may carry a whole document.
MAX_TRACEBACK = 16_000
SAMPLES = 2_000

_MARKS = {
    "acked": "✓", "retried": "↻", "snoozed": "z", "put_off": "…", "dead": "✗",
    "released": "←", "reclaimed": "←", "expired": "⌛", "lease_lost": "!",
}  # fmt: skip
_LEVELS = {
    "dead": logging.ERROR,
    "retried": logging.WARNING,
    "lease_lost": logging.WARNING,
    "put_off": logging.DEBUG,
}
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
        # Signals hold their receivers weakly; these live as long as the console.
        self._receivers = {name: partial(self._receive, name) for name in _MARKS}
        for name, receiver in self._receivers.items():
            getattr(signals, name).connect(receiver)

    def close(self) -> None:
        """Disconnect from the signals."""
        for name, receiver in self._receivers.items():
            getattr(signals, name).disconnect(receiver)

    def _receive(self, name: str, sender: Topic, events: Sequence[Event], **kwargs: Any) -> None:
        self.counts[name] += len(events)
        now, allowed = time.monotonic(), len(events)
        if now - self._window >= 1.0:
            self._window, self._lines = now, 0
        if name in _LIMITED:
            allowed = min(allowed, max(0, LINES_PER_SECOND - self._lines))
        self._lines += allowed
        for event in events[:allowed]:
            if name == "acked":
                self._lateness.append(event.lateness_ms)
            level = _LEVELS.get(name, logging.INFO)
            if name == "put_off":
                cause = f"{event.task} {event.reason}"
                if now - self._warned_at.get(cause, -WARN_AGAIN) >= WARN_AGAIN:
                    self._warned_at[cause] = now
                    level = logging.WARNING
            if logger.isEnabledFor(level):
                text, values = _text(name, sender, event)
                fields = {
                    "event": name,
                    "topic": sender,
                    "task": event.task,
                    "id": event.id,
                    "key": event.key,
                    "attempt": event.attempt,
                    "late_ms": round(event.lateness_ms, 1),
                    "run_ms": round(event.run_ms, 1),
                    "delay_ms": event.delay_ms,
                    "error": event.reason or None,
                }
                logger.log(level, text, *values, exc_info=event.error, extra={"delayq": fields})

    def summarise(self) -> None:
        """Log once a minute what happened in it."""
        if time.monotonic() < self._summary_at:
            return
        self._summary_at = time.monotonic() + SUMMARY_INTERVAL
        self._warned_at.clear()
        if self.counts:
            late = ""
            if len(self._lateness) >= 2:
                cuts = statistics.quantiles(self._lateness[-SAMPLES:], n=100)
                late = f" · late p50 {cuts[49]:.0f} p99 {cuts[98]:.0f} ms"
            logger.info("· %.0f s: %s%s", SUMMARY_INTERVAL, self.totals(), late)
            self.counts.clear()
        self._lateness.clear()

    def totals(self) -> str:
        """Counts in words."""
        counts = list(self.counts.items())  # at once: the settler's thread adds names
        words = (f"{count:,} {_spoken(name)}" for name, count in counts if count)
        return " ".join(words) or "nothing to do"


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def _text(name: str, topic: str, event: Event) -> tuple[str, list[Any]]:
    """The text of a log record, and its values. Collectors such as Sentry group records by their
    text, so the parts that differ from message to message are values. The ids are in the fields."""
    text = f"{on_one_line(event.task) or topic} {_spoken(name)}".replace("%", "%%")
    values: list[Any] = []
    if name == "acked":
        text += ", late %s, ran %s"
        values = [in_words(event.lateness_ms / 1000), in_words(event.run_ms / 1000)]
    elif event.reason:
        text += ", attempt %d: %s"
        values = [event.attempt, on_one_line(event.reason, 2_000)]
    if event.delay_ms is not None:
        text += " → again in %s"
        values += [in_words(event.delay_ms / 1000)]
    return text, values


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The end of the traceback. One that cannot be formatted must not cost the line."""
    try:
        return formatter.formatException(record.exc_info)[-MAX_TRACEBACK:]  # type: ignore[arg-type]
    except Exception as error:
        return f"its traceback cannot be shown ({type(error).__name__})"


class PrettyFormatter(logging.Formatter):
    """`10:02:03.120 ✓ shop.tasks.close_order ...` for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and below it the traceback, indented: nothing in it looks like a line of
        ours."""
        event = getattr(record, "delayq", None)
        if event is None:
            parts = [on_one_line(record.getMessage(), 10_000)]
        else:
            task, error = on_one_line(event["task"]) or event["topic"], event["error"]
            parts = [_MARKS[event["event"]], f"{task:<24}", event["id"]]
            if event["key"]:
                parts.append(on_one_line(event["key"]))
            if event["event"] == "acked":
                late, ran = in_words(event["late_ms"] / 1000), in_words(event["run_ms"] / 1000)
                parts.append(f"late {late}  ran {ran}")
            else:
                why = f", attempt {event['attempt']}: {on_one_line(error)}" if error else ""
                parts.append(f"{_spoken(event['event'])}{why}")
            if event["delay_ms"] is not None:
                parts.append(f"→ again in {in_words(event['delay_ms'] / 1000)}")
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        lines = [f"{clock}.{int(record.msecs):03d} {'  '.join(parts)}"]
        if record.exc_info:
            trace = _traceback(self, record).split("\n")
            lines += [f"    {on_one_line(line, 10_000)}" for line in trace]
        return "\n".join(lines)


class FieldFormatter(logging.Formatter):
    """logfmt or JSON: `at`, `level`, `message`, and the fields of the event."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {"at": f"{second}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        event = getattr(record, "delayq", None) or {"message": record.getMessage()}
        fields |= {name: value for name, value in event.items() if value is not None}
        if record.exc_info:
            fields["exception"] = _traceback(self, record)
        if self._as_json:
            return _json(fields)
        pairs = []
        for name, value in fields.items():
            text = str(value)
            is_plain = text and text.isprintable() and not set(text) & set(' "=')
            pairs.append(f"{name}={text if is_plain else _json(text)}")
        return " ".join(pairs)


def _json(value: Any) -> str:
    """JSON on one line, with readable letters, without characters that a terminal obeys or that
    UTF-8 cannot carry."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value).replace("\x7f", "\\u007f")


def configure_logging(style: str, verbosity: int) -> None:
    """Send the package's records to the terminal, unless the project's LOGGING sends them
    elsewhere."""
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
