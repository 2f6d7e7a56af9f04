"""Runs the messages of one batch in one call, and what fails again by halves."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import copy_context
from typing import Any, NamedTuple

from ...core.connections import renew_all
from ...core.exceptions import ControlFlow, MiddlewareFailed, Snooze, TransactionLeftOpen
from ...core.task_report import TaskReport
from ...store.clock import ServerClock
from ...store.lease import Lease
from ...tasks import redaction
from ...tasks.batch import Batch, BatchMessage
from ...tasks.context import running, running_together
from ...tasks.task import Task
from ..executor import NO_DATABASE_DELAY, Executor
from ..outcome import Outcome, Result
from ..resolved import Resolved, refuse_unrun
from ..shared import Shared
from .calls import Calls


class Gathered:
    """Leases of one task that run together."""

    __slots__ = ("claimed_at", "closes_at", "leases", "task")

    def __init__(self, task: Task[..., Any], closes_at: float) -> None:
        self.task = task
        self.leases: list[Lease] = []
        self.closes_at = closes_at
        """Local monotonic time until which it gathers."""
        self.claimed_at = 0.0
        """Local monotonic time since which it waits for a thread."""


class ResolvedBatch(NamedTuple):
    """What a call needs."""

    task: Task[..., Any]
    batch: Batch[Any]

    def call(self) -> Any:
        """Call the function: the result of a `def` task, the coroutine of an `async def` task."""
        return self.task.definition.func(self.batch)


class _BatchMember:
    """One message of a batch that is to be called, and what the last call has said about it."""

    __slots__ = ("lease", "message", "resolved")

    def __init__(self, lease: Lease, resolved: Resolved) -> None:
        self.lease = lease
        self.resolved = resolved
        self.message: BatchMessage[Any] | None = None

    @property
    def verdict(self) -> ControlFlow | None:
        return None if self.message is None else self.message.verdict


class _Acked(Outcome):
    """A message of a call that has returned. All of them began and ended together, so that one
    detail is for all: to make it for each takes 1 of the 14 us that a message costs the worker."""

    __slots__ = ("_details",)

    def __init__(
        self, lease: Lease, task: Task[..., Any], ended_at: float, details: list[bytes]
    ) -> None:
        super().__init__(lease, task, Result.ACKED, ended_at)
        self._details = details
        """What all of them share; empty until the first needs it."""

    def detail(self, worker: str, clock: ServerClock) -> bytes:
        if self.lease.report is not None:  # a result, or progress of its own
            return super().detail(worker, clock)
        if not self._details:
            self._details.append(super().detail(worker, clock))
        return self._details[0]


class BatchExecutor:
    """Turns a batch of leases into outcomes, one for each."""

    def __init__(
        self, shared: Shared, executor: Executor, settle_all: Callable[[Iterable[Outcome]], None]
    ) -> None:
        self._shared = shared
        self._executor = executor
        self._settle_all = settle_all
        layers = executor.middleware
        self._run_layers: Callable[[ResolvedBatch], Any] = (
            layers.call if layers else ResolvedBatch.call
        )
        self._await_layers: Callable[[ResolvedBatch], Awaitable[Any]] = (
            layers.start if layers else ResolvedBatch.call
        )
        self.coroutines: set[Gathered] = set()
        """Batches that run on the event loop."""

    def run(self, gathered: Gathered) -> None:
        """Run a batch of a `def` task on this thread. Never raises."""
        copy_context().run(self._run, gathered)

    def _run(self, gathered: Gathered) -> None:
        left = set(gathered.leases)
        try:
            calls = self._calls(gathered, left)
            while part := calls.take():
                members = self._begin(part, left)
                if members:
                    error = self._perform(gathered.task, members)
                    self._end(calls, members, error, left)
        except BaseException as error:
            self._fail(left, error)

    async def run_async(self, gathered: Gathered) -> None:
        """Run a batch of an `async def` task on this loop."""
        left = set(gathered.leases)
        self.coroutines.add(gathered)
        try:
            calls = self._calls(gathered, left)
            while part := calls.take():
                members = self._begin(part, left)
                if members:
                    error = await self._perform_async(gathered.task, members)
                    self._end(calls, members, error, left)
        except BaseException as error:
            self._fail(left, error)
        finally:
            self.coroutines.discard(gathered)

    # Steps

    def _calls(self, gathered: Gathered, left: set[Lease]) -> Calls[_BatchMember]:
        """Read all messages. What cannot run has its outcome now."""
        members, outcomes = list[_BatchMember](), list[Outcome]()
        for lease in gathered.leases:
            resolved, outcome = self._executor.resolve(lease)
            if resolved is None:
                outcomes.append(outcome)
            else:
                members.append(_BatchMember(lease, resolved))
        self._settle(outcomes, left)
        return Calls(members)

    def _begin(self, part: Sequence[_BatchMember], left: set[Lease]) -> Sequence[_BatchMember]:
        """Those of the part whose leases have not ended. Their time begins with this call, and so
        does that of the messages whose call comes later."""
        now = time.monotonic()
        for lease in left:
            lease.started_at = now
        ended = [member.lease for member in part if member.lease.ended]
        if not ended:
            return part
        # Another worker may run them.
        self._settle([Outcome(lease, None, Result.RELEASED, now) for lease in ended], left)
        return [member for member in part if member.lease in left]

    def _perform(self, task: Task[..., Any], part: Sequence[_BatchMember]) -> BaseException | None:
        running.set(part[0].lease)
        running_together.set([member.lease for member in part])
        error: BaseException | None = None
        try:
            if task.definition.options.exactly_once:
                self._perform_once(task, part)
            else:
                self._call(task, part)
        except BaseException as raised:  # SystemExit of a task must not end the thread
            error = raised
        if renew_all() and error is None:
            error = TransactionLeftOpen()
        return error

    async def _perform_async(
        self, task: Task[..., Any], part: Sequence[_BatchMember]
    ) -> BaseException | None:
        running.set(part[0].lease)
        running_together.set([member.lease for member in part])
        try:
            self._executor.check_connection()
            refuse_unrun(task.name, await self._await_layers(self._resolved(task, part)))
        except BaseException as error:
            return error
        return None

    def _call(self, task: Task[..., Any], part: Sequence[_BatchMember]) -> None:
        refuse_unrun(task.name, self._run_layers(self._resolved(task, part)))

    def _resolved(self, task: Task[..., Any], part: Sequence[_BatchMember]) -> ResolvedBatch:
        """A fresh batch: what an earlier call has said about its messages does not count."""
        limit = self._shared.settings.body_limit if task.definition.options.result else None
        for member in part:
            if member.lease.report is not None:
                member.lease.report.result = None
            member.message = BatchMessage(member.lease, member.resolved.body, limit)
        return ResolvedBatch(task, Batch([m.message for m in part if m.message is not None]))

    def _perform_once(self, task: Task[..., Any], part: Sequence[_BatchMember]) -> None:
        """The effects of the call and the rows of the messages that are done, in one
        transaction."""
        perform_once = self._shared.perform_once
        if perform_once is None:
            raise Snooze(NO_DATABASE_DELAY)
        by_lease = {member.lease: member for member in part}
        detail: Callable[[Lease], tuple[int, bytes]] = self._executor.acked_detail

        def run(leases: Sequence[Lease]) -> None:
            # A message whose row is there has run before: it is done, and not called again.
            for member in part:
                member.message = None
            self._call(task, [by_lease[lease] for lease in leases])

        def detail_of(lease: Lease) -> tuple[int, bytes] | None:
            return detail(lease) if by_lease[lease].verdict is None else None

        perform_once([member.lease for member in part], run, detail_of)
        for member in part:
            if member.verdict is None:
                report = member.lease.report = member.lease.report or TaskReport()
                report.archived = True

    def _end(
        self,
        calls: Calls[_BatchMember],
        part: Sequence[_BatchMember],
        error: BaseException | None,
        left: set[Lease],
    ) -> None:
        """Settle the messages of a call, or split them."""
        if error is None:
            calls.succeeded()
        elif _is_about_messages(error) and calls.split(part):
            return
        raised: list[BaseException | None] = [error] * len(part)
        if error is None or isinstance(error, ControlFlow):
            raised = [member.verdict or error for member in part]
        shown = _shown(part, raised)
        now, details = time.monotonic(), list[bytes]()
        outcomes = [
            _Acked(member.lease, member.resolved.task, now, details)
            if each is None
            else self._classify(member, each, shown.get(id(each)))
            for member, each in zip(part, raised, strict=True)
        ]
        self._settle(outcomes, left)

    def _classify(
        self, member: _BatchMember, error: BaseException, shown: BaseException | None
    ) -> Outcome:
        """What fails here, as a backoff function that means to end the program, is no matter of the
        other messages: they are done, and would run again."""
        try:
            return self._executor.classify(member.lease, member.resolved, error, shown)
        except BaseException as failure:
            return self._executor.fail(member.lease, failure)

    def _fail(self, left: set[Lease], error: BaseException) -> None:
        self._settle([self._executor.fail(lease, error) for lease in left], left)

    def _settle(self, outcomes: Sequence[Outcome], left: set[Lease]) -> None:
        """All at once: one call of a script for up to 500 messages."""
        left.difference_update([outcome.lease for outcome in outcomes])
        if outcomes:
            self._settle_all(outcomes)


def _shown(
    part: Sequence[_BatchMember], raised: Sequence[BaseException | None]
) -> dict[int, BaseException]:
    """What people may see of these errors: each may tell the arguments of all messages of the
    call."""
    errors = {id(each): each for each in raised if each is not None}
    if not errors or not redaction.hides(part[0].resolved.task.definition.code):
        return {}
    hidden = redaction.hidden_in(*(member.lease for member in part))
    return {number: redaction.safe_error(each, hidden) for number, each in errors.items()}


def _is_about_messages(error: BaseException) -> bool:
    """Whether one of the messages may be to blame. A task that says Retry, Snooze or Reject means
    all of them; a cancelled coroutine, or a SystemExit, is about the call."""
    return isinstance(error, Exception) and not isinstance(error, ControlFlow | MiddlewareFailed)
