"""Counts by minute when the messages of Redis fall due, without reading them.

Redis counts a stretch of a lane in O(log n). So a lane with many messages is divided until each
part is a minute, or has few messages: what is read grows with the minutes, not with the messages.
It only sends plain commands that read, so a replica is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...core.chunks import chunked
from ...store.client import Read
from ...store.keys import Partition, partition_keys
from ...store.store import RedisStore
from .structures import LANES, STRUCTURES, Structure

MINUTE_MS = 60_000
#: 9999-12-31, the last day of Python's calendar. Later due times, such as infinity, become this.
LAST_MS = 253_402_214_400_000
#: HELD of shared/partition.lua: what a limit holds back has so much added to its due time.
HELD_MS = 2**48
#: A stretch with at most so many messages, and at most so many for each of its minutes, is read: a
#: count takes as long as ten messages.
FEW, FEW_OF_MINUTE = 500, 10
#: Into how many parts a longer one is divided.
PARTS = 64
#: Commands of a round trip, and lanes that are counted together.
COMMANDS, TOGETHER = 500, 250
FIRST = ("LIMIT", 0, 1)


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
    lanes = [Structure(partition, name) for partition in partitions for name in LANES]
    for chosen in chunked(lanes, TOGETHER):
        yield from _counted(store, chosen, now_ms)


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
        parts = [part for one in _narrowed(store, many) for part in _parts(one)]
        rest = _with_counts(store, parts)


def _whole(store: RedisStore, lane: Structure, now_ms: int) -> Iterator[_Stretch]:
    """What is overdue, what is to come, and what is beyond the calendar; for what is held back,
    too."""
    partition, name = lane
    key = partition_keys(store.client.prefix, partition)[STRUCTURES[name]]
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


def _narrowed(store: RedisStore, stretches: Sequence[_Stretch]) -> list[_Stretch]:
    """From the first message in it to the last: due times stand close together."""
    narrowed = []
    for page in chunked(stretches, COMMANDS // 2):
        reads = []
        for one in page:
            least, most = one.first, _up_to(one)
            reads += [
                Read("ZRANGEBYSCORE", None, (one.key, least, most, "WITHSCORES", *FIRST)),
                Read("ZREVRANGEBYSCORE", None, (one.key, most, least, "WITHSCORES", *FIRST)),
            ]
        answers = [_scores(answer) for answer in store.client.read_all(reads)]
        for one, low, high in zip(page, answers[::2], answers[1::2], strict=True):
            if low and high:  # all may have gone meanwhile
                narrowed.append(one._replace(first=int(low[0]), last=int(high[0])))
    return narrowed


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
    counted = []
    for page in chunked(stretches, COMMANDS):
        reads = [Read("ZCOUNT", None, (one.key, one.first, _up_to(one))) for one in page]
        for one, count in zip(page, store.client.read_all(reads), strict=True):
            if count:
                counted.append(one._replace(messages=int(count)))
    return counted


def _up_to(stretch: _Stretch) -> str:
    """Its last score, as Redis takes it: fractions of the last millisecond belong to it."""
    return "+inf" if stretch.last == float("inf") else f"({int(stretch.last) + 1}"


def _read(store: RedisStore, stretches: Sequence[_Stretch]) -> Iterator[MinuteCount]:
    """Those with few messages, by their scores."""
    for page in chunked(stretches, COMMANDS // 10):
        reads = [
            Read("ZRANGEBYSCORE", None, (one.key, one.first, _up_to(one), "WITHSCORES"))
            for one in page
        ]
        for one, answer in zip(page, store.client.read_all(reads), strict=True):
            minutes = Counter(_minute(score - one.base) for score in _scores(answer))
            for minute, messages in minutes.items():
                yield MinuteCount(one.topic, minute, messages)


def _scores(answer: Sequence[Any]) -> list[float]:
    """Of a reply with scores: pairs, or one after the other."""
    if answer and isinstance(answer[0], list | tuple):
        return [float(pair[1]) for pair in answer]
    return [float(score) for score in answer[1::2]]
