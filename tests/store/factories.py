"""Puts messages into the states that tests begin with, and looks at everything a partition holds.

The chain is as in life: `enqueue` -> `claim` -> a settled, released or crashed lease. Time is moved
without sleeping: due times are instants long past or far ahead, and `end_leases` moves the
deadlines themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from redis import Redis

from django_delayq.core.message import (
    DURABLE,
    EXPIRES_WITH_DUE,
    HEADER_END,
    Attempts,
    Priority,
    encode_header,
    encode_record,
    new_ids,
    task_code,
    with_limit,
)
from django_delayq.core.message import STAMP as STAMP_OF
from django_delayq.core.times import When
from django_delayq.store import keys
from django_delayq.store.keys import Partition
from django_delayq.store.lease import Lease
from django_delayq.store.store import Outgoing, RedisStore
from tests.servers import Server

PARTITION = Partition("orders", 0)
TASK = "shop.close_order"
CODE = task_code(TASK)
TASKS = {CODE: TASK}
PAST = "1000000000000"
"""An instant long past: due."""
DAY_MS = 86_400_000
LATER = f"+{DAY_MS}"
"""A delay of a day: not due during any test."""
FAR = "9000000000000"
"""An instant far ahead."""
DETAIL = b'{"reason":"test"}'
LIMIT = b"customer"
"""Stands for the name of a limit."""
STAMP = 1_700_000_000_000_000
"""When SQL has accepted a durable message, in microseconds: before anything else in a test."""
NAMES = (
    "high", "normal", "low", "leased", "messages", "attempts", "finished", "followers", "meta",
    "limits",
)  # fmt: skip
HELD = 2**48
"""Added to the due time of a message that a limit holds back, in its lane."""


def new_id() -> bytes:
    return new_ids(1)[0]


def record(
    body: bytes = b"[1]",
    *,
    priority: Priority = Priority.NORMAL,
    ttr_ms: int = 60_000,
    flags: int = 0,
    limit: bytes = b"",
    code: bytes = CODE,
) -> bytes:
    """A record as a producer sends it: without its stamp."""
    header = encode_header(code, flags | priority, ttr_ms)
    return encode_record(with_limit(header, limit) if limit else header, body, 2**24)


def outgoing(
    message_id: bytes | None = None,
    *,
    mode: str = "raise",
    when: str = PAST,
    expires: str = "",
    **fields: Any,
) -> Outgoing:
    """One message for `store.enqueue`. A relative expiry sets its flag, as the producer does."""
    flags = fields.pop("flags", 0) | (EXPIRES_WITH_DUE if expires.startswith("+") else 0)
    body = record(flags=flags, **fields)
    return Outgoing(message_id or new_id(), mode, as_when(when), as_when(expires), body)


def as_when(text: str) -> When:
    """Also of a text that is none, as a client of another language may send it."""
    try:
        return When(text)
    except ValueError:
        when = str.__new__(When, text)
        when.is_delay, when.ms, when.stamp_us = False, 0, 0
        return when


def accepted(
    message_id: bytes | None = None, *, stamp: int = STAMP, when: str = PAST, **fields: Any
) -> Outgoing:
    """One durable message that SQL accepted at `stamp` (us), as the relay and the reconciler send
    it."""
    return outgoing(message_id, when=f"@{stamp}:{when}", flags=DURABLE, **fields)


def stamped(stamp: int = STAMP, body: bytes = b"[1]") -> bytes:
    """The record of a durable message as it lies in Redis."""
    return STAMP_OF.pack(stamp, bytes(6)) + record(body, flags=DURABLE)


def send(store: RedisStore, *messages: Outgoing) -> dict[int, str]:
    """Enqueue; returns the words."""
    return store.enqueue(PARTITION, TASKS, messages)[1]


def enqueue(store: RedisStore, message_id: bytes | None = None, **fields: Any) -> bytes:
    """Enqueue one message, due unless told otherwise; returns its id."""
    message = outgoing(message_id, **fields)
    send(store, message)
    return message[0]


def enqueue_many(store: RedisStore, count: int, *, when: str = PAST) -> list[bytes]:
    """A backlog; returns the ids in their order."""
    ids = sorted(new_ids(count))
    for at in range(0, count, 500):
        send(store, *(outgoing(i, when=when) for i in ids[at : at + 500]))
    return ids


def claim(store: RedisStore, message_id: bytes | None = None, **fields: Any) -> Lease:
    """The lease of a message: of a new one, or of the next that is due."""
    message_id = message_id or enqueue(store, **fields)
    (lease,) = store.claim(PARTITION, 1).leases
    assert message_id == lease.id, "another message was due sooner"
    return lease


def claim_durable(store: RedisStore, message_id: bytes | None = None, **fields: Any) -> Lease:
    """The lease of a new durable message."""
    message = accepted(message_id, **fields)
    send(store, message)
    return claim(store, message[0])


def claim_again(store: RedisStore, lease: Lease) -> Lease:
    """The lease that follows when the holder of the first was too slow: another worker has the
    message now."""
    end_leases(store, lease.id)
    store.reclaim(PARTITION)
    make_due(store, lease.id)
    return claim(store, lease.id)


def follow(
    store: RedisStore, message_id: bytes, body: bytes = b'["follower"]', **fields: Any
) -> None:
    """Replace a running message: it runs after the run that goes on."""
    assert send(store, outgoing(message_id, mode="replace", body=body, **fields)) == {0: "FOLLOWS"}


def end_leases(store: RedisStore, *ids: bytes) -> None:
    """As if the ttr were over: moves the deadlines of the leases (all, or of these ids) into the
    past."""
    leased = keys.leased_key(store.client.prefix, PARTITION)
    for member in ids or store.client.command("ZRANGE", leased, 0, -1):
        store.client.command("ZADD", leased, "XX", 1, member)


def configure(store: RedisStore, **fields: Any) -> None:
    """Change settings of the store."""
    store.client.settings = replace(store.client.settings, **fields)


def make_due(store: RedisStore, message_id: bytes) -> None:
    """As if the delay were over."""
    store.reschedule_in(PARTITION, message_id, PAST)


def rewind(store: RedisStore, partition: Partition, milliseconds: float) -> None:
    """As if so much time had passed for its limits: moves their rates and timers back."""
    for key in keys.rate_keys(store.client.prefix, partition):
        for member, score in store.client.redis.zrange(key, 0, -1, withscores=True):
            store.client.redis.zadd(key, {member: score - milliseconds})


def corrupt(store: RedisStore, message_id: bytes, raw: bytes | None) -> None:
    """Overwrite the stored record, or lose it (None)."""
    if raw is None:
        store.client.command("HDEL", key(store, "messages"), message_id)
    else:
        store.client.command("HSET", key(store, "messages"), message_id, raw)


# Looking


def key(store: RedisStore, name: str) -> str:
    """A key of the partition by its last word."""
    return keys.partition_keys(store.client.prefix, PARTITION)[NAMES.index(name)]


def dump(store: RedisStore) -> dict[str, dict[Any, Any]]:
    """Everything the partition holds: equal dumps mean that nothing changed."""
    pipeline = store.client.redis.pipeline(transaction=False)
    for name, name_in_redis in zip(
        NAMES, keys.partition_keys(store.client.prefix, PARTITION), strict=True
    ):
        if name in ("high", "normal", "low", "leased", "limits"):
            pipeline.zrange(name_in_redis, 0, -1, withscores=True)
        elif name == "finished":
            pipeline.xrange(name_in_redis)
        else:
            pipeline.hgetall(name_in_redis)
    return {name: dict(found) for name, found in zip(NAMES, pipeline.execute(), strict=True)}


def waiting(store: RedisStore) -> dict[bytes, float]:
    """Due time in ms of every message that waits, whatever its lane."""
    content = dump(store)
    scores = content["high"] | content["normal"] | content["low"]
    return {i: due_in(score) for i, score in scores.items()}


def due_in(score: float) -> float:
    """The due time behind a score of a lane."""
    return score - HELD if HELD <= score < 2 * HELD else score


def held_back(store: RedisStore) -> set[bytes]:
    """What the limits of keys hold back."""
    return held_back_in(dump(store))


def held_back_in(content: dict[str, dict[Any, Any]]) -> set[bytes]:
    """The same of a dump."""
    scores = content["high"] | content["normal"] | content["low"]
    return {i for i, score in scores.items() if due_in(score) != score}


def leased(store: RedisStore) -> set[bytes]:
    return set(dump(store)["leased"])


def attempts(store: RedisStore, message_id: bytes) -> Attempts | None:
    entry = dump(store)["attempts"].get(message_id)
    return Attempts.decode(entry) if entry else None


def live(store: RedisStore) -> set[bytes]:
    return set(dump(store)["messages"])


def finished(store: RedisStore) -> list[dict[str, bytes]]:
    """The entries of the finished stream, oldest first."""
    answer = store.client.redis.xrange(key(store, "finished"))
    return [{name.decode(): value for name, value in fields.items()} for _, fields in answer]


def ends(store: RedisStore) -> list[tuple[bytes, str]]:
    """Id and state of every finished message."""
    return [(entry["id"], entry["state"].decode()) for entry in finished(store)]


def counter(store: RedisStore, name: str) -> int:
    return int(store.queries.stats(PARTITION).meta.get(name, 0))


def wakeups(store: RedisStore) -> int:
    """How often the dispatchers of the partition were woken."""
    return store.queries.counters([PARTITION])[0][0]


def markers(store: RedisStore) -> dict[bytes, int]:
    """The stamp of each durable message that Redis remembers as ended."""
    meta = dump(store)["meta"].items()
    return {
        name[5:]: int.from_bytes(stamp, "big") for name, stamp in meta if name.startswith(b"done:")
    }


def history(store: RedisStore, message_id: bytes) -> list[bytes]:
    """The lines that are remembered of the runs that have ended, oldest first."""
    entry = attempts(store, message_id)
    return entry.history.splitlines() if entry else []


def body_of(store: RedisStore, message_id: bytes) -> bytes:
    """The body as it is stored."""
    return bytes(dump(store)["messages"][message_id][HEADER_END:])


# Servers


def nodes(server: Server) -> list[Any]:
    """A client for each primary, past the cluster client."""
    return [_client_at(str(node.socket)) for node in server.primaries]


@cache
def _client_at(socket: str) -> Redis:
    return Redis(unix_socket_path=socket)


def on_all_nodes(server: Server, *command: Any) -> None:
    for node in nodes(server):
        node.execute_command(*command)


@contextmanager
def full(server: Server) -> Iterator[None]:
    """A Redis that has reached its maxmemory."""
    on_all_nodes(server, "CONFIG", "SET", "maxmemory", "1")
    try:
        yield
    finally:
        on_all_nodes(server, "CONFIG", "SET", "maxmemory", "0")
