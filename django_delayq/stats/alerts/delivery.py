"""Tells one target that an alert has begun or ended: by mail, by a signed webhook, or by a
function of the project."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from django.core.mail import send_mail
from django.utils.module_loading import import_string

from ...core.alert_rules import is_mail, is_url
from ...core.conf import get_settings
from ...core.exceptions import DelayQError
from ...core.present import on_one_line

#: Seconds that a webhook has for its answer.
WEBHOOK_TIMEOUT = 10.0


class NotDelivered(DelayQError):
    """A target was not told of an alert."""


@dataclass(frozen=True, kw_only=True)
class AlertNotice:
    """What a target is told."""

    id: int
    """Of this notice: the same when it is sent again because nobody knows whether it arrived."""
    event: str
    """begun or ended."""
    rule: str
    kind: str
    topic: str
    """Empty for what is not about one topic."""
    value: float
    """The highest so far: messages, findings or seconds."""
    words: str
    began_at: datetime
    ended_at: datetime | None

    @property
    def text(self) -> str:
        """One line for people."""
        where = f"{self.topic}: " if self.topic else ""
        over = "over: " if self.event == "ended" else ""
        return on_one_line(f"delayq: {over}{where}{self.words}", 500)


def deliver(target: str, notice: AlertNotice) -> None:
    """Tell the target. Raises NotDelivered, and what a function of the project raises."""
    if is_url(target):
        _post(target, notice)
    elif is_mail(target):
        lines = [notice.text, "", f"Rule: {notice.rule}", f"Began: {notice.began_at.isoformat()}"]
        if notice.ended_at:
            lines.append(f"Ended: {notice.ended_at.isoformat()}")
        try:
            send_mail(notice.text, "\n".join(lines) + "\n", None, [target])
        except OSError as error:  # also all of smtplib's
            raise NotDelivered(f"The mail was not sent: {error}") from error
    else:
        import_string(target)(notice)


class _NoRedirect(HTTPRedirectHandler):
    """A signed request goes where the settings say, and nowhere else."""

    def redirect_request(self, *args: object) -> None:
        """None: the redirect becomes an error."""


def _post(url: str, notice: AlertNotice) -> None:
    content = {"text": notice.text, **asdict(notice)}
    body = json.dumps(content, default=lambda at: at.isoformat()).encode()
    sent_at = str(int(time.time()))
    request = Request(
        url,
        body,
        {
            "Content-Type": "application/json",
            "X-Delayq-Timestamp": sent_at,
            "X-Delayq-Signature": f"sha256={sign(get_settings().alert_secret, sent_at, body)}",
        },
    )
    try:
        with build_opener(_NoRedirect).open(request, timeout=WEBHOOK_TIMEOUT) as answer:
            answer.read(1)
    except HTTPError as error:
        with error:
            raise NotDelivered(f"The webhook answered {error.code}.") from error
    except (OSError, HTTPException, ValueError) as error:
        raise NotDelivered(f"The webhook was not reached: {error}") from error


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 of timestamp, a dot and the body, as hexadecimal digits."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
