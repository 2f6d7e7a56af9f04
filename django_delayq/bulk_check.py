"""What stands between asking for a bulk operation and storing it: what it is about, the word that has to be typed for
many messages, and that a form which is sent twice counts once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.db import router, transaction
from django.db.models import F
from django.utils import timezone

from . import bulk
from .exceptions import InvalidMessage
from .models import ArchivedMessage, BulkKind, BulkOperation, OutboxMessage, OutboxStatus
from .operations import User
from .selection import Rows, Selection
from .topics import topic_stats

#: Messages are counted up to here; for more of them a word has to be typed.
MANY = 10_000
#: What has to be typed when it is about more than one topic.
ALL_TOPICS = "everything"
SAMPLE = 5
#: A form that is sent again after that is meant.
TWICE_WITHIN = timedelta(days=1)
#: Operations of one operator among which the first of two is looked for.
RECENT = 20

_SHOWN = ("pk", "message_id", "topic", "task", "key", "state", "reason", "error_class", "finished_at", "replayed_at",
          "discarded_at")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class About:
    """What a bulk operation would be about, as of now."""

    count: int
    """Messages, counted up to MANY."""
    is_more: bool
    """Whether there are more than that."""
    sample: Sequence[ArchivedMessage]
    """The newest few, without their bodies; none for a purge."""
    word: str
    """What has to be typed to confirm it; empty when nothing has to be."""


def check(kind: str, selection: Selection) -> None:
    """Raises InvalidMessage for a kind and a selection that bulk.start() would refuse."""
    bulk._check(bulk._kind(kind), selection, reason="asked first", delay=0, rate=None)


def about(kind: str, selection: Selection) -> About:
    """Count, and look at the newest. The cost has a bound. Raises UnknownTopic and StoreUnavailable for a purge."""
    if BulkKind(kind) is BulkKind.PURGE:
        counted, sample = _waiting(selection.topic), []
    else:
        rows = dead_letters(selection)
        counted = rows.order_by()[: MANY + 1].count()
        sample = list(rows.order_by("-finished_at").only(*_SHOWN)[:SAMPLE]) if counted else []
    is_more = counted > MANY
    word = (selection.topic or ALL_TOPICS) if is_more else ""
    return About(count=min(counted, MANY), is_more=is_more, sample=sample, word=word)


def dead_letters(selection: Selection) -> Rows:
    """The rows that replay and discard would change: what is named one by one is shown as it is."""
    return (selection if selection.ids else selection.narrowed(open=True)).rows()


def start_once(user: User, token: str, kind: str, selection: Selection, **options: Any) -> BulkOperation:
    """bulk.start(), but the same order with the same token is one operation, which is returned again for a day.

    Raises what bulk.start() raises, and InvalidMessage without a token.
    """
    if not token or len(token) > 64:
        raise InvalidMessage("The form has lost its token: open it again.")
    users = get_user_model()
    with transaction.atomic(using=router.db_for_write(users)):
        # A write, not a lock: SQLite has none. Whoever sends the same form at the same time waits here.
        users._default_manager.filter(**{users.USERNAME_FIELD: user.get_username()}).update(last_login=F("last_login"))
        if (before := _sent_before(user, token, kind, selection, options)) is not None:
            return before
        operation = bulk.start(user, kind, selection, **options)
        operation.options = json.dumps({**json.loads(operation.options), "token": token})
        operation.save(update_fields=["options"])
    return operation


def _sent_before(
    user: User, token: str, kind: str, selection: Selection, options: dict[str, Any]
) -> BulkOperation | None:
    """A form that was changed in between is another order, although its token is the same."""
    since = timezone.now() - TWICE_WITHIN
    own = BulkOperation.objects.filter(operator=user.get_username()[:150]).order_by("-pk")
    newest: list[BulkOperation] = list(own[:RECENT])
    for one in newest:
        same = json.loads(one.options).get("token") == token and one.created_at > since
        same = same and (one.kind, one.selection) == (kind, selection.encode())
        if same and one.dry_run == bool(options.get("dry_run")):
            return one
    return None


def _waiting(topic: str) -> int:
    """Messages that wait in a topic: all of those in Redis, and of the outbox what is relayed next."""
    stats = topic_stats(topic)
    waiting = OutboxMessage.objects.filter(status=OutboxStatus.WAITING).order_by("relay_at_ms")
    next_ones: list[str] = list(waiting.values_list("topic", flat=True)[: MANY + 1])
    return stats.delayed + stats.backlog + sum(name == topic for name in next_ones)
