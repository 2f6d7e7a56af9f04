"""Runs what is due in the thread and on the database connections of a test, with the worker's own
parts."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from unittest.mock import patch

from asgiref.sync import async_to_sync, sync_to_async
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..archive import exactly_once
from ..archive.archiver import store_entries
from ..client.enqueue import is_of_a_test
from ..core import signals
from ..core.exceptions import DelayQError, InvalidMessage, StoreUnavailable
from ..core.message import Found, Message, State, task_code_of
from ..outbox.relay import Relay
from ..store.finished import FinishedStream
from ..store.keys import Partition
from ..store.lease import Lease
from ..store.store import RedisStore
from ..tasks import registry
from ..tasks.naming import shown
from ..tasks.task import Task
from ..worker.batches.batch_executor import BatchExecutor, Gathered
from ..worker.claims import Claims
from ..worker.executor import Executor
from ..worker.outcome import Outcome
from ..worker.resolved import Resolved
from ..worker.settler import Settler
from ..worker.shared import Shared

logger = logging.getLogger("delayq")

#: Names the runs of tests in the archive.
WORKER = "test"


class DjangoTask(Protocol):
    """A task of `django.tasks` or of its backport."""

    @property
    def module_path(self) -> str:
        """The path of its function, which is the name of the task here."""


AnyTask = Task[..., Any] | DjangoTask


def name_of_task(task: AnyTask | str) -> str:
    """The name under which messages know the task. Raises InvalidMessage for what is no task."""
    name = task if isinstance(task, str) else getattr(task, "module_path", None)
    name = task.name if isinstance(task, Task) else name
    if not isinstance(name, str):
        raise InvalidMessage(f"Give a task, not {task!r:.80}. Is @delayed_task missing?")
    return name


@dataclass(frozen=True)
class TaskRun:
    """One run of a message, or the end of a message that did not run."""

    task: str
    """Name of the task."""
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    key: str | None
    attempt: int
    """1 for the first run; 0 for a message that did not run."""
    outcome: str
    """`acked`, `retried`, `snoozed`, `dead`, `put off`, `released`, `expired` or `lease lost`."""
    error: BaseException | None = None
    """What the task raised."""
    reason: str = ""
    """Why, in one line: of the error, of a Reject, or one word such as `bad_args`."""
    delay: timedelta | None = None
    """After which time it runs again, when it was retried, snoozed or put off."""

    def __str__(self) -> str:
        given = [repr(arg) for arg in self.args]
        given += [f"{name}={value!r}" for name, value in self.kwargs.items()]
        again = f", again in {self.delay}" if self.delay is not None else ""
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.task}({', '.join(given)}): {self.outcome}{again}{why}"


class RunReport(tuple[TaskRun, ...]):
    """The runs of one run_due(), in their order. A tuple of TaskRun."""

    __slots__ = ()

    @property
    def outcomes(self) -> list[str]:
        """The outcome of each run."""
        return [run.outcome for run in self]

    @property
    def failed(self) -> list[TaskRun]:
        """The runs in which a task raised an error, and those that the worker could not begin."""
        return [run for run in self if run.outcome in ("retried", "dead", "put off", "lease lost")]

    def of(self, task: AnyTask) -> RunReport:
        """The runs of one task, ours or Django's."""
        name = name_of_task(task)
        return RunReport(run for run in self if run.task == name)

    def __repr__(self) -> str:
        return "RunReport(" + "".join(f"\n  {run}" for run in self) + ")"


@dataclass(frozen=True)
class PlannedFailure:
    """An error that the next run raises in place of the task."""

    error: BaseException
    task: str | None
    """Name of the task; None: of any."""


