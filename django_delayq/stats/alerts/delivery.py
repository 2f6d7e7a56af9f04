"""Tells one target that an alert has begun or ended: by mail, by a signed webhook, or by a
function of the project."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime

from django.core.mail import send_mail
from django.utils.module_loading import import_string

from ...core.alert_rules import is_mail, is_url
from ...core.conf import get_settings
from ...core.exceptions import DelayQError
from ...core.present import on_one_line
from ...core.signed_post import PostFailed, post

#: Seconds that a webhook has for its answer.
WEBHOOK_TIMEOUT = 10.0


class NotDelivered(DelayQError):
    """The message about an alert did not reach its target."""


@dataclass(frozen=True, kw_only=True)
class AlertNotice:
    """The message about an alert."""

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
        content = {"text": notice.text, **asdict(notice)}
        body = json.dumps(content, default=lambda at: at.isoformat()).encode()
        try:
            post(target, body, get_settings().alert_secret, WEBHOOK_TIMEOUT)
        except PostFailed as error:
            raise NotDelivered(str(error)) from error
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
