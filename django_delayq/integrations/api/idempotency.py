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

#: Seconds for which a call and its answer are known.
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
    way with 409. An answer of 500 and above is not kept: the same call may be made again. Messages
    that it sends have ids of the key (call_ids), so that one which was stored unseen is not stored
    twice. A call that was refused has changed nothing, and leaves its key free.
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
        before = _begin(requests, call, fingerprint)
        if before is not None:
            return _again(before)
        request.delayq_call = f"{call} {fingerprint.hex()}"
        try:
            response = view(request, *args, **kwargs)
        except BaseException as error:
            with suppress(DelayQError):  # else the key is free when it is given up
                requests.give_up(call, refused=_is_refusal(error))
            raise
        try:
            _keep(requests, call, fingerprint, response)
        except DelayQError as error:  # the call was carried out all the same
            logger.warning("The answer of %s was not kept: %s", request.path, error)
        return response

    # ninja resolves annotations by the module of the function that it is given.
    answer_once.__signature__ = inspect.signature(view, eval_str=True)  # type: ignore[attr-defined]
    return answer_once


def call_ids(request: Any, topic: str, count: int) -> list[bytes | None]:
    """The ids of the messages of a call with an Idempotency-Key: the same whenever it is made
    again. None for those of other calls."""
    call = getattr(request, "delayq_call", None)
    if call is None:
        return [None] * count
    return [key_id(topic, f"Idempotency-Key {call} {place}") for place in range(count)]


def _begin(requests: Requests, call: str, fingerprint: bytes) -> Answered | None:
    """The answer that the call was given before; None: it is to be carried out now. Raises Problem
    422 and 409, and StoreUnavailable: nothing was carried out yet."""
    breaker = get_store().breaker
    if breaker.open:
        raise StoreUnavailable
    try:
        begun = requests.begin(call, fingerprint, GIVEN_UP, KEPT)
    except (StoreUnavailable, OutcomeUnknown) as error:
        breaker.trip()
        raise StoreUnavailable from error
    if begun.first != fingerprint:
        if begun.is_free:
            requests.give_up(call)
        raise Problem(
            422, "key-reused", "This Idempotency-Key was used for another call. Take a new one."
        )
    if not (begun.answer or begun.is_free):
        raise Problem(
            409,
            "in-progress",
            "The first call with this Idempotency-Key is still on its way.",
            headers={"Retry-After": "1"},
        )
    return begun.answer


def _keep(requests: Requests, call: str, fingerprint: bytes, response: HttpResponse) -> None:
    if response.status_code < 500 and len(response.content) <= MOST_BYTES:
        requests.answer(call, Answered(fingerprint, response.status_code, response.content), KEPT)
    requests.give_up(call)


def _is_refusal(error: BaseException) -> bool:
    """Whether the call was refused before it has changed anything."""
    if isinstance(error, DelayQError):
        error = Problem.of(error)
    return isinstance(error, Problem) and error.status < 500


def _again(before: Answered) -> HttpResponse:
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
