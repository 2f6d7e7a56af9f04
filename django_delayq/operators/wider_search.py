"""Searches beyond an exact id or key: for an argument, and for keys that are like a word. Each
reads a bounded number of messages, and says what it has left out."""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.utils import timezone

from ..archive.search import page_of
from ..archive.selection import Selection
from ..core.message import Message
from ..models import ArchivedMessage, OutboxMessage
from ..models.one_statement import Query
from ..outbox.listing import message_of, waiting_rows
from ..store import get_store
from ..store.client import BATCH
from ..tasks.naming import shown
from .message_search import SearchResult, archived_hit, by_keys, live_hit
from .topic_permission import Topics
from .waiting_list import LOOKS_FOR
from .waiting_selection import WaitingSelection, pages_in_redis

#: Waiting messages that a search for an argument reads at most.
READS = 2_000
#: Pages of these that it reads however long they take. For more it has LOOKS_FOR seconds.
LEAST_PAGES = 40
#: How far back the archive is searched for an argument.
BACK = timedelta(hours=24)
#: Hits that are shown.
HITS = 20
#: Newest rows of the archive and of the outbox, and waiting messages of each lane of some
#: partitions, whose keys say how keys look.
RECENT, RECENT_OF_LANE, PARTITIONS = 200, 20, 25
#: Keys of one form that are looked up.
GUESSES = 20

_SEPARATORS = re.compile(r"[^0-9A-Za-z]+")


@dataclass(frozen=True, kw_only=True)
class ArgumentHits:
    """What a search for an argument has found."""

    hits: Sequence[SearchResult]
    """Waiting messages first."""
    all_waiting: bool
    """Whether all waiting messages were read."""
    all_ended: bool
    """Whether all was read that ended in the last 24 hours."""


def by_argument(argument: str, value: str, topic: str = "", topics: Topics = None) -> ArgumentHits:
    """Messages with this argument: among the waiting ones, and among those that ended in the last
    24 hours. Only of these topics. Raises InvalidMessage, UnknownTopic and StoreUnavailable."""
    waiting = WaitingSelection(topic=topic, argument=argument, value=value)
    if topics is not None and topic and topic not in topics:  # hidden, or there is none
        return ArgumentHits(hits=[], all_waiting=True, all_ended=True)
    hits, read, all_waiting = list[Message](), 0, True
    ends_at = time.monotonic() + LOOKS_FOR
    for number, page in enumerate(pages_in_redis(waiting, topics)):
        hits += page.messages
        # There may be thousands of empty topics.
        read += BATCH if page.messages or page.cursor else 1
        is_late = number >= LEAST_PAGES and time.monotonic() > ends_at
        if read >= READS or len(hits) >= HITS or is_late:
            all_waiting = False
            break
    ended = Selection(
        topic=topic,
        argument=argument,
        value=value,
        since=timezone.now() - BACK,
        topics=None if topics is None else tuple(sorted(topics)),
    )
    in_outbox = waiting_rows(topic, topics)[: RECENT + 1]
    found = page_of(ended, size=HITS, beside=[in_outbox])
    kept = sorted(found.beside[0], key=lambda row: row.pk)
    hits += filter(waiting.fits, (message_of(row) for row in kept[:RECENT]))
    return ArgumentHits(
        hits=[*map(live_hit, hits[:HITS]), *map(archived_hit, found.rows)],
        all_waiting=all_waiting and len(kept) <= RECENT,
        all_ended=found.complete,
    )


def recent_rows() -> Sequence[Query]:
    """The newest rows of the archive and of the outbox: topics and keys, for similar_keys()."""
    return [
        rows.order_by("-pk").values_list("topic", "key")[:RECENT]
        for rows in (ArchivedMessage.objects.all(), OutboxMessage.objects.all())
    ]


def similar_keys(
    query: str, recent: Sequence[Sequence[tuple[str, str]]], topic: str = "", topics: Topics = None
) -> Sequence[SearchResult]:
    """Messages whose keys are like others but for their ends, with this text there: `order:4711`
    for 4711. And those of the newest keys that have the text as a part. `recent`: what
    recent_rows() found. Raises StoreUnavailable."""
    prefixes = Counter[tuple[str, str]]()
    exact = dict[tuple[str, str], None]()
    for where, key in itertools.chain(*recent, _keys_in_redis(topic, topics)):
        if not key or not _is_among(where, topic, topics):
            continue
        if query in _SEPARATORS.split(key):
            exact[where, key] = None
        if match := re.match(r"(.*[^0-9A-Za-z])[0-9A-Za-z]+$", key, re.DOTALL):
            prefixes[where, match[1]] += 1
    guessed = [(where, prefix + query) for (where, prefix), _ in prefixes.most_common(GUESSES)]
    looked_up = list(dict.fromkeys([*exact, *guessed]))[: 2 * GUESSES]
    return by_keys([(where, key) for where, key in looked_up if len(key) <= 256])[:HITS]


def _keys_in_redis(topic: str, topics: Topics) -> Iterator[tuple[str, str]]:
    """Topics and keys of what is due first in some partitions."""
    store = get_store()
    names = [name for name in store.topics.names() if _is_among(name, topic, topics)]
    some = [partition for name in names[:PARTITIONS] for partition in store.partitions.all(name)]
    for partition, found in store.queries.first_waiting(some[:PARTITIONS], RECENT_OF_LANE):
        yield partition.topic, shown(partition, found).key or ""


def _is_among(name: str, topic: str, topics: Topics) -> bool:
    """Whether this topic is searched."""
    return topic in ("", name) and (topics is None or name in topics)
