"""Writes outcomes to Redis: acks and nacks leave in batches, a few milliseconds after the task."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from django.dispatch import Signal

from ..core import signals
from ..core.chunks import chunked, chunked_by_weight
from ..core.exceptions import DelayQError, OutcomeUnknown, StoreError
from ..core.present import counted
from ..core.service import Service, Sleeper
from ..store.client import BATCH, BATCH_BYTES
from ..store.keys import Partition
from ..store.lease import Lease
from .outcome import Events, Outcome, Result
from .shared import Shared

logger = logging.getLogger("delayq.worker")

#: After a batch of GATHER_AFTER outcomes or more, the next batch starts GATHER seconds after it at
#: the earliest. Each batch is a call of a script and takes the interpreter from the tasks: without
#: a pause it costs a tenth of the rate of coroutines.
GATHER = 0.002
GATHER_AFTER = 8
#: The same while the next message of each thread is here. There a call for each few outcomes costs
#: 6 % of the rate of tasks with one UPDATE, and nobody waits for them. Elsewhere the next message
#: may wait: where two may run at a time, this pause let 400 a second run instead of 3,000. What has
#: run and is not settled runs again when the process crashes.
FILLED_GATHER = 0.005
FILLED_GATHER_AFTER = 2

#: Which method of the store settles a result; all others are nacks.
_CALLS = {Result.ACKED: "ack", Result.RELEASED: "release", Result.PUT_OFF: "put_off"}
_SIGNALS: dict[Result, Signal] = {
    Result.ACKED: signals.acked,
    Result.RETRIED: signals.retried,
    Result.SNOOZED: signals.snoozed,
    Result.PUT_OFF: signals.put_off,
    Result.RELEASED: signals.released,
    Result.DEAD: signals.dead,
}


def call_of(outcome: Outcome) -> str:
    """Which method of the store settles it."""
    return _CALLS.get(outcome.result, "nack")


def settle_parts(outcomes: Sequence[Outcome]) -> Iterator[Sequence[Outcome]]:
    """Outcomes of one partition and one method, in parts for one script call each."""
    for part in chunked(outcomes, BATCH):
        leases = [outcome.lease for outcome in part]
        is_small = sum([len(lease.record) for lease in leases]) <= BATCH_BYTES
        if is_small and not any(lease.report for lease in leases):
            yield part  # nearly always: a weight for each would cost 4 % of a no-op message
        else:
            yield from chunked_by_weight(part, _weight, BATCH_BYTES)


def _weight(outcome: Outcome) -> int:
    """The bytes that its script call reads and writes, about."""
    report, size = outcome.lease.report, len(outcome.lease.record)
    result = len(report.result) if report and report.result else 0
    return 2 * (size + result) if result else size


def write_outcomes(
    shared: Shared, call: str, partition: Partition, chunk: Sequence[Outcome]
) -> Sequence[Lease]:
    """Settle outcomes of one partition and one method, at most 500. Returns the leases that had
    ended: their results were refused."""
    store, worker, clock = shared.store, shared.name, shared.clock
    repeated = any(o.repeated for o in chunk)
    if call == "ack":
        acks = [(o.lease, o.detail(worker, clock)) for o in chunk]
        return store.ack(partition, acks, repeated=repeated)
    if call == "release":
        leases, delays_ms = [o.lease for o in chunk], [o.delay_ms for o in chunk]
        return store.release(partition, leases, delays_ms=delays_ms, repeated=repeated)
    if call == "put_off":
        waits = [(o.lease, o.delay_ms or 0, o.detail(worker, clock)) for o in chunk]
        return store.put_off(partition, waits, repeated=repeated)
    nacks = [
        (o.lease, o.delay_ms, o.result is Result.RETRIED, o.detail(worker, clock)) for o in chunk
    ]
    return store.nack(partition, nacks, repeated=repeated)


def report_outcomes(
    shared: Shared, topic: str, chunk: Sequence[Outcome], lost: Sequence[Lease]
) -> None:
    """Send the signals of outcomes that were written."""
    groups: dict[Signal, list[Outcome]] = {}
    for outcome in chunk:
        signal = signals.lease_lost if outcome.lease.lost else _SIGNALS[outcome.result]
        groups.setdefault(signal, []).append(outcome)
    for signal, outcomes in groups.items():
        signals.report(signal, topic, Events(outcomes, shared.clock))
    if lost:
        results = counted(len(lost), "result")
        logger.warning("%s of topic %s refused: the lease had ended", results, topic)


class Settler(Service):
    """Takes outcomes from the pool's threads. While one batch is on its way the next one gathers by
    itself."""

    name = "settler"
    interval = 3600.0

    def __init__(
        self,
        shared: Shared,
        on_settled: Callable[[Sequence[Outcome]], None],
        is_filled: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self._shared = shared
        self._held = shared.held
        self._on_settled = on_settled
        self._is_filled = is_filled
        """Whether the next message of each thread is here."""
        self._waiting: deque[Outcome] = deque()
        self._again: list[Outcome] = []
        self._settled_at = 0.0
        self._last_batch = 0
        self._pace = Sleeper()
        self.busy = False

    def put(self, outcome: Outcome) -> None:
        """Settle this soon. Called by the threads that run tasks."""
        self._waiting.append(outcome)
        self.sleeper.wake()

    def put_all(self, outcomes: Iterable[Outcome]) -> None:
        """Settle these soon, and together: one by one, the first would leave alone."""
        self._waiting.extend(outcomes)
        self.sleeper.wake()

    @property
    def idle(self) -> bool:
        """Whether everything that was put is settled."""
        return not (self.busy or self._waiting or self._again)

    def run_once(self) -> float:
        """Settle all that waits."""
        self.busy = True
        try:
            self._gather()
            self._settled_at = time.monotonic()
            batch, self._again = self._again, []
            while self._waiting:
                batch.append(self._waiting.popleft())
            self._last_batch = len(batch)
            groups: dict[tuple[Partition, str], list[Outcome]] = {}
            for outcome in batch:
                groups.setdefault((outcome.lease.partition, call_of(outcome)), []).append(outcome)
            try:
                for (partition, call), outcomes in groups.items():
                    for part in settle_parts(outcomes):
                        self._settle_chunk(call, partition, part)
            # A receiver of signals that means to end the program, for example.
            except BaseException:
                self._keep_the_rest(batch)
                raise
        finally:
            self.busy = False
        if self._again:
            return 0.1
        return 0.0 if self._waiting else self.interval

    def _gather(self) -> None:
        """Let a batch grow when outcomes come quickly."""
        if self._last_batch >= GATHER_AFTER or self._is_much_to_do():
            self._wait_until(self._settled_at + GATHER)
            if self._is_much_to_do():  # still
                self._wait_until(self._settled_at + FILLED_GATHER)

    def _is_much_to_do(self) -> bool:
        return self._last_batch >= FILLED_GATHER_AFTER and self._is_filled()

    def _wait_until(self, instant: float) -> None:
        left = instant - time.monotonic()
        if left > 0:
            self._pace.wait(left)

    def _keep_the_rest(self, batch: list[Outcome]) -> None:
        """Keep the outcomes that are not settled yet for the next run."""
        kept = set(self._again)
        for outcome in batch:
            if outcome.lease in self._held and outcome not in kept:
                outcome.repeated = True
                self._again.append(outcome)

    def _settle_chunk(self, call: str, partition: Partition, chunk: Sequence[Outcome]) -> None:
        """One script call. Outcomes that Redis could not take are kept until their lease ends."""
        try:
            lost = write_outcomes(self._shared, call, partition, chunk)
        except DelayQError as error:
            if len(chunk) == 1 or not (isinstance(error, StoreError) and error.is_bug):
                return self._keep(chunk, error)
            self._settle_one_by_one(call, partition, chunk)
        except Exception:
            if len(chunk) == 1:
                logger.exception(
                    "a result cannot be written; its message runs again when its lease ends"
                )
                return self._done(chunk)
            self._settle_one_by_one(call, partition, chunk)
        else:
            try:
                report_outcomes(self._shared, partition.topic, chunk, lost)
            finally:
                self._done(chunk)
        return None

    def _settle_one_by_one(self, call: str, partition: Partition, chunk: Sequence[Outcome]) -> None:
        """One of the outcomes makes the call fail. The others must not suffer."""
        for outcome in chunk:
            outcome.repeated = True
            self._settle_chunk(call, partition, [outcome])

    def _keep(self, chunk: Sequence[Outcome], error: DelayQError) -> None:
        """Try again until the lease has ended. The lease keeper extends it, so a lease that has
        ended means that Redis was away for a whole lease."""
        now = time.monotonic()
        given_up: list[Outcome] = []
        for outcome in chunk:
            outcome.repeated = outcome.repeated or isinstance(error, OutcomeUnknown)
            ended = now > outcome.lease.renewed_at + outcome.lease.ttr_ms / 1000
            (given_up if ended else self._again).append(outcome)
        if given_up:
            results = counted(len(given_up), "result")
            logger.error("%s not stored before the lease ended: %s", results, error)
            self._done(given_up)

    def _done(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            outcome.error = None
        self._held.difference_update([outcome.lease for outcome in outcomes])
        self._on_settled(outcomes)
