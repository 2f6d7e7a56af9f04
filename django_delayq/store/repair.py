"""What an audit asks and mends in Redis: each damage is defined once, in lua/shared/damages.lua."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

from ..core.message import stamp_us_of
from . import keys
from .client import RedisClient
from .keys import Partition
from .queries import Life

Damage = Literal[
    "no_record",  # in a lane or leased without a record: ends as dead, body_missing
    # a record in no lane and not leased (argument: its due time in ms): back; without one dead,
    # due_lost
    "no_place",
    "two_lanes",  # the place in the lane of its record stays
    "wrong_lane",  # in one lane, but not that of its record: moved there
    "lane_and_lease",  # the lease stays
    "stray_attempts",  # attempts without a message: removed
    "stray_follower",  # a follower whose run does not go on: takes its place
    "stale_end",  # a remembered end that is archived: forgotten
    # a remembered end that is in no stream (argument: its record): told as dead, end_lost
    "lost_end",
    "surplus",  # a life that does not belong in this partition: leaves it, unless it runs
    "no_attempts",  # gets this attempts entry (argument)
]
"""What mend.lua knows. The caller has to say of the ends and of what is surplus that they are."""

#: Messages of one call: Redis serves nobody else while a script runs.
AT_ONCE = 250
PAGE = 500


class Suspect(NamedTuple):
    """A message to check or to mend."""

    id: bytes
    stamp: bytes = b""
    """The life that is meant (8 bytes); b"": any."""
    argument: bytes = b""
    """See Damage."""


class Diagnosis(NamedTuple):
    """What is damaged in a message."""

    id: bytes
    stamp_us: int | None
    """enqueued_at of its record; None without one that has it."""
    damages: Sequence[str]


class Repair:
    """The part of the store that an audit needs."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    def diagnose(self, partition: Partition, ids: Sequence[bytes]) -> Sequence[Diagnosis]:
        """Those of these messages (any number) that are damaged, as far as Redis alone can
        tell. Changes nothing."""
        items = [(message_id,) for message_id in ids]
        answers = self._call(partition, ("diagnose", "", ""), items, lambda answer: answer[0])
        return [
            Diagnosis(message_id, stamp_us_of(stamp), [damage.decode() for damage in damages])
            for answer in answers
            for message_id, stamp, *damages in answer[1:]
        ]

    def check(
        self, partition: Partition, damage: Damage, suspects: Sequence[Suspect]
    ) -> Sequence[bool]:
        """Whether each of these messages (any number) is damaged so. Changes nothing."""
        answers = self._call(partition, ("check", damage, ""), suspects, len)
        return list(map(bool, chain.from_iterable(answers)))

    def mend(
        self,
        partition: Partition,
        damage: Damage,
        suspects: Sequence[Suspect],
        archive: str = "",
    ) -> Sequence[bool]:
        """Mend one kind of damage in these messages (any number).

        Returns whether each of them was damaged so; the others are unchanged. `archive`: all, dead
        or none; empty: as the topic's setting says.
        """
        archive = archive or self._client.settings.archive_of(partition.topic)
        answers = self._call(partition, ("mend", damage, archive), suspects, len)
        return list(map(bool, chain.from_iterable(answers)))

    def _call(
        self,
        partition: Partition,
        order: Sequence[str],
        items: Sequence[Sequence[bytes]],
        count: Callable[[Any], int],
    ) -> Iterator[Any]:
        """The answers of the script. `count`: how many items an answer is about."""
        at = 0
        while at < len(items):
            fields = chain.from_iterable(items[at : at + AT_ONCE])
            answer = self._client.call("mend", partition, [*order, *fields])
            yield answer
            at += count(answer)

    def finished_lives(self, partition: Partition) -> set[Life]:
        """Every life in the finished stream. Reads all of it, the newest first, in pages."""
        key, before, lives = keys.finished_key(self._client.prefix, partition), "+", set[Life]()
        while page := self._client.command("XREVRANGE", key, before, "-", "COUNT", PAGE):
            lives |= {Life(entry[b"id"], stamp_us_of(entry[b"record"]) or 0) for _, entry in page}
            before = f"({page[-1][0].decode()}"
        return lives
