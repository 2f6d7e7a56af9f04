"""Mail, webhook and function."""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime, timezone
from typing import Any

import pytest

from django_delayq.stats.alerts.delivery import AlertNotice, NotDelivered, deliver
from tests.stats.alerts.conftest import Webhook, notices

AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def notice(**fields: Any) -> AlertNotice:
    return AlertNotice(
        **{
            "id": 7,
            "event": "begun",
            "rule": "lag orders",
            "kind": "lag",
            "topic": "orders",
            "value": 301.5,
            "words": "lag 5 min (limit 1 min)",
            "began_at": AT,
            "ended_at": None,
            **fields,
        }
    )


def test_a_mail_says_what_is_wrong_and_since_when(mailoutbox: list[Any]) -> None:
    deliver("ops@example.com", notice())
    deliver("ops@example.com", notice(event="ended", ended_at=AT))
    begun, ended = mailoutbox
    assert begun.subject == "delayq: orders: lag 5 min (limit 1 min)"
    assert begun.to == ["ops@example.com"]
    assert "Rule: lag orders\nBegan: 2030-01-02T03:04:05+00:00\n" in begun.body
    assert ended.subject.startswith("delayq: over: ") and "Ended: 2030" in ended.body


def test_a_subject_is_one_line_whatever_the_words_are(mailoutbox: list[Any]) -> None:
    deliver("ops@example.com", notice(words="Redis\r\nBcc: all@example.com"))
    assert "\n" not in mailoutbox[0].subject


def test_a_webhook_gets_signed_json(rules: Any, webhook: Webhook) -> None:
    rules()
    deliver(webhook.url, notice())
    ((headers, body),) = webhook.posts
    sent_at, signed = headers["X-Delayq-Timestamp"], headers["X-Delayq-Signature"]
    expected = hmac.new(b"shh", f"{sent_at}.".encode() + body, hashlib.sha256).hexdigest()
    assert signed == f"sha256={expected}"
    (content,) = webhook.contents
    assert content["text"] == "delayq: orders: lag 5 min (limit 1 min)"
    assert (content["event"], content["rule"], content["topic"]) == (
        "begun",
        "lag orders",
        "orders",
    )
    assert content["began_at"] == "2030-01-02T03:04:05+00:00" and content["ended_at"] is None


@pytest.mark.parametrize("status", [400, 500, 301, 302])
def test_a_webhook_that_does_not_take_it_is_an_error(
    rules: Any, webhook: Webhook, status: int
) -> None:
    rules()
    webhook.status = status
    with pytest.raises(NotDelivered, match=str(status)):
        deliver(webhook.url, notice())
    assert len(webhook.posts) == 1  # a signed request does not follow a redirect


def test_a_webhook_that_is_away_is_an_error(rules: Any) -> None:
    rules()
    with pytest.raises(NotDelivered, match="not reached"):
        deliver("http://127.0.0.1:1/hook", notice())


def test_a_function_gets_the_notice() -> None:
    notices.clear()
    deliver("tests.stats.alerts.conftest.remember", notice())
    assert notices == [notice()]
