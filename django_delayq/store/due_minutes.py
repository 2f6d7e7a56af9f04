"""Counts by minute when the messages of Redis fall due, without reading them.

Redis counts a stretch of a lane in O(log n). So a lane with many messages is divided until each
part is a minute, or has few messages: what is read grows with the minutes, not with the messages.
It only sends plain commands that read, so a replica is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..core.chunks import chunked
from .client import Read
from .keys import Partition, partition_keys
from .store import RedisStore
from .structures import HELD_MS, LANES, LAST_MS, STRUCTURES, Structure, all_of

MINUTE_MS = 60_000
#: A stretch with at most so many messages, and at most so many for each of its minutes, is read: a
#: count takes as long as ten messages.
FEW, FEW_OF_MINUTE = 500, 10
#: Into how many parts a longer one is divided.
PARTS = 64
#: Commands of a round trip, and lanes that are counted together.
COMMANDS, TOGETHER = 500, 250


class _Stretch(NamedTuple):
    """Scores from `first` to `last`, both inside."""

    topic: str
    key: str
    first: int
    last: float
    base: int = 0
    """HELD_MS where messages are held back."""
    messages: int = 0


class MinuteCount(NamedTuple):
    """Messages of a topic that fall due in a minute."""

    topic: str
    minute_ms: int
    """Its beginning; of what is overdue the minute of now."""
    messages: int
    overdue: int = 0


def due_minutes(
    store: RedisStore, partitions: Sequence[Partition], now_ms: int
) -> Iterator[MinuteCount]:
    """All that waits in these partitions; a minute of a topic may come several times.

    This is not one instant: what is enqueued, claimed or rescheduled meanwhile may be missing, or
    may be counted twice.
    """
    for lanes in chunked(all_of(partitions, LANES), TOGETHER):
        yield from _counted(store, lanes, now_ms)


def _counted(store: RedisStore, lanes: Sequence[Structure], now_ms: int) -> Iterator[MinuteCount]:
    rest = _with_counts(store, [one for lane in lanes for one in _whole(store, lane, now_ms)])
    while rest:
        few: list[_Stretch] = []
        many: list[_Stretch] = []
        for stretch in rest:
            if (found := _in_one_minute(stretch, now_ms)) is not None:
                yield found
            else:
                (few if _has_few(stretch) else many).append(stretch)
        yield from _read(store, few)
        rest = _with_counts(store, [part for one in _narrowed(store, many) for part in _parts(one)])


def _whole(store: RedisStore, lane: Structure, now_ms: int) -> Iterator[_Stretch]:
    """What is overdue, what is to come, and what is beyond the calendar; for what is held back,
    too."""
    partition, name = lane
    key = partition_keys(store.client.prefix, partition)[STRUCTURES[name].key]
    for base, first, end in ((0, -(2**52), HELD_MS - 1), (HELD_MS, HELD_MS, float("inf"))):
        last = min(base + LAST_MS - 1, end)
        yield _Stretch(partition.topic, key, first, base + now_ms, base)
        yield _Stretch(partition.topic, key, base + now_ms + 1, last, base)
        if last < end:
            yield _Stretch(partition.topic, key, base + LAST_MS, end, base)


def _in_one_minute(stretch: _Stretch, now_ms: int) -> MinuteCount | None:
    """Its count, if all of it is told by one minute."""
    topic, begin, count = stretch.topic, stretch.first - stretch.base, stretch.messages
    if begin <= now_ms:  # it ends with now
        return MinuteCount(topic, _minute(now_ms), count, count)
    if begin >= LAST_MS:
        return MinuteCount(topic, LAST_MS, count)
    if _minute(begin) == _minute(stretch.last - stretch.base):
        return MinuteCount(topic, _minute(begin), count)
    return None


def _has_few(stretch: _Stretch) -> bool:
    minutes = (stretch.last - stretch.first) / MINUTE_MS
    return stretch.messages <= min(FEW, FEW_OF_MINUTE * (1 + minutes))


def _narrowed(store: RedisStore, stretches: Sequence[_Stretch]) -> Iterator[_Stretch]:
    """From the first message in it to the last: due times stand close together."""
    least = _scores(store, stretches, "ZRANGEBYSCORE", "LIMIT", 0, 1)
    most = _scores(store, stretches, "ZREVRANGEBYSCORE", "LIMIT", 0, 1)
    for (one, low), (_, high) in zip(least, most, strict=True):
        if low and high:  # all may have gone meanwhile
            yield one._replace(first=int(low[0]), last=int(high[0]))


def _minute(ms: float) -> int:
    return int(ms) // MINUTE_MS * MINUTE_MS


def _parts(stretch: _Stretch) -> Iterator[_Stretch]:
    """Cut where minutes begin."""
    begin, end = stretch.first - stretch.base, stretch.last - stretch.base
    minutes = (_minute(end) - _minute(begin)) // MINUTE_MS + 1
    step = -(-minutes // PARTS) * MINUTE_MS
    at = begin
    while at <= end:
        after = _minute(at) + step
        last = min(end, after - 1)
        yield stretch._replace(first=stretch.base + int(at), last=stretch.base + last)
        at = after


def _with_counts(store: RedisStore, stretches: Sequence[_Stretch]) -> list[_Stretch]:
    """Those that have messages, with how many."""
    counts = _asked(store, stretches, "ZCOUNT")
    return [one._replace(messages=int(count)) for one, count in counts if count]


def _read(store: RedisStore, stretches: Sequence[_Stretch]) -> Iterator[MinuteCount]:
    """Those with few messages, by their scores."""
    for page in chunked(stretches, COMMANDS // 10):
        for one, scores in _scores(store, page, "ZRANGEBYSCORE"):
            for minute, messages in Counter(_minute(at - one.base) for at in scores).items():
                yield MinuteCount(one.topic, minute, messages)


def _scores(
    store: RedisStore, stretches: Sequence[_Stretch], command: str, *options: Any
) -> Iterator[tuple[_Stretch, list[float]]]:
    """The scores of each stretch."""
    for one, answer in _asked(store, stretches, command, "WITHSCORES", *options):
        # Pairs, or one after the other.
        is_paired = answer and isinstance(answer[0], list | tuple)
        scores = [pair[1] for pair in answer] if is_paired else answer[1::2]
        yield one, [float(score) for score in scores]


def _asked(
    store: RedisStore, stretches: Sequence[_Stretch], command: str, *options: Any
) -> Iterator[tuple[_Stretch, Any]]:
    """The answer to the command about each stretch."""
    for page in chunked(stretches, COMMANDS):
        reads = []
        for one in page:
            # Fractions of the last millisecond belong to it.
            up_to = "+inf" if one.last == float("inf") else f"({int(one.last) + 1}"
            ends = (up_to, one.first) if command.startswith("ZREV") else (one.first, up_to)
            reads.append(Read(command, None, (one.key, *ends, *options)))
        yield from zip(page, store.client.read_all(reads), strict=True)
