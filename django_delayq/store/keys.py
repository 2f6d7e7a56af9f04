"""Names of all Redis keys, and nothing else.

One partition = one hash tag, so that every script stays in one cluster slot:

| key | type | member -> value |
|---|---|---|
| PREFIX:{topic:p}:delayed:high/normal/low | zset | id -> due_at in ms; one lane per priority |
| PREFIX:{topic:p}:leased | zset | id -> lease deadline in ms; this is the lease |
| PREFIX:{topic:p}:messages | hash | id -> record (see message.py) |
| PREFIX:{topic:p}:attempts | hash | id -> attempt, crashes, due, first claim, token, put off |
| PREFIX:{topic:p}:finished | stream | one entry per finished message, until it is archived |
| PREFIX:{topic:p}:followers | hash | id -> due_at and record to enqueue when its run ends |
| PREFIX:{topic:p}:meta | hash | paused, wakeups, counters, task:<code> -> name |
| PREFIX:{topic:p}:result:ID | stream | entry of an acked message with a result, for a time |
| PREFIX:{topic:p}:progress:ID | string | how far a running task has come (JSON), for a time |
| PREFIX:{topic:p}:limits | zset | what runs under a limit and what waits for it, by bytes |
| PREFIX:{topic:p}:buckets | zset | limit -> when the next message may start under its rate |
| PREFIX:{topic:p}:timers | zset | limit that something waits for -> when to look at it |
| PREFIX:{topic:p}:windows | zset | id, and mark -> until when (ms) its key takes no other message |
| PREFIX:{topic:p}:bulk:JOB | hash | fence of a bulk load: split -> highest id it has passed |
| PREFIX:topics | set | topic:N, every number of partitions it has had |
| PREFIX:workers | hash | worker -> heartbeat (JSON) |
| PREFIX:quiet | hash | worker that claims nothing -> since when (ms) |
| PREFIX:samples | stream | one entry per minute: figures of all topics together (JSON) |
| PREFIX:samples:newest | stream | the last minutes: figures of each topic (JSON) |
| PREFIX:samples:topic:TOPIC | stream | f, w, l: the minutes in which figures of the topic changed |
| PREFIX:lock:NAME | string | a lock for some time: one of all processes does the work |
| PREFIX:calls:TOKEN:WINDOW | hash | calls of a token of the HTTP API in a window of time |
| PREFIX:{call:DIGEST}:lock | string | a call with an Idempotency-Key is on its way |
| PREFIX:{call:DIGEST}:answer | hash | of such a call |
| PREFIX:{call:DIGEST}:first | string | fingerprint of the first such call |
| PREFIX:move | hash | how far a move to another Redis is: state, id, until when it may last |
| PREFIX:moved:REST | any | while the store is frozen: the value of PREFIX:REST |
| PREFIX:ahead_us | string | how far the clock is ahead, in a test that has moved it |
| PREFIX:wakeups | channel | topic:p:due_at_ms, a hint that a partition has more to do |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

#: In place of a topic in a hint: each worker reads whether it is quiet. No topic can have this
#: name.
QUIET_HINT = "!quiet"
#: In place of a topic in a hint: the message whose id stands, as a number, in place of that of a
#: partition was cancelled while it ran.
CANCELLED_HINT = "!cancelled"
#: In place of a topic in a hint: a worker shows that hints arrive.
BEAT_HINT = "!beat"
#: In place of a topic in a hint, with the name of a worker behind it: how busy it is, in place of
#: the number.
FLEET_HINT = "!fleet:"


class Partition(NamedTuple):
    """One part of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.number}"


@lru_cache(maxsize=16_384)
def partition_keys(prefix: str, partition: Partition) -> tuple[str, ...]:
    """The ten keys of a partition in the order that the scripts expect (shared/partition.lua)."""
    base = f"{prefix}:{{{partition}}}:"
    names = ("delayed:high", "delayed:normal", "delayed:low", "leased", "messages", "attempts",
    "finished",
             "followers", "meta", "limits")  # fmt: skip
    return tuple(base + name for name in names)


def messages_key(prefix: str, partition: Partition) -> str:
    """The hash of records."""
    return partition_keys(prefix, partition)[4]


def leased_key(prefix: str, partition: Partition) -> str:
    """The zset of leases."""
    return partition_keys(prefix, partition)[3]


def finished_key(prefix: str, partition: Partition) -> str:
    """The stream of finished messages."""
    return partition_keys(prefix, partition)[6]


