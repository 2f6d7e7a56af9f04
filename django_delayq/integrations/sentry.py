"""Sends each failed attempt to Sentry, with its stack and its message as tags: one issue for each
task and class of error."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import sentry_sdk
from sentry_sdk.integrations import Integration
from sentry_sdk.scope import add_global_event_processor
from sentry_sdk.types import Event as SentryEvent
from sentry_sdk.types import Hint
from sentry_sdk.utils import event_from_exception

from ..core import signals
from ..core.signals import Event, Topic


class DelayqIntegration(Integration):
    """For `sentry_sdk.init(integrations=[DelayqIntegration()])`."""

    identifier = "delayq"

    @staticmethod
    def setup_once() -> None:
        """Called by the SDK, once in a process: connects to the signals of failed attempts."""
        for signal, outcome in ((signals.retried, "retried"), (signals.dead, "dead")):
            signal.connect(partial(_capture, outcome), weak=False, dispatch_uid="delayq-sentry")
        add_global_event_processor(_without_lines_of_the_log)


def _capture(outcome: str, sender: Topic, events: Sequence[Event], **kwargs: Any) -> None:
    client = sentry_sdk.get_client()
    if client.get_integration(DelayqIntegration) is None:
        return
    for event in events:
        if event.error is None:  # Reject, or no run: that is no failure of the code
            continue
        captured, hint = event_from_exception(
            event.error,
            client_options=client.options,
            mechanism={"type": "delayq", "handled": outcome == "retried"},
        )
        kind = type(event.error)
        captured["level"] = "error" if outcome == "dead" else "warning"
        captured["fingerprint"] = ["delayq", event.task, f"{kind.__module__}.{kind.__qualname__}"]
        captured["transaction"] = event.task
        captured["tags"] = {
            "delayq.task": event.task,
            "delayq.topic": str(sender),
            "delayq.message_id": event.id,
            "delayq.attempt": str(event.attempt),
            "delayq.outcome": outcome,
        }
        # The thread that settles belongs to no request and no task.
        with sentry_sdk.isolation_scope() as scope:
            scope.clear()
            sentry_sdk.capture_event(captured, hint)


def _without_lines_of_the_log(event: SentryEvent, hint: Hint) -> SentryEvent | None:
    """The worker also logs each failed attempt, and the SDK makes events of log records: those
    would be the same once more."""
    record = hint.get("log_record")
    fields = getattr(record, "delayq", None)
    is_ours = isinstance(fields, dict) and record is not None and record.exc_info
    return None if is_ours and sentry_sdk.get_client().get_integration(DelayqIntegration) else event
