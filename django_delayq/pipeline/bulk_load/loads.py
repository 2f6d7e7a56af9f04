"""Around the writing of messages, by Spark or without: checks the fences and the memory of Redis
first, and counts what was added afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import msgspec

from ...core.chunks import chunked
from ...core.exceptions import DelayQError, LoadLost, StoreError
from ...core.job_report import Code
from ...store.bulk_load import BulkLoad
from ...store.keys import Partition
from ...store.store import RedisStore
from ..job_errors import Refused, cause, code_of
from ..sinks.loader import LoadSpec
from .messages import LoadTotals

#: Bytes of a message in Redis beside its body: header, id and due time in two structures (measured:
#: 265).
OVERHEAD = 320
#: Part of Redis' memory that a load leaves free.
MARGIN = 0.05

COUNTS = ("new", "same", "kept")
#: Fences that are opened in one round trip. Each takes a connection.
AT_ONCE = 16


class Fences(NamedTuple):
    """The fences of a load, one in each partition."""

    store: RedisStore
    job: str
    partitions: Sequence[Partition]

    def read(self) -> list[dict[str, str]]:
        """The fences that are there."""
        return [fence for fence in self.store.bulk_load.fences(self.partitions, self.job) if fence]

    def fingerprints(self) -> list[str]:
        """Those of the runs that have begun."""
        return [fence["fingerprint"] for fence in self.read()]

    def counts(self) -> dict[str, int]:
        """How many messages all runs of this load have added, how many were there already, and how
        many were kept."""
        fences = self.read()
        return {name: sum(int(fence.get(name, 0)) for fence in fences) for name in COUNTS}

    def added(self, before: Mapping[str, int], rows: int) -> dict[str, int]:
        """What this run has done, for its report. The fences count it: they also know of tasks of
        Spark that failed. Raises LoadLost when they know of fewer messages than the load has: then
        the same load again adds those that Redis has lost."""
        counts = self.counts()
        if sum(counts.values()) < rows:
            raise LoadLost
        done = {name: count - before[name] for name, count in counts.items()}
        live = done["same"] + done["kept"]
        return {
            "added": done["new"],
            "live already": live,
            "added before": rows - done["new"] - live,
        }

    @contextmanager
    def reporting(self, before: Mapping[str, int], rows: int) -> Iterator[None]:
        """An error within says how far the load has come."""
        try:
            yield
        except Exception as error:
            found = cause(error)
            if code_of(found) == Code.REFUSED:
                raise found from error
            progress = ""
            with suppress(StoreError):
                new = max(0, self.counts()["new"] - before["new"])
                progress = (
                    f" {new:,} of {rows:,} messages were added before that; the same job again "
                    f"adds the rest."
                )
            raise DelayQError(f"{found}{progress}") from error

    def check(self, fingerprint: Mapping[str, Any]) -> None:
        """Raise Refused when the load has added something else under this name."""
        for found in self.fingerprints():
            if found != encode_fingerprint(fingerprint):
                old = decode_fingerprint(found)
                differences = ", ".join(
                    f"{name} was {old.get(name)} and is {fingerprint.get(name)}"
                    for name in sorted({*old, *fingerprint})
                    if old.get(name) != fingerprint.get(name)
                )
                raise Refused(
                    f"A job named {self.job!r} has begun with something else: {differences}. Under "
                    "one name one set of messages is added, so that repeating it adds nothing "
                    "twice. To finish that job, restore the source. To add new messages, use "
                    "another name, and give it only these: messages that have finished would be "
                    "sent again."
                )

    def add(
        self, write: Callable[[LoadSpec], object], spec: LoadSpec, delay_ms: int
    ) -> dict[str, int]:
        """Have the messages written. Returns what this run has added, for its report."""
        before, rows = self.counts(), spec.rows or 0
        with self.reporting(before, rows):
            write(msgspec.structs.replace(spec, due_ms=self.open(spec) + delay_ms))
            return self.added(before, rows)

    def open(self, spec: LoadSpec) -> int:
        """From when on delays count: the beginning of the first run, in ms. Raises FenceChanged,
        StoreUnavailable."""
        load = BulkLoad(self.job, spec.fingerprint, spec.record_conflicts)
        for topic in {partition.topic for partition in self.partitions}:
            self.store.partitions.counts(topic)  # says that the topic is used
        began, failed = [], None
        for partitions in chunked(self.partitions, AT_ONCE):
            opened = [self.store.bulk_load.load(place, load, 0, {}, ())() for place in partitions]
            for read in opened:
                try:
                    began.append(read().began_ms)
                except DelayQError as error:  # the others have to be read all the same
                    failed = failed or error
            if failed is not None:
                raise failed
        return min(began, default=0)


def encode_fingerprint(fingerprint: Mapping[str, Any]) -> str:
    """As the fence keeps it."""
    return msgspec.json.encode(fingerprint, order="sorted").decode()


def decode_fingerprint(text: str) -> dict[str, Any]:
    """From encode_fingerprint(); empty for what is none."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def check_memory(store: RedisStore, total: LoadTotals, applied: int, partitions: int) -> str:
    """Raise Refused when Redis has no room for the messages that are still to come. Returns a note
    when Redis has no limit.

    On a cluster the partitions are spread over its nodes, and the fullest one decides.
    """
    whole = max(0, total.rows - applied) * (OVERHEAD + total.body_bytes // max(1, total.rows))
    nodes = _memory(store)
    need = whole // max(1, min(len(nodes), partitions))
    used, most = min(nodes, key=lambda node: node[1] - node[0] if node[1] else float("inf"))
    free = int(most * (1 - MARGIN)) - used
    if need and not most:
        return (
            f"Redis has no maxmemory. The load takes about {_megabytes(need)}; {_megabytes(used)} "
            "are in use."
        )
    if need and need > free:
        on_nodes = f" on {len(nodes)} nodes" if len(nodes) > 1 else ""
        raise Refused(
            f"The load takes about {_megabytes(need)} of Redis' memory ({total.rows - applied:,} "
            f"messages{on_nodes}), and {_megabytes(max(0, free))} are free of {_megabytes(most)} "
            f"({MARGIN:.0%} stay free). Raise maxmemory, or schedule less at a time."
        )
    return ""


def _memory(store: RedisStore) -> list[tuple[int, int]]:
    """Bytes in use and allowed of each node; allowed is 0 without a limit."""
    if store.client.is_cluster:
        answer = store.client.redis.info("memory", target_nodes="primaries")
        nodes = [answer] if "used_memory" in answer else list(answer.values())
    else:
        nodes = [store.client.redis.info("memory")]
    return [(int(node["used_memory"]), int(node.get("maxmemory", 0))) for node in nodes]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 1e7 else f"{size / 1e6:,.1f} MB"
