"""Writes batches of messages (schemas.MESSAGES) into the queue, each message once.

The tasks of Spark use it (queue_sink.py), and so does a process without Spark. The fence of the
load (store/lua/load.lua) makes it safe to repeat all of it: a split is written in the order of its
ids, and messages that the fence has passed are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...core.exceptions import DelayQError, OutcomeUnknown, StoreFull, StoreUnavailable
from ...core.message import encode_record, task_code_sent
from ...store.bulk_load import BulkLoad, LoadProgress
from ...store.client import BATCH
from ...store.keys import Partition
from ...store.store import RedisStore
from ..schemas import SPLIT

T = TypeVar("T")

#: How often a call is sent if its outcome is unknown, or if Redis is unavailable, and the seconds
#: in between.
TRIES, WAIT = 3, 1.0
#: Calls of different splits that are on their way at once, so that Redis has the next one when it
#: has answered one.
AT_ONCE = 2


class LoadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What all messages of a load share."""

    job: str
    fingerprint: str
    tasks: Mapping[str, str]
    """Code of a task (8 hexadecimal digits) -> its name."""
    due_ms: int = 0
    """When messages without a due time of their own are due."""
    record_conflicts: bool = False
    """See store.bulk_load.BulkLoad."""
    per_second: float | None = None
    """Most messages that one Loader sends per second."""
    rows: int | None = None
    """How many messages there are; None: not known, and not checked."""


class Written(NamedTuple):
    """What a Loader has written."""

    splits: Sequence[tuple[Any, ...]]
    rows: int
    """All messages that it got, also those that were there."""


class Loader:
    """Writes batches of Arrow. While Redis works on some calls, the next one is prepared.

    A split never has two calls on their way: if the later one came first, the fence would pass the
    messages of the earlier one by.
    """

    def __init__(self, store: RedisStore, spec: LoadSpec) -> None:
        self._store = store
        self._load = BulkLoad(spec.job, spec.fingerprint, spec.record_conflicts)
        self._names = {bytes.fromhex(code): name for code, name in spec.tasks.items()}
        self._due_ms = spec.due_ms
        self._pending: dict[tuple[Any, ...], Callable[[], LoadProgress]] = {}
        """What reads the answer of a split's call, the oldest call first."""
        self._pace = Pace(spec.per_second)
        self._splits: dict[tuple[Any, ...], bytes] = {}
        """The last id of each split that was sent."""
        self._rows = 0

    def run(
        self, batches: Iterator[pa.RecordBatch], tell: Callable[[int], object] = bool
    ) -> Written:
        """Write all messages. `tell(rows)` is called with how many are written so far. Raises
        DelayQErrors; messages that were written before stay."""
        try:
            for batch in batches:
                for part in _of_splits(batch):
                    split = tuple(part.column(name)[0].as_py() for name in SPLIT)
                    for at in range(0, len(part), self._pace.batch):
                        self._send(split, part.slice(at, self._pace.batch))
                        tell(self._rows)
            for split in list(self._pending):
                self._settle(split)
        finally:
            for read in self._pending.values():
                with suppress(Exception):  # the error on its way up says more
                    read()
        return Written(list(self._splits), self._rows)

    def _send(self, split: tuple[Any, ...], rows: pa.RecordBatch) -> None:
        topic, number, part = split
        compress_above = self._store.client.settings.compress_above
        messages = load_arguments(rows, self._due_ms, compress_above)
        partition = Partition(topic, number)
        rest = _repeated(lambda: lambda: self._without_elsewhere(partition, messages))()
        # The names go with each call: they are short, and Redis may have lost them.
        headers = rows.column("header").unique().to_pylist()
        codes = {task_code_sent(header) for header in headers}
        tasks = {code: self._names[code] for code in codes if code in self._names}
        # By the call before, which is settled before this one is sent.
        passed = self._splits.get(split, b"")
        begin = self._store.bulk_load.load(partition, self._load, part, tasks, rest, passed)
        self._settle(split)
        self._splits[split] = messages[-1][0]
        while len(self._pending) >= self._pace.at_once:
            self._settle(next(iter(self._pending)))
        self._pace.wait()
        self._pending[split] = _repeated(begin)

    def _without_elsewhere(self, partition: Any, messages: list[Any]) -> list[Any]:
        """The messages; one that lives in another partition has no record. A topic that once had
        fewer partitions may hold a key in another partition than today."""
        counts = self._store.partitions.counts(partition.topic)
        if partition.number >= max(counts):
            raise DelayQError(
                f"{partition} does not exist: messages.placed() gives each message its partition."
            )
        if len(counts) == 1:
            return messages
        live = self._store.find_many((partition.topic, message[0]) for message in messages)
        elsewhere = {found.id for place, found in live if place != partition}
        return [(*message[:3], b"") if message[0] in elsewhere else message for message in messages]

    def _settle(self, split: tuple[Any, ...]) -> None:
        """Read the answer of this split's call, if it has one."""
        if (read := self._pending.pop(split, None)) is None:
            return
        loaded = read()
        self._pace.count(loaded.new)
        self._rows += loaded.new + loaded.skipped + loaded.same + loaded.kept


