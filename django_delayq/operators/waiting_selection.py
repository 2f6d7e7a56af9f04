"""Reads and cancels the waiting messages that a selection names by topic, task, key prefix and due
time, in Redis and in the outbox."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from ..client import changes
from ..client.topics import list_messages
from ..core.cursors import cursor_of
from ..core.message import Message, Page, check_key
from ..core.present import counted
from ..core.times import aware, epoch_us, from_ms
from ..models import OperatorAction
from ..outbox.existing import check_existing, every_topic
from ..outbox.listing import list_outbox
from ..store import get_store
from ..store.client import BATCH
from ..tasks.options import ChangeOptions
from .operations import User, clean, require

#: Where a selection is read, in this order. A message that the relay sends meanwhile is met in
#: Redis.
PLACES = {"outbox": (list_outbox, 2**63 - 1), "redis": (list_messages, 2**128 - 1)}


@dataclass(frozen=True, kw_only=True)
class WaitingSelection:
    """Each part that is given narrows it down. An empty selection is all that waits."""

    topic: str = ""
    task: str = ""
    """Name of the task."""
    key_prefix: str = ""
    """The first characters of the key."""
    since: datetime | None = None
    """Due then or later; aware."""
    until: datetime | None = None
    """Due before then; aware."""

    def __post_init__(self) -> None:
        if self.key_prefix:
            check_key(self.key_prefix)

    def topics(self) -> list[str]:
        """The topics that have to be read. Raises UnknownTopic."""
        return [check_existing(self.topic)] if self.topic else every_topic()

    def fits(self, message: Message) -> bool:
        """Whether a message of one of these topics belongs to it."""
        return (
            (not self.task or message.task == self.task)
            and (not self.key_prefix or (message.key or "").startswith(self.key_prefix))
            and (self.since is None or message.due_at >= aware(self.since))
            and (self.until is None or message.due_at < aware(self.until))
        )

    def in_words(self) -> str:
        """One line for people."""
        named = {"topic": self.topic, "task": self.task, "key prefix": self.key_prefix}
        words = [f"{name} {value}" for name, value in named.items() if value]
        words += [f"due since {self.since.isoformat(' ', 'seconds')}"] if self.since else []
        words += [f"due before {self.until.isoformat(' ', 'seconds')}"] if self.until else []
        return ", ".join(words) or "everything"


def pages(
    selection: WaitingSelection, topic: str, place: str, cursor: str | None = None
) -> Iterator[Page]:
    """The messages of one topic and place ("redis" or "outbox") that fit, by due time: a page for
    each 500 that were read. `cursor` is that of the last page that was dealt with. Raises
    UnknownTopic."""
    listed, highest = PLACES[place]
    if cursor is None and selection.since is not None:
        since_ms = -(-epoch_us(selection.since) // 1000)
        cursor = cursor_of(since_ms - 1, highest) if since_ms > 0 else None
    while True:
        page = listed(topic, cursor=cursor, limit=BATCH)
        yield Page(messages=list(filter(selection.fits, page.messages)), cursor=page.cursor)
        cursor = page.cursor
        is_past = (
            selection.until is not None
            and page.messages
            and page.messages[-1].due_at >= aware(selection.until)
        )
        if cursor is None or is_past:
            return


def waiting_messages(selection: WaitingSelection) -> Iterator[Message]:
    """The messages that fit, by due time. Raises UnknownTopic."""

    def of(topic: str, place: str) -> Iterator[Message]:
        for page in pages(selection, topic, place):
            yield from page.messages

    sources = [of(topic, place) for topic in selection.topics() for place in PLACES]
    return heapq.merge(*sources, key=lambda message: (message.due_at, message.id))


@dataclass(kw_only=True)
class Cancelled:
    """What cancel_waiting() has done so far."""

    count: int = 0
    """Messages that are cancelled."""
    skipped: int = 0
    """Messages that a worker took, or that ended, before they could be cancelled."""

    def __str__(self) -> str:
        skipped = f"; {self.skipped:,} started or ended before" if self.skipped else ""
        return f"cancelled {counted(self.count, 'message')}{skipped}"


def cancel_waiting(
    user: User,
    selection: WaitingSelection,
    *,
    reason: str = "",
    progress: Callable[[Cancelled], object] = lambda so_far: None,
) -> Cancelled:
    """Cancel the messages that fit and were enqueued before this call. `progress` is called after
    each of them. Done again after a kill, it goes on.

    One message costs a round trip to Redis and a query. Raises NotPermitted and UnknownTopic, and
    StoreUnavailable: what was cancelled before that stays cancelled.
    """
    require(user, "bulk_operate", "cancel_message")
    how = ChangeOptions(missing_ok=True, after_commit=False, on_redis_error="raise")
    words = replace(selection, topic="").in_words()
    done, began_at = Cancelled(), from_ms(get_store().clock_ms())
    with OperatorAction.recorded(
        "cancel", user.get_username(), clean(reason), topic=selection.topic, selection=words
    ) as action:
        for message in waiting_messages(selection):
            if message.enqueued_at > began_at:
                continue
            is_cancelled = changes.cancel(message.topic, None, message.id, how)
            done.count += is_cancelled
            done.skipped += not is_cancelled
            if is_cancelled:
                action.add(1)
            progress(done)
    return done
