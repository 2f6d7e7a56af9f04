"""A signed webhook as a target."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ...core.signed_post import PostFailed, post
from .forwarding import ForwardedMessage, TargetAway

#: Answers that say "later" and nothing about the batch: timeout, too early, too many requests.
LATER = frozenset({408, 425, 429})


class Webhook:
    """Posts a batch as one JSON array: `id`, `topic`, `attempt`, `key`, `headers` and `payload` of
    each message. Any answer of 2xx confirms all of them. One of 4xx refuses all of them; these are
    tried again one batch at a time by the backoff of the task, and are dead in the end.

    `secret` signs it as alerts are signed: HMAC-SHA256 of the timestamp, a dot and the body, in
    `X-Delayq-Signature`. `timeout`: seconds for the answer.
    """

    def __init__(self, url: str, secret: str, *, timeout: float = 10.0) -> None:
        self._url = url
        self._secret = secret
        self._timeout = timeout

    def send(self, messages: Sequence[ForwardedMessage]) -> Mapping[int, str]:
        """One request."""
        content = [
            {
                "id": message.id,
                "topic": message.topic,
                "attempt": message.attempt,
                "key": message.key,
                "headers": dict(message.headers),
                "payload": message.payload,
            }
            for message in messages
        ]
        body = json.dumps(content, ensure_ascii=False).encode()
        try:
            post(self._url, body, self._secret, self._timeout)
        except PostFailed as error:
            code = error.status
            if code is None or code >= 500 or code in LATER or code < 400:
                raise TargetAway(str(error)) from error
            return dict.fromkeys(range(len(messages)), str(error))
        return {}