def meta_key(prefix: str, partition: Partition) -> str:
    """The hash of counters and flags."""
    return partition_keys(prefix, partition)[8]


def rate_keys(prefix: str, partition: Partition) -> tuple[str, str]:
    """The zsets that a claim under limits needs besides: of rates, and of what waits for them."""
    base = f"{prefix}:{{{partition}}}:"
    return f"{base}buckets", f"{base}timers"


def windows_key(prefix: str, partition: Partition) -> str:
    """The zset of windows: keys that take no other message for some time."""
    return f"{prefix}:{{{partition}}}:windows"


def fence_key(prefix: str, partition: Partition, job: str) -> str:
    """The hash that keeps a bulk load from adding anything twice."""
    return f"{prefix}:{{{partition}}}:bulk:{job}"


def result_key(prefix: str, partition: Partition, message_id: bytes) -> str:
    """The copy of the finished entry of a message with a result."""
    return f"{prefix}:{{{partition}}}:result:{message_id.hex()}"


def progress_key(prefix: str, partition: Partition, message_id: bytes) -> str:
    """How far the task of a message has come."""
    return f"{prefix}:{{{partition}}}:progress:{message_id.hex()}"


def topics_key(prefix: str) -> str:
    """The set of topics and their numbers of partitions."""
    return f"{prefix}:topics"


def workers_key(prefix: str) -> str:
    """The hash of heartbeats."""
    return f"{prefix}:workers"


def quiet_key(prefix: str) -> str:
    """The hash of workers that claim nothing."""
    return f"{prefix}:quiet"


def events_key(prefix: str) -> str:
    """The stream of what happens to messages."""
    return f"{prefix}:events"


def samples_key(prefix: str) -> str:
    """The stream of samples: all topics together."""
    return f"{prefix}:samples"


def newest_samples_key(prefix: str) -> str:
    """The stream of the newest samples: each topic."""
    return f"{prefix}:samples:newest"


def topic_samples_key(prefix: str, topic: str) -> str:
    """The stream of the samples of one topic."""
    return f"{prefix}:samples:topic:{topic}"


def lock_key(prefix: str, name: str) -> str:
    """A lock that ends by itself."""
    return f"{prefix}:lock:{name}"


def partitions_in(members: Iterable[bytes]) -> Sequence[Partition]:
    """The partitions behind the members of the set of topics."""
    counts: dict[str, int] = {}
    for member in members:
        topic, _, count = member.decode().rpartition(":")
        counts[topic] = max(counts.get(topic, 0), int(count))
    return [
        Partition(topic, number)
        for topic, count in sorted(counts.items())
        for number in range(count)
    ]


def wakeups_channel(prefix: str) -> str:
    """The channel of hints. Equal to what wake() in shared/wake.lua builds."""
    return f"{prefix}:wakeups"


def partition_of(topic: str, message_id: bytes, count: int) -> Partition:
    """Where a message lives among `count` partitions: by the last bytes of its id, which are random
    or a hash."""
    return Partition(topic, int.from_bytes(message_id[-4:], "big") % count)


def calls_key(prefix: str, token: str, window: int) -> str:
    """How many calls a token of the HTTP API has made in a window of time."""
    return f"{prefix}:calls:{token}:{window}"


def answer_keys(prefix: str, call: str) -> tuple[str, str, str]:
    """The lock, the answer and the fingerprint of a call of the HTTP API that may come again."""
    base = f"{prefix}:{{call:{call}}}:"
    return f"{base}lock", f"{base}answer", f"{base}first"


def ahead_key(prefix: str) -> str:
    """By how many microseconds a test has moved the clock."""
    return f"{prefix}:ahead_us"


def move_key(prefix: str) -> str:
    """The state of a move to another Redis."""
    return f"{prefix}:move"


def resting_key(prefix: str, key: str) -> str:
    """Where the value of a key is while the store is frozen. It lies in the same slot."""
    return f"{prefix}:moved:{key[len(prefix) + 1 :]}"


def frozen_keys(prefix: str, partitions: Iterable[Partition]) -> Iterable[str]:
    """The keys that a frozen store has no value for, the set of topics first. Every call of ours
    that changes something reads or writes one of them first."""
    yield from (topics_key(prefix), workers_key(prefix), quiet_key(prefix), samples_key(prefix))
    for partition in partitions:
        yield from partition_keys(prefix, partition)
        yield from (*rate_keys(prefix, partition), windows_key(prefix, partition))
