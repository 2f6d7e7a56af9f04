"""Errors as application/problem+json (RFC 9457), and answers as JSON."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from django.http import HttpResponse

from ...core import exceptions

_encode = msgspec.json.encode
#: What becomes of our exceptions: status, kind and a text. Where the text is None, the error's own
#: is shown: it is about what the caller has sent. The others may name what the caller must not see.
_ANSWERS: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    (exceptions.UnknownTopic, 404, "unknown-topic", "There is no such topic."),
    (exceptions.BodyTooLarge, 413, "body-too-large", None),
    (exceptions.InvalidMessage, 422, "invalid", None),
    (exceptions.DuplicateMessage, 409, "duplicate", "A message with this key or id is live."),
    (exceptions.MessageRunning, 409, "running", "A consumer holds this message."),
    (exceptions.MessageNotFound, 404, "not-found", "No such message waits here."),
    (exceptions.MessageChanged, 409, "changed", exceptions.MessageChanged.meaning()),
    (
        exceptions.OutcomeUnknown,
        503,
        "outcome-unknown",
        "The connection to the queue broke before its answer came: the call may have been carried "
        "out.",
    ),
    (
        exceptions.StoreUnavailable,
        503,
        "unavailable",
        "The queue cannot be reached. Nothing was changed.",
    ),
    (exceptions.StoreError, 500, "queue-failed", "The queue gave an unexpected answer."),
    (
        exceptions.DatabaseUnavailable,
        503,
        "database-unavailable",
        "The database cannot be reached.",
    ),
    (exceptions.DelayQError, 500, "failed", "The call has failed."),
)


class Problem(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        headers: dict[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail = status, kind, detail
        self.headers, self.members = headers or {}, members

    @classmethod
    def of(cls, error: Exception, namespace: str = "") -> Problem:
        """The answer for an exception of ours. The name of the caller's namespace is left out."""
        status, kind, text = next(
            (status, kind, text)
            for exception, status, kind, text in _ANSWERS
            if isinstance(error, exception)
        )
        detail = str(error) if text is None else text
        members: dict[str, Any] = {}
        if isinstance(error, exceptions.EnqueueUnknown):
            members["ids"] = list(error.ids)
        if isinstance(error, exceptions.DelayQError) and error.enqueued:
            members["enqueued"] = [receipt.id for receipt in error.enqueued]
        if namespace:
            detail = detail.replace(namespace, "")
        headers = {"Retry-After": "1"} if status == 503 else None
        return cls(status, kind, detail, headers=headers, **members)

    def response(self) -> HttpResponse:
        """As the caller gets it."""
        document = {
            "type": f"urn:django-delayq:{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.members,
        }
        return HttpResponse(
            _encode(document),
            status=self.status,
            content_type="application/problem+json",
            headers=self.headers,
        )


def answer(document: Any, status: int = 200) -> HttpResponse:
    """A document as JSON."""
    return HttpResponse(_encode(document), status=status, content_type="application/json")
