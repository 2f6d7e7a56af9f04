"""What Sentry gets of failed attempts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from django_delayq.core import signals
from django_delayq.integrations.sentry import DelayqIntegration
from django_delayq.store.keys import Partition
from django_delayq.worker.process.console import Console
from tests.app.tasks import act, record
from tests.hands import Hands

MODES = Partition("modes", 0)


class Kept(Transport):
    """Keeps envelopes in place of sending them."""

    def __init__(self) -> None:
        super().__init__()
        self.envelopes: list[Envelope] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.envelopes.append(envelope)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events in them."""
        found = [envelope.get_event() for envelope in self.envelopes]
        return [dict(event) for event in found if event]


@pytest.fixture
def sentry() -> Iterator[Kept]:
    kept = Kept()
    sentry_sdk.init(
        dsn="https://key@sentry.example.com/1",
        transport=kept,
        default_integrations=True,
        auto_enabling_integrations=False,
        integrations=[DelayqIntegration()],
    )
    yield kept
    sentry_sdk.get_global_scope().set_client(None)


def fail(hands: Hands, mode: str = "fail", times: int = 1) -> list[str]:
    handles = [act.enqueue(mode) for _ in range(times)]
    hands.work(MODES)
    return [handle.id for handle in handles]


def test_a_failed_attempt_is_an_event_with_its_stack_and_its_message(
    sentry: Kept, hands: Hands
) -> None:
    (message_id,) = fail(hands)
    (event,) = sentry.events
    (error,) = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "it failed")
    assert error["stacktrace"]["frames"][-1]["function"] == "_raise"
    assert error["mechanism"] == {"type": "delayq", "handled": True}
    assert event["tags"] == {
        "delayq.task": "tests.app.tasks.act",
        "delayq.topic": "modes",
        "delayq.message_id": message_id,
        "delayq.attempt": "1",
        "delayq.outcome": "retried",
    }
    assert (event["transaction"], event["level"]) == ("tests.app.tasks.act", "warning")


def test_the_last_attempt_is_an_error(sentry: Kept, hands: Hands) -> None:
    fail(hands, "unworthy")
    (event,) = sentry.events
    assert (event["level"], event["tags"]["delayq.outcome"]) == ("error", "dead")
    assert event["exception"]["values"][0]["mechanism"]["handled"] is False


def test_a_task_and_an_error_are_one_issue(sentry: Kept, hands: Hands) -> None:
    ids = fail(hands, times=3)
    fail(hands, "unworthy")
    assert {event["tags"]["delayq.message_id"] for event in sentry.events[:3]} == set(ids)
    assert [event["fingerprint"] for event in sentry.events] == [
        *[["delayq", "tests.app.tasks.act", "builtins.ValueError"]] * 3,
        ["delayq", "tests.app.tasks.act", "builtins.TypeError"],
    ]


@pytest.mark.parametrize("mode", ["return", "snooze", "reject"])
def test_what_is_no_failure_is_no_event(sentry: Kept, hands: Hands, mode: str) -> None:
    fail(hands, mode)
    assert sentry.events == []


def test_the_lines_of_the_log_are_no_second_event(sentry: Kept, hands: Hands) -> None:
    console = Console()
    fail(hands, "unworthy", times=2)
    console.close()
    assert len(sentry.events) == 2
    logging.getLogger("delayq.worker").error("something else")
    assert sentry.events[-1]["logentry"]["message"] == "something else"


def test_nothing_of_one_message_is_in_the_event_of_another(sentry: Kept, hands: Hands) -> None:
    sentry_sdk.set_tag("of", "this thread")
    record.enqueue(1)
    fail(hands)
    assert "of" not in sentry.events[0]["tags"]


def test_without_the_integration_nothing_is_sent(sentry: Kept, hands: Hands) -> None:
    sentry_sdk.init(
        dsn="https://key@sentry.example.com/1", transport=sentry, default_integrations=False
    )
    assert signals.dead.receivers  # connected once in a process
    fail(hands)
    assert sentry.events == []
