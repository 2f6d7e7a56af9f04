"""The header Idempotency-Key: a call that comes again gets the answer of the first one."""

from __future__ import annotations

import hashlib
import inspect
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from django.http import HttpResponse

from ...core.exceptions import DelayQError, OutcomeUnknown, StoreUnavailable
from ...core.message import key_id
from ...store import get_store
from ...store.requests import Answered, Requests
from .bearer import caller_of
from .problems import Problem

logger = logging.getLogger("delayq.api")

#: Seconds for which an answer is kept.
KEPT = 24 * 3600
#: Milliseconds after which a call that has not ended is forgotten: its process has died.
GIVEN_UP = 60_000
#: Answers of more bytes are not kept.
MOST_BYTES = 256 * 1024

_KEY = re.compile(r"[!-~]{1,255}\Z")

View = Callable[..., HttpResponse]


def once(view: View) -> View:
    """Carry out a call with an Idempotency-Key once. Calls without one pass.

    Another body under the same key is refused with 422, and a call whose first one is still on its
    way with 409. An answer of 500 and above is not kept: the call may be made again. Messages that
    it sends have ids of the key (call_id), so that one which was stored unseen is not stored twice.
    """

    @wraps(view)
    def answer_once(request: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        given = request.META.get("HTTP_IDEMPOTENCY_KEY")
        if given is None:
            return view(request, *args, **kwargs)
        if not _KEY.match(given):
            words = "An Idempotency-Key has 1 to 255 visible characters of ASCII."
            raise Problem(400, "invalid", words)
        caller = caller_of(request)
        call = _digest(str(caller.pk), given).hex()[:40]
        fingerprint = _digest(request.method, request.get_full_path(), request.body)
        requests = get_store().requests
        before = _begin(requests, call)
        if isinstance(before, Answered):
            return _again(before, fingerprint)
        if not before:
            raise Problem(
                409,
                "in-progress",
                "The first call with this Idempotency-Key is still on its way.",
                headers={"Retry-After": "1"},
            )
        request.delayq_call = call
        try:
            response = view(request, *args, **kwargs)
        except BaseException:
            with suppress(DelayQError):  # else the key is free when it is given up
                requests.give_up(call)
            raise
        try:
            _keep(requests, call, fingerprint, response)
        except DelayQError as error:  # the call was carried out all the same
            logger.warning("The answer of %s was not kept: %s", request.path, error)
        return response

    # ninja resolves annotations by the module of the function that it is given.
    answer_once.__signature__ = inspect.signature(view, eval_str=True)  # type: ignore[attr-defined]
    return answer_once


def call_id(request: Any, topic: str, place: int) -> bytes | None:
    """The id of a message of a call with an Idempotency-Key: the same whenever it is made again.
    None for other calls. `place`: of the message in the call."""
    call = getattr(request, "delayq_call", None)
    return None if call is None else key_id(topic, f"Idempotency-Key {call} {place}")


def _begin(requests: Requests, call: str) -> Answered | bool:
    """Requests.begin(). Raises StoreUnavailable: nothing was carried out yet."""
    breaker = get_store().breaker
    if breaker.open:
        raise StoreUnavailable
    try:
        return requests.begin(call, GIVEN_UP)
    except (StoreUnavailable, OutcomeUnknown) as error:
        breaker.trip()
        raise StoreUnavailable from error


def _keep(requests: Requests, call: str, fingerprint: bytes, response: HttpResponse) -> None:
    if response.status_code < 500 and len(response.content) <= MOST_BYTES:
        requests.answer(call, Answered(fingerprint, response.status_code, response.content), KEPT)
    requests.give_up(call)


def _again(before: Answered, fingerprint: bytes) -> HttpResponse:
    if before.fingerprint != fingerprint:
        raise Problem(
            422, "key-reused", "This Idempotency-Key was used for another call. Take a new one."
        )
    return HttpResponse(
        before.body,
        status=before.status,
        content_type="application/json",
        headers={"Idempotent-Replayed": "true"},
    )


def _digest(*parts: str | bytes) -> bytes:
    whole = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        whole.update(len(raw).to_bytes(8, "big") + raw)
    return whole.digest()
