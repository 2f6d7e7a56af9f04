"""Makes and revokes tokens of the HTTP API."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from ..core.conf import check_name, get_settings
from ..core.exceptions import InvalidMessage, MessageNotFound, NotPermitted
from ..core.limits import rate_problem
from ..core.times import instant_ms, stored
from ..core.topic_patterns import check_patterns
from ..models import ApiRight, ApiToken, OperatorAction
from .operations import User, check_reason, clean, require
from .topic_permission import is_permitted

#: Before each token, so that people and scanners of secrets know what it is.
MARK = "dq"
#: The dot is at the end and nowhere else, so that none is the beginning of another tenant's.
_NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,39}\.\Z")


@dataclass(frozen=True, kw_only=True)
class TokenOptions:
    """The properties of a new token."""

    name: str
    """Names the caller in the archive: 1 to 64 of A-Z a-z 0-9 _ . -"""
    rights: Sequence[str]
    """Values of ApiRight, at least one."""
    topics: Sequence[str] = ("*",)
    """Names of topics; `*` matches any characters."""
    namespace: str = ""
    """The prefix of the name of each topic, such as `acme.`: A-Z a-z 0-9 _ - and a dot."""
    rate: str = ""
    """`100/s`, `600/m` or `5000/h`; empty: any number of calls."""
    expires_at: datetime | None = None
    """An aware datetime; None: never."""


def token_digest(token: str) -> str:
    """What the table has of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def create_token(user: User, options: TokenOptions) -> tuple[ApiToken, str]:
    """Make a token. Returns its row, and the token itself, which nobody can read again. Raises
    InvalidMessage."""
    require(user, "manage_tokens")
    row = _checked_row(options)
    if not may_manage(user, row):
        raise NotPermitted("A token cannot reach topics for which you may not make tokens.")
    token = f"{MARK}_{row.public_id}_{secrets.token_urlsafe(32)}"
    row.digest, row.created_by = token_digest(token), user.get_username()[:150]
    words = f"{row}: {row.rights}; topics {row.namespace}[{row.topics}]"
    with OperatorAction.recorded("create token", user.get_username(), selection=words):
        row.save(using=get_settings().database)
    return row, token


def revoke_token(user: User, public_id: str, *, reason: str) -> ApiToken:
    """End a token; a server notices within 5 s. Raises MessageNotFound for an unknown one, and
    InvalidMessage without a reason."""
    require(user, "manage_tokens")
    check_reason(reason)
    row: ApiToken | None = ApiToken.objects.filter(public_id=public_id).first()
    if row is None or not may_manage(user, row):
        raise MessageNotFound(f"There is no token {public_id!r:.80}.")
    with OperatorAction.recorded(
        "revoke token", user.get_username(), clean(reason), selection=str(row)
    ):
        ApiToken.objects.filter(pk=row.pk, revoked_at=None).update(revoked_at=timezone.now())
    row.refresh_from_db()
    return row


def tokens() -> Sequence[ApiToken]:
    """All of them, the newest first; at most 500."""
    return list(ApiToken.objects.order_by("-pk")[:500])


def may_manage(user: User, row: ApiToken) -> bool:
    """Whether the user may see and make a token for these topics. TOPIC_PERMISSION is asked for
    each pattern as it stands, such as `shop-*`."""
    patterns = [f"{row.namespace}{pattern}" for pattern in row.topics.split()]
    return all(is_permitted(user, pattern, "manage_tokens") for pattern in patterns)


def _checked_row(options: TokenOptions) -> ApiToken:
    rights = [right for right in ApiRight.values if right in options.rights]
    if not rights or set(rights) != set(options.rights):
        known = ", ".join(ApiRight.values)
        raise InvalidMessage(f"Give at least one right, of these: {known}.")
    if options.namespace and not _NAMESPACE.match(options.namespace):
        raise InvalidMessage(
            f"{options.namespace!r:.80} is no namespace: up to 39 of A-Z a-z 0-9 _ - and a dot at "
            "the end. A second dot would make it part of another tenant's."
        )
    if options.rate and (problem := rate_problem(options.rate)):
        raise InvalidMessage(f"rate {problem}")
    if options.expires_at is not None:
        instant_ms(options.expires_at, "expires_at")
        if options.expires_at <= datetime.now(tz=options.expires_at.tzinfo):
            raise InvalidMessage("expires_at has passed.")
    topics = check_patterns(list(options.topics), "topics", InvalidMessage)
    if not topics:
        raise InvalidMessage("Give at least one topic; * means all.")
    return ApiToken(
        name=check_name(options.name, "a token"),
        public_id=secrets.token_hex(6),
        rights=" ".join(rights),
        topics=" ".join(topics),
        namespace=options.namespace,
        rate=options.rate,
        expires_at=None if options.expires_at is None else stored(options.expires_at),
    )
