"""Signed requests to an address of the project: alerts and forwarded messages."""

from __future__ import annotations

import hashlib
import hmac
import time
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from .exceptions import DelayQError


class PostFailed(DelayQError):
    """The other side has not confirmed the request."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        """Of its answer; None when there was none."""


class _NoRedirect(HTTPRedirectHandler):
    """A signed request goes where the settings say, and nowhere else."""

    def redirect_request(self, *args: object) -> None:
        """None: the redirect becomes an error."""


def post(url: str, body: bytes, secret: str, timeout: float) -> None:
    """POST JSON, signed, within `timeout` seconds. Raises PostFailed."""
    sent_at = str(int(time.time()))
    request = Request(
        url,
        body,
        {
            "Content-Type": "application/json",
            "X-Delayq-Timestamp": sent_at,
            "X-Delayq-Signature": f"sha256={sign(secret, sent_at, body)}",
        },
    )
    try:
        # Its status is the answer. A body that comes late or never must not make it a failure: the
        # same would be sent again.
        build_opener(_NoRedirect).open(request, timeout=timeout).close()
    except HTTPError as error:
        with error:
            raise PostFailed(f"The webhook answered {error.code}.", error.code) from error
    except (OSError, HTTPException, ValueError) as error:
        raise PostFailed(f"The webhook was not reached: {error}") from error


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 of timestamp, a dot and the body, as hexadecimal digits."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