class DueRunner:
    """Relays, claims, runs, settles and archives, until nothing more is due."""

    def __init__(
        self,
        store: RedisStore,
        failures: list[PlannedFailure],
        send: Callable[[], None],
        waiting: Callable[[], Sequence[Message]],
    ) -> None:
        self._store = store
        self._send = send
        self._waiting = waiting
        self._relay = Relay(store)
        topics = tuple(sorted(registry.known_topics()))
        settings, perform_once = store.client.settings, exactly_once.perform
        self._claims = Claims(store, settings)
        self._shared = Shared(store, settings, WORKER, topics, perform_once=perform_once)
        self._settler = Settler(self._shared, lambda outcomes: None)
        self._outcomes: list[Outcome] = []
        self._executor = _CommittingExecutor(self._shared, self._outcomes.append, failures)
        self._batch_executor = _CommittingBatchExecutor(
            self._shared, self._executor, self._outcomes.extend
        )
        self._known: dict[str, Message] = {}
        """Messages that waited, by id: the claim of one that has expired gives only its id."""
        self.runs: list[TaskRun] = []

    def run(self, limit: int, reraise: bool) -> RunReport:
        """See QueueUnderTest.run_due()."""
        with _connections_stay():
            before = -1
            while before < len(self.runs):
                before = len(self.runs)
                self._send()
                while not self._relay.run_once():
                    """One batch after the other."""
                self._known.update((message.id, message) for message in self._waiting())
                # What was enqueued in this very millisecond is due in the next.
                next_ms = self._store.clock_ms() + 1
                while self._store.clock_ms() < next_ms:
                    """It comes at once."""
                while self._run_next(reraise):
                    if len(self.runs) > limit:
                        raise DelayQError(
                            f"More than {limit:,} messages have run. Does a task enqueue itself "
                            "without a delay? Else give a higher limit. "
                            f"{RunReport(self.runs[-3:])!r}"
                        )
                for partition in self._store.topics.used_partitions():
                    stream = FinishedStream(self._store, partition, WORKER)
                    while entries := stream.read():
                        left = store_entries(entries)
                        stream.remove([entry for entry in entries if entry not in left])
        return RunReport(self.runs)

    def _run_next(self, reraise: bool) -> bool:
        """Claim and run one message: it may cancel those that are due after it. Returns whether
        there was one."""
        partitions = self._store.topics.used_partitions()
        figures = zip(self._store.queries.all_stats(partitions), partitions, strict=True)
        due = [(stats.next_due_ms or 0, partition) for stats, partition in figures if stats.ready]
        for _, partition in sorted(due):
            claimed = self._claims.claim(partition, 1, os.urandom(16))
            self._shared.clock.sync(claimed.now_us)
            for lease in claimed.leases:
                task = registry.by_code.get(task_code_of(lease.record))
                if task is not None and task.definition.kind == "batch":
                    self._run_batch(Gathered(task, 0.0), lease, reraise)
                else:
                    self._run(lease, reraise)
            if claimed.over:
                self._report_expired(partition, claimed.over)
            if claimed.leases or claimed.over:
                return True
        return False  # what is due there is paused, or a limit holds it back

    def _report_expired(self, partition: Partition, over: Sequence[bytes]) -> None:
        signals.report_ids(signals.expired, partition.topic, over, "expired")
        known = filter(None, (self._known.get(message_id.hex()) for message_id in over))
        self.runs += [_run_of(message, "expired") for message in known]

    def _run_batch(self, gathered: Gathered, first: Lease, reraise: bool) -> None:
        """Run the message with all others of its task that are due, as far as they fit."""
        gathered.leases.append(first)
        for partition in self._store.topics.used_partitions():
            self._gather(gathered, partition)
        self._shared.held.update(gathered.leases)
        if gathered.task.definition.is_async:
            copy_context().run(async_to_sync(self._batch_executor.run_async), gathered)
        else:
            self._batch_executor.run(gathered)
        outcomes, self._outcomes[:] = list(self._outcomes), []
        errors = [outcome.error for outcome in outcomes]
        for outcome in outcomes:
            self._settler.put(outcome)
        self._settle()
        for outcome, error in zip(outcomes, errors, strict=True):
            self._note(outcome, error)
        for error in errors:
            _pass_on(error, reraise)

    def _gather(self, gathered: Gathered, partition: Partition) -> None:
        """Claim what is due there and fits; all else is given back."""
        options, code = gathered.task.definition.options, gathered.task.definition.code
        others: list[Lease] = []
        while len(gathered.leases) < (options.batch or 1):
            claimed = self._claims.claim(partition, 1, os.urandom(16))
            if claimed.over:
                self._report_expired(partition, claimed.over)
            elif not claimed.leases:
                break
            for lease in claimed.leases:
                is_wanted = task_code_of(lease.record) == code
                (gathered.leases if is_wanted else others).append(lease)
        if others:
            self._store.release(partition, others)

    def _run(self, lease: Lease, reraise: bool) -> None:
        self._shared.held.add(lease)
        task = registry.by_code.get(task_code_of(lease.record))
        if task is not None and task.definition.is_async:
            # A context of its own, as in a worker: async_to_sync() gives its changes to the caller.
            copy_context().run(async_to_sync(self._executor.run_async), lease)
        else:
            self._executor.run(lease)
        outcome = self._outcomes.pop()
        error = outcome.error  # the settler forgets it
        self._settler.put(outcome)
        self._settle()
        self._note(outcome, error)
        _pass_on(error, reraise)

    def _settle(self) -> None:
        self._settler.run_once()
        if not self._settler.idle:
            raise StoreUnavailable("The outcome of a run could not be written.")

    def _note(self, outcome: Outcome, error: BaseException | None) -> None:
        lease = outcome.lease
        attempts = lease.attempts
        found = Found(lease.id, State("leased"), attempts.due_at_ms, lease.record, attempts)
        self.runs.append(_run_of(shown(lease.partition, found), "", outcome, error))


