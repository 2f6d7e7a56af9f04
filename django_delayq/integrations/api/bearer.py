"""Who calls: bearer tokens, what each may do in which topics, and how often."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.db import Error
from django.http import HttpRequest
from django.utils import timezone
from django.utils.crypto import constant_time_compare
from ninja.security import HttpBearer

from ...core.conf import NAME
from ...core.exceptions import DelayQError, OutcomeUnknown, StoreUnavailable
from ...core.limits import rate_of
from ...core.topic_patterns import is_matched
from ...models import ApiToken
from ...operators.api_tokens import MARK, token_digest
from ...store import get_store
from .problems import Problem

#: Seconds for which a process trusts what it has read of a token: so long a revoked one still
#: works.
REMEMBERED = 5.0
#: Tokens that a process remembers.
MOST_REMEMBERED = 1000
#: Seconds between two writes of `last_used_at` by one process.
USED_EVERY = 60.0
_PUBLIC_ID = re.compile(r"[0-9a-f]{12}\Z")


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The holder of a valid token."""

    pk: int
    name: str
    public_id: str
    digest: str
    rights: frozenset[str]
    patterns: tuple[str, ...]
    namespace: str
    rate: tuple[int, int] | None
    """Calls, and the seconds of the window in which they count; None: any number."""
    expires_at: float | None
    """A Unix time."""

    @classmethod
    def of(cls, row: ApiToken) -> Caller:
        """What a row says."""
        return cls(
            pk=row.pk,
            name=row.name,
            public_id=row.public_id,
            digest=row.digest,
            rights=frozenset(row.rights.split()),
            patterns=tuple(row.topics.split()),
            namespace=row.namespace,
            rate=rate_of(row.rate) if row.rate else None,
            expires_at=row.expires_at.timestamp() if row.expires_at else None,
        )

    def topic(self, right: str, name: str) -> str:
        """The whole name of a topic in which the caller has the right (of ApiRight). Raises Problem
        403: the same whether there is such a topic or not."""
        whole = self.namespace + name
        if right not in self.rights or not is_matched(self.patterns, name):
            raise Problem(403, "forbidden", f"This token may not {right} in this topic.")
        # Programs and proxies take "." and ".." in an address for directories.
        if not NAME.match(whole) or not name.strip("."):
            raise Problem(422, "invalid", "This is no name of a topic, or it is too long.")
        return whole

    def sees(self, whole: str) -> bool:
        """Whether a topic is one of the caller's."""
        return whole.startswith(self.namespace) and is_matched(self.patterns, self.shown(whole))

    def shown(self, whole: str) -> str:
        """The name of one of the caller's topics as the caller knows it."""
        return whole[len(self.namespace) :]

    # What operations ask of a user

    def has_perm(self, permission: str) -> bool:
        """The rights of the token were checked before."""
        return True

    def get_username(self) -> str:
        """For the record."""
        return f"api:{self.name}"


class Bearer(HttpBearer):
    """Finds the caller of a request by its `Authorization: Bearer` header."""

    def __init__(self) -> None:
        super().__init__()
        self._known: OrderedDict[str, tuple[float, Caller]] = OrderedDict()
        self._used_at: dict[int, float] = {}

    def __call__(self, request: HttpRequest) -> Caller:
        """The caller, whose call is counted. Raises Problem 401 or 429."""
        caller = self.identify(request)
        if caller.rate is not None:
            _check_rate(caller, caller.rate)
        now = time.monotonic()
        if now - self._used_at.get(caller.pk, -USED_EVERY) >= USED_EVERY:
            self._used_at[caller.pk] = now
            # Keep when the token was used. A database that is away stops no call.
            with suppress(Error):
                ApiToken.objects.filter(pk=caller.pk).update(last_used_at=timezone.now())
        return caller

    def identify(self, request: HttpRequest) -> Caller:
        """The caller. Raises Problem 401. Not by HttpBearer, which logs the header with DEBUG."""
        scheme, _, token = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != "bearer":
            raise _unauthorized("Send a token: Authorization: Bearer ...")
        return self.authenticate(request, token.strip())

    def authenticate(self, request: HttpRequest, token: str) -> Caller:
        """The holder of the token. Raises Problem 401."""
        caller = self._find(token)
        digest = token_digest(token) if token.isascii() else ""
        if caller is None or not constant_time_compare(caller.digest, digest):
            raise _unauthorized("This token is not known.")
        if caller.expires_at is not None and caller.expires_at <= time.time():
            raise _unauthorized("This token has expired.")
        return caller

    def forget(self) -> None:
        """Read all tokens anew."""
        self._known.clear()
        self._used_at.clear()

    def _find(self, token: str) -> Caller | None:
        mark, _, rest = token.partition("_")
        public_id = rest.partition("_")[0]
        if mark != MARK or not _PUBLIC_ID.match(public_id):
            return None
        now = time.monotonic()
        read_at, caller = self._known.get(public_id, (-REMEMBERED, None))
        if caller is not None and now - read_at < REMEMBERED:
            return caller
        try:
            row = ApiToken.objects.filter(public_id=public_id, revoked_at=None).first()
        except Error as error:
            if caller is not None:  # the queue goes on without its database, and so do its callers
                return caller
            raise Problem(
                503, "database-unavailable", "Tokens cannot be read.", headers={"Retry-After": "1"}
            ) from error
        self._known.pop(public_id, None)
        if row is None:
            return None
        caller = Caller.of(row)
        self._known[public_id] = now, caller
        while len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        return caller


#: That of all calls of this process.
bearer = Bearer()


def caller_of(request: Any) -> Caller:
    """Who has sent the request."""
    caller: Caller = request.auth
    return caller


def _check_rate(caller: Caller, rate: tuple[int, int]) -> None:
    """Count the call. Raises Problem 429. While Redis is away nothing is counted: what the outbox
    takes must not wait for it."""
    most, seconds = rate
    now = time.time()
    store = get_store()
    if store.breaker.open:
        return
    try:
        count = store.requests.count(caller.public_id, int(now // seconds), seconds)
    except (StoreUnavailable, OutcomeUnknown):
        store.breaker.trip()  # the calls after this one do not wait for another timeout
        return
    except DelayQError:
        return
    if count > most:
        wait = max(1, round(seconds - now % seconds))
        raise Problem(
            429,
            "too-many-calls",
            f"This token may make {most} calls in {seconds} s.",
            headers={"Retry-After": str(wait)},
        )


def _unauthorized(detail: str) -> Problem:
    return Problem(401, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})
