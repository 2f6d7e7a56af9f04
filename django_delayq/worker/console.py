"""Tells people and log collectors what the worker does: a receiver of signals that writes log records."""

from __future__ import annotations

import json
import logging
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .. import signals
from ..signals import Event
from ..times import in_words

logger = logging.getLogger("delayq.worker")

#: Lines per second for successes; what is above appears only in the summary.
LINES_PER_SECOND = 50
SUMMARY_INTERVAL = 60.0
SAMPLES = 2_000

_MARKS = {
    "acked": "✓", "retried": "↻", "snoozed": "z", "dead": "✗",
    "released": "←", "reclaimed": "←", "expired": "⌛", "lease_lost": "!",
}  # fmt: skip
_LEVELS = {"dead": logging.ERROR, "retried": logging.WARNING, "lease_lost": logging.WARNING}


class Console:
    """Connects itself to the worker's signals. Counts every event, shows up to 50 successes a second."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lateness: list[float] = []
        self._window = 0.0
        self._lines = 0
        self._summary_at = time.monotonic() + SUMMARY_INTERVAL
        # Signals hold their receivers weakly; these functions live as long as the console.
        self._receivers = [self._connect(name) for name in _MARKS]

    def close(self) -> None:
        """Hear no more."""
        for name, receiver in zip(_MARKS, self._receivers, strict=True):
            getattr(signals, name).disconnect(receiver)

    def _connect(self, name: str) -> Any:
        def receive(sender: str, events: Sequence[Event], **kwargs: Any) -> None:
            self._take(name, sender, events)

        getattr(signals, name).connect(receive)
        return receive

    def _take(self, name: str, topic: str, events: Sequence[Event]) -> None:
        self.counts[name] += len(events)
        for event in events[: self._allowed(name, len(events))]:
            if name == "acked":
                self._lateness.append(event.lateness_ms)
            level = _LEVELS.get(name, logging.INFO)
            logger.log(level, _line(name, topic, event), extra={"delayq": _fields(name, topic, event)})

    def _allowed(self, name: str, wanted: int) -> int:
        now = time.monotonic()
        if now - self._window >= 1.0:
            self._window, self._lines = now, 0
        allowed = min(wanted, max(0, LINES_PER_SECOND - self._lines)) if name in ("acked", "released") else wanted
        self._lines += allowed
        return allowed

    def summarise(self) -> None:
        """Once a minute, what happened in it."""
        if time.monotonic() < self._summary_at:
            return
        self._summary_at = time.monotonic() + SUMMARY_INTERVAL
        if self.counts:
            logger.info("· %.0f s: %s%s", SUMMARY_INTERVAL, self.totals(), self._percentiles())
            self.counts.clear()
        self._lateness.clear()

    def totals(self) -> str:
        """Counts in words."""
        return " ".join(f"{count:,} {name}" for name, count in self.counts.items() if count) or "nothing to do"

    def _percentiles(self) -> str:
        if len(self._lateness) < 2:
            return ""
        cuts = statistics.quantiles(self._lateness[-SAMPLES:], n=100)
        return f" · late p50 {cuts[49]:.0f} p99 {cuts[98]:.0f} ms"


def _line(name: str, topic: str, event: Event) -> str:
    parts = [_MARKS[name], f"{_clean(event.task) or topic:<24}", f"{event.id[:4]}…{event.id[-4:]}"]
    if event.key:
        parts.append(_clean(event.key))
    if name == "acked":
        parts.append(f"late {in_words(event.lateness_ms / 1000)}  ran {in_words(event.run_ms / 1000)}")
    else:
        parts.append(f"{name}, attempt {event.attempt}: {_clean(event.reason)}" if event.reason else name)
    if event.delay_ms is not None:
        parts.append(f"→ again in {in_words(event.delay_ms / 1000)}")
    return "  ".join(parts)


def _clean(text: str) -> str:
    """One line without control characters: what a message holds must not write log lines of its own."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:300])


def _fields(name: str, topic: str, event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = {"event": name, "topic": topic, "task": event.task, "id": event.id, "key": event.key}
    fields |= {"attempt": event.attempt, "late_ms": round(event.lateness_ms, 1), "run_ms": round(event.run_ms, 1)}
    return {**fields, "delay_ms": event.delay_ms, "error": event.reason or None}


class PrettyFormatter(logging.Formatter):
    """`10:02:03.120 ✓ shop.tasks.close_order ...` for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{clock}.{int(record.msecs):03d} {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class FieldFormatter(logging.Formatter):
    """logfmt or JSON: `at`, `level`, `message`, and the fields of the event."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        fields = {"at": at, "level": record.levelname.lower()}
        event = getattr(record, "delayq", None)
        fields |= {k: v for k, v in event.items() if v is not None} if event else {"message": record.getMessage()}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
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
    handler.setFormatter(PrettyFormatter() if style == "pretty" else FieldFormatter(style == "json"))
    root.addHandler(handler)