def _of_splits(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Its parts, each of one split."""
    if not len(batch):
        return
    changes = np.zeros(len(batch) - 1, bool)
    for column in map(batch.column, SPLIT):
        differs = pc.not_equal(column.slice(1), column.slice(0, len(batch) - 1))
        changes |= differs.to_numpy(zero_copy_only=False)
    starts = [0, *(np.flatnonzero(changes) + 1).tolist(), len(batch)]
    for start, end in pairwise(starts):
        yield batch.slice(start, end - start)


def load_arguments(
    rows: pa.RecordBatch, due_ms: int, compress_above: int
) -> list[tuple[bytes, str, str, bytes]]:
    """A batch of Arrow as the arguments of load.lua: id, due time, expires and record of each row.
    `due_ms`: of rows without a due time. Longer bodies than `compress_above` are compressed."""
    due = pc.fill_null(rows.column("due_ms"), due_ms).cast(pa.string())
    large = pa.large_binary()
    header, body = (rows.column(name).cast(large) for name in ("header", "body"))
    if (pc.max(pc.binary_length(body)).as_py() or 0) <= compress_above:
        records = pc.binary_join_element_wise(header, body, pa.scalar(b"", large)).to_pylist()
    else:
        records = [
            encode_record(*parts, compress_above)
            for parts in zip(header.to_pylist(), body.to_pylist(), strict=True)
        ]
    columns = (rows.column("id"), due, rows.column("expires"))
    return list(zip(*(column.to_pylist() for column in columns), records, strict=True))


class Pace:
    """Limits the messages per second of one Loader."""

    def __init__(self, per_second: float | None) -> None:
        self._per_second = per_second
        self._began = self._next = time.monotonic()
        self.batch = BATCH if per_second is None else max(1, min(BATCH, int(per_second)))
        """Messages of a call: at most those of one second."""
        self.at_once = AT_ONCE if per_second is None else 1
        """Calls that may be on their way: the wait for the next one begins with an answer."""

    def wait(self) -> None:
        """Wait until the next messages may be sent."""
        if self._per_second is not None:
            time.sleep(max(0.0, self._next - time.monotonic()))
            self._began = time.monotonic()

    def count(self, new: int) -> None:
        """Count the new messages of the last call. Those that the fence skipped are no work for the
        workers."""
        if self._per_second is not None:
            self._next = max(self._next, self._began) + new / self._per_second


def _repeated(begin: Callable[[], Callable[[], T]]) -> Callable[[], T]:
    """Send a call, and send it again when that fails or no answer comes. The fence makes that
    safe."""
    first = _sent(begin)

    def read() -> T:
        answer, tries = first, TRIES
        while True:
            try:
                return answer()
            except (OutcomeUnknown, StoreUnavailable) as error:
                tries -= 1
                if not tries or isinstance(error, StoreFull):
                    raise
                time.sleep(WAIT)
                answer = _sent(begin)

    return read


def _sent(begin: Callable[[], Callable[[], T]]) -> Callable[[], T]:
    """Send a call. An error in sending is raised where the answer is read."""
    try:
        return begin()
    except DelayQError as error:
        failed = error

    def read() -> T:
        raise failed

    return read
