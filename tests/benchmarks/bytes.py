"""Bytes of Redis per waiting message with 100 bytes of arguments, against one sorted set and one
hash."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from tests.benchmarks import common
from tests.benchmarks.raw import RawQueue

COUNT = 200_000


def per_message(client: Any, count: int, fill: Callable[[], Any]) -> float:
    """By how much the memory grows that is not buffers of clients: these are given back soon, and
    are half a byte for each of 200,000 messages."""
    before = _used(client)
    fill()
    return (_used(client) - before) / count


def _used(client: Any) -> int:
    memory = client.info("memory")
    return int(memory["used_memory"]) - int(memory["mem_clients_normal"])


def main(arguments: list[str]) -> None:
    """The floor: a 16-byte id in a sorted set, and in a hash with the 100 bytes. COUNT may come
    first."""
    options = common.options(arguments, 1)
    count = int(options.worker[0]) if options.worker else options.scaled(COUNT, 1000)
    assert len(json.dumps([1_000_000, "x" * 88], separators=(",", ":"))) == 100
    with common.bench_server() as server:
        raw, client = RawQueue(server), server.client()
        common.fill(1)
        ours = per_message(client, count, lambda: common.fill(count))
        floor = per_message(client, count, lambda: raw.enqueue(500, count, b"x" * 100))
        client.close()
    common.report(
        "bytes",
        ours,
        "bytes/message",
        case=f"{count:,} waiting" if options.worker else None,
        ceiling=floor,
        ceiling_is="ZADD and HSET of a 16-byte id and the 100 bytes of arguments",
        messages=count,
        arguments_bytes=100,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
