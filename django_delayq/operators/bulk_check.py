"""What stands between asking for a bulk operation and storing it: what it is about, the word that
has to be typed for many messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..archive.selection import Rows, Selection
from ..client.topics import topic_stats
from ..models import ArchivedMessage, BulkKind
from ..outbox.listing import count_outbox
from . import bulk

#: Messages are counted up to here; for more of them a word has to be typed.
MANY = 10_000
#: What has to be typed when it is about more than one topic.
ALL_TOPICS = "everything"
SAMPLE = 5

_SHOWN = ("pk", "message_id", "topic", "task", "key", "state", "reason", "error_class",
"finished_at", "replayed_at",
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
    bulk.check(bulk.kind_of(kind), selection, reason="asked first", delay=0, rate=None)


def about(kind: str, selection: Selection) -> About:
    """Count, and look at the newest. The cost has a bound. Raises UnknownTopic and StoreUnavailable
    for a purge."""
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


def _waiting(topic: str) -> int:
    """Messages that wait in a topic: all of those in Redis, and of the outbox up to
    outbox_list.CAP."""
    stats = topic_stats(topic)
    return stats.delayed + stats.backlog + count_outbox(topic)