def _pass_on(error: BaseException | None, reraise: bool) -> None:
    """Raise what is of the test, and not of the task: Ctrl-C, pytest.fail(), a timeout."""
    passes = Exception | SystemExit | asyncio.CancelledError | None
    if not isinstance(error, passes) or (reraise and error is not None):
        raise error


def _run_of(
    message: Message,
    word: str,
    outcome: Outcome | None = None,
    error: BaseException | None = None,
) -> TaskRun:
    delay_ms, reason = None, ""
    if outcome is not None:
        word = "lease lost" if outcome.lease.lost else outcome.result.value
        delay_ms, reason = outcome.delay_ms, outcome.text
    return TaskRun(
        task=message.task,
        args=message.args,
        kwargs=message.kwargs,
        key=message.key,
        attempt=message.attempt,
        outcome=word,
        error=error,
        reason=reason,
        delay=None if delay_ms is None else timedelta(milliseconds=delay_ms),
    )


class _CommittingExecutor(Executor):
    """Runs a task as if each of its statements committed, where a TestCase has opened
    transactions."""

    def __init__(
        self,
        shared: Shared,
        settle: Callable[[Outcome], None],
        failures: list[PlannedFailure],
    ) -> None:
        super().__init__(shared, settle)
        self._failures = failures

    def _perform(self, lease: Lease, resolved: Resolved) -> BaseException | None:
        failure = self.planned(resolved.task.name)
        if failure is not None:
            return failure
        mark = _Mark()
        error = super()._perform(lease, resolved)
        failed = mark.commit()
        return failed if error is None else error

    async def _perform_async(self, lease: Lease, resolved: Resolved) -> BaseException | None:
        failure = self.planned(resolved.task.name)
        if failure is not None:
            return failure
        self.connections_are_checked()
        mark = await sync_to_async(_Mark)()
        error = await super()._perform_async(lease, resolved)
        failed = await sync_to_async(mark.commit)()
        return failed if error is None else error

    def planned(self, task_name: str) -> BaseException | None:
        """What this run raises in place of the task."""
        for failure in self._failures:
            if failure.task in (None, task_name):
                self._failures.remove(failure)
                return failure.error
        return None

    def connections_are_checked(self) -> None:
        """A check of the connections beside the task would outlive this event loop."""
        self._connections_checked_at = time.monotonic()


class _CommittingBatchExecutor(BatchExecutor):
    """The same for a batch task. A planned failure is that of a call."""

    _executor: _CommittingExecutor

    def _perform(self, task: Task[..., Any], part: Sequence[Any]) -> BaseException | None:
        failure = self._executor.planned(task.name)
        if failure is not None:
            return failure
        mark = _Mark()
        error = super()._perform(task, part)
        failed = mark.commit()
        return failed if error is None else error

    async def _perform_async(
        self, task: Task[..., Any], part: Sequence[Any]
    ) -> BaseException | None:
        failure = self._executor.planned(task.name)
        if failure is not None:
            return failure
        self._executor.connections_are_checked()
        mark = await sync_to_async(_Mark)()
        error = await super()._perform_async(task, part)
        failed = await sync_to_async(mark.commit)()
        return failed if error is None else error


class _Mark:
    """The place in the transactions of a TestCase where a task begins."""

    def __init__(self) -> None:
        self._begun = [
            (connection, connection.savepoint(), len(connection.run_on_commit))
            for connection in open_tests()
        ]

    def commit(self) -> BaseException | None:
        """Keep what the task wrote, and run its commit hooks. Returns what one of them raised.

        An error of the database breaks the transaction of a TestCase: then what the task wrote is
        undone.
        """
        for connection, savepoint, _ in self._begun:
            try:
                connection.validate_no_broken_transaction()
                connection.savepoint_commit(savepoint or "")
            except Error:
                connection.set_rollback(False)
                connection.savepoint_rollback(savepoint or "")
        try:
            for connection, _, start in self._begun:
                _run_hooks(connection, start)
        except BaseException as error:
            return error
        return None


def _run_hooks(connection: BaseDatabaseWrapper, start: int) -> None:
    """Run and forget the commit hooks from this one on, as Django does."""
    while len(connection.run_on_commit) > start:
        hooks: list[Any] = connection.run_on_commit[start:]
        connection.run_on_commit = connection.run_on_commit[:start]
        for _, hook, is_robust in hooks:
            try:
                hook()
            except Exception:
                if not is_robust:
                    raise
                logger.exception("a commit hook of a task has failed")


def open_tests() -> Iterator[BaseDatabaseWrapper]:
    """The connections on which a TestCase, and nobody else, has opened transactions."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block and is_of_a_test(connection):
            yield connection


@contextmanager
def _connections_stay() -> Iterator[None]:
    """A worker closes connections that are old, and those that are not in autocommit mode. Those of
    the test stay as they are."""
    with ExitStack() as stack:
        for connection in connections.all():
            stack.enter_context(patch.object(connection, "close_if_unusable_or_obsolete"))
        yield
