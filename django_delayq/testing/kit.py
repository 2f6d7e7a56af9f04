"""The queue under test: what was enqueued, the time that moves, and what runs when it is due."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar
from unittest.mock import patch

from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.asyncio import async_unsafe

from ..client import on_commit
from ..client.enqueue import is_of_a_test
from ..client.topics import list_messages
from ..core import conf
from ..core.exceptions import ConfigurationError, DelayQError, InvalidDelay, InvalidMessage
from ..core.message import Found, Message, Page, Record, State, decode_body, with_stamp
from ..core.present import view
from ..core.times import Duration, duration_ms, from_ms, in_words, instant_ms
from ..outbox.existing import topics_of_outbox
from ..outbox.listing import list_outbox
from ..outbox.ticker import insert_ticks
from ..store import get_store
from ..store.for_tests import delete_keys, travel
from ..store.store import RedisStore
from ..tasks import registry
from ..tasks.builder import Item, build
from ..tasks.recurrence import Recurrence
from ..tasks.task import Call, Task
from .running import AnyTask, DueRunner, PlannedFailure, RunReport, name_of_task, open_tests
from .session_server import session_url

if TYPE_CHECKING:
    from typing_extensions import Unpack

R = TypeVar("R")

#: A due time and a delay are as expected when they differ by less than this.
TOLERANCE = timedelta(seconds=1)
#: So many ticks of a task are written in one travel at most.
MOST_TICKS = 10_000
ASYNC = "In async code, await the method of this name with an `a` before it."


class _Description(TypedDict, total=False):
    """The arguments of assert_enqueued()."""

    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    key: str | None
    delay: Duration | None
    due_at: datetime | None


class QueueUnderTest:
    """An empty queue of a test's own on a real Redis, whose time the test moves. The fixture
    `delay_queue` of pytest and QueueTestMixin give one to each test; it is a context manager, too.

    What a TestCase enqueues is sent although its transaction never commits: at once, or at the end
    of the `transaction.atomic()` around it. Each method that waits has a twin for async
    tests, whose name starts with an `a`.
    """

    def __init__(self) -> None:
        self._prefix = f"test-{secrets.token_hex(6)}"
        self._ahead_ms = 0
        self._failures: list[PlannedFailure] = []
        self._recurring: dict[str, tuple[Task[Any, Any], Recurrence]] = {}
        self._before: dict[str, Any] = {}
        self._store: RedisStore | None = None
        self._watched = ExitStack()

    # The life of it

    def start(self) -> None:
        """Take the place of the project's queue, whatever the settings say, until stop(). Starts a
        server when this process has none yet. Raises ConfigurationError, and StoreUnavailable for
        a server of DELAYQ_TEST_REDIS that does not answer."""
        url = session_url()
        self._before = dict(conf.overrides)
        conf.overrides.update(REDIS=url, PREFIX=self._prefix, WAIT_REPLICAS=0)
        setting_changed.connect(self._open_again)
        try:
            _announce()
        except BaseException:  # the server does not answer
            self.stop()
            raise
        _forget_sent()
        # In a TestCase, what stands outside of the project's own blocks is sent at once, and a
        # block sends at its end: as it is when they commit.
        for connection in connections.all():
            for name in ("on_commit", "savepoint_commit"):
                method = _then_send(connection, getattr(connection, name))
                self._watched.enter_context(patch.object(connection, name, method))

    def stop(self) -> None:
        """Delete all keys of the test, close the connections, and let the project have its queue
        again."""
        setting_changed.disconnect(self._open_again)
        self._watched.close()
        try:
            if self._store is not None:
                delete_keys(self._store.client)
        finally:
            self._close()
            conf.overrides.clear()
            conf.overrides.update(self._before)
            _announce()
            _forget_sent()

    def __enter__(self) -> QueueUnderTest:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _open_again(self, *, setting: str, **kwargs: object) -> None:
        """The settings have changed, and so there is another store: its clock is ahead, too."""
        if conf.overrides.get("PREFIX") == self._prefix and setting in ("DELAYQ", "CACHES"):
            self._close()
            with suppress(ConfigurationError):  # the test is about wrong settings
                store = get_store()
                travel(store.client, self._ahead_ms)
                self._store = store

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    @property
    def store(self) -> RedisStore:
        """The store, for what has no method here."""
        return self._store or get_store()

    # What was enqueued

    @property
    def messages(self) -> list[Message]:
        """All messages that wait: in Redis, in the outbox, and in transactions that are open. The
        first due comes first."""
        self._send()
        store = self.store
        found: dict[tuple[str, str], Message] = {}
        for topic in topics_of_outbox():
            found.update(_by_id(_pages(list_outbox, topic)))
        for topic in store.topics.names():
            found.update(_by_id(_pages(list_messages, topic)))
        for items, cancelled in on_commit.planned():
            for topic, identity in cancelled:
                found.pop((topic, identity.hex()), None)
            for item in items:
                topic, identity = item.address
                if item.message.replaces or (topic, identity.hex()) not in found:
                    found[topic, identity.hex()] = self._planned_message(item)
        return sorted(found.values(), key=lambda message: (message.due_at, message.id))

    def assert_enqueued(
        self,
        task: AnyTask | str,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        key: str | None = None,
        delay: Duration | None = None,
        due_at: datetime | None = None,
    ) -> Message:
        """Fail unless a message of the task waits that is as described; returns the first of them.

        `task` is a task of this package or of Django, or its name. `args` and `kwargs` are the
        whole call, as the task takes it. `delay` counts from the enqueue. Delays and due times may
        differ by a second. Raises InvalidMessage for what is no task, for a call that the task does
        not take, and for wrong durations and datetimes.
        """
        __tracebackhide__ = True
        wanted = _Wanted(task, args, kwargs, key, delay, due_at)
        waiting = self.messages
        for message in waiting:
            if wanted.fits(message):
                return message
        raise AssertionError(f"Not enqueued: {wanted}.\n{self._shown(waiting, wanted)}")

    def refute_enqueued(
        self,
        task: AnyTask | str,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        key: str | None = None,
        delay: Duration | None = None,
        due_at: datetime | None = None,
    ) -> None:
        """Fail when a message waits that is as described; the arguments are those of
        assert_enqueued()."""
        __tracebackhide__ = True
        wanted = _Wanted(task, args, kwargs, key, delay, due_at)
        waiting = self.messages
        if any(map(wanted.fits, waiting)):
            raise AssertionError(f"Enqueued: {wanted}.\n{self._shown(waiting, wanted)}")

    # Time

    @property
    def now(self) -> datetime:
        """The time of the queue. Python's own clock does not move with it."""
        return from_ms(self.store.clock_ms())

    def travel(self, duration: Duration = 0, /, **parts: float) -> datetime:
        """Move the time of the queue forward, by a timedelta or a number of seconds, or by `days`,
        `hours`, `minutes`, `seconds` and other arguments of timedelta. Returns the new time. Nobody
        sleeps, and nothing runs.

        What the transaction of a TestCase has enqueued was sent before. Raises InvalidDelay for a
        negative duration, and DelayQError if a task of recur() has more than 10,000 ticks in it.
        """
        moved_ms = duration_ms(timedelta(**parts), "the duration")
        return self._travel(duration_ms(duration, "the duration") + moved_ms)

    def travel_to(self, instant: datetime) -> datetime:
        """Move the time of the queue to an aware datetime, and return it. Raises InvalidDelay when
        that has passed, and DelayQError as travel()."""
        distance_ms = instant_ms(instant, "the instant") - self.store.clock_ms()
        if distance_ms < 0:
            raise InvalidDelay(f"Time goes forward only: it is {self.now:%Y-%m-%d %H:%M:%S} UTC.")
        return self._travel(duration_ms(distance_ms / 1000, "the distance"))

    def _travel(self, distance_ms: int) -> datetime:
        self._send()
        self._write_ticks(distance_ms)
        self._ahead_ms += distance_ms
        travel(self.store.client, self._ahead_ms)
        return self.now

    def recur(self, task: AnyTask | str) -> datetime:
        """Give a recurring task its ticks from now on: each travel enqueues a message for each tick
        that it passes. Without this call a test meets no ticks, whatever the time of day. Returns
        the first tick, for travel_to().

        Raises InvalidMessage for a task without `every` or `cron`.
        """
        name = name_of_task(task)
        recurring = registry.recurring_tasks().get(name)
        if recurring is None:
            raise InvalidMessage(
                f"{name} is not a recurring task: declare it with every= or cron=."
            )
        self._recurring[name] = recurring
        return from_ms(next(recurring[1].rule.ticks(int(self.store.clock_ms()))))

    @async_unsafe(ASYNC)
    def _write_ticks(self, distance_ms: int) -> None:
        now_ms = int(self.store.clock_ms())
        for task, recurrence in self._recurring.values():
            passed = recurrence.rule.ticks(now_ms, now_ms + distance_ms)
            ticks = list(islice(passed, MOST_TICKS + 1))
            if len(ticks) > MOST_TICKS:
                raise DelayQError(
                    f"{task.name} has more than {MOST_TICKS:,} ticks in this time. Travel less far."
                )
            insert_ticks(task, ticks)

    # What runs

    def run_due(self, *, limit: int = 1000, reraise: bool = False) -> RunReport:
        """Run all that is due, in this thread and on its database connections: the first due comes
        first. What these tasks enqueue runs too, if it is due. Ended messages are archived.

        Returns a report of all runs. With `reraise`, the first error of a task is raised when its
        outcome is written. Raises DelayQError after `limit` runs, and inside
        `transaction.atomic()`: no worker sees what is not committed.
        """
        for connection in connections.all(initialized_only=True):
            if connection.in_atomic_block and not is_of_a_test(connection):
                raise DelayQError(
                    "run_due() was called inside transaction.atomic(): call it after the block. No "
                    "worker sees what is not committed."
                )
        runner = DueRunner(self.store, self._failures, self._send, lambda: self.messages)
        return runner.run(limit, reraise)

    def fail_next(
        self, error: BaseException | type[BaseException], *, task: AnyTask | None = None
    ) -> None:
        """Let the next run raise this error in place of the task; with `task`, the next run of this
        one. Called twice, the next two runs fail."""
        raised = error() if isinstance(error, type) else error
        self._failures.append(PlannedFailure(raised, None if task is None else name_of_task(task)))

    # For async tests

    async def amessages(self) -> list[Message]:
        """messages, for async tests."""
        return await _aside(lambda: self.messages)

    async def aassert_enqueued(
        self, task: AnyTask | str, **wanted: Unpack[_Description]
    ) -> Message:
        """assert_enqueued() for async tests."""
        return await _aside(lambda: self.assert_enqueued(task, **wanted))

    async def arefute_enqueued(self, task: AnyTask | str, **wanted: Unpack[_Description]) -> None:
        """refute_enqueued() for async tests."""
        await _aside(lambda: self.refute_enqueued(task, **wanted))

    async def atravel(self, duration: Duration = 0, /, **parts: float) -> datetime:
        """travel() for async tests."""
        return await _aside(lambda: self.travel(duration, **parts))

    async def atravel_to(self, instant: datetime) -> datetime:
        """travel_to() for async tests."""
        return await _aside(lambda: self.travel_to(instant))

    async def arun_due(self, *, limit: int = 1000, reraise: bool = False) -> RunReport:
        """run_due() for async tests."""
        return await _aside(lambda: self.run_due(limit=limit, reraise=reraise))

    # Inside

    @async_unsafe(ASYNC)
    def _send(self) -> None:
        """Send what the transaction of a TestCase would send if it committed now."""
        for connection in open_tests():
            on_commit.act_early(connection.alias)

    def _planned_message(self, item: Item) -> Message:
        """The message that an open transaction will send, as if that committed now."""
        now_us = int(self.store.clock_ms() * 1000)
        _, _, when, expires, sent = item.message
        due_ms = when.from_ms(now_us // 1000)
        record = with_stamp(when.stamp_us or now_us, expires.from_ms(due_ms), sent)
        found = Found(item.message.id, State("delayed"), due_ms, record, None)
        return view(item.template.topic, item.template.name, found)

    def _shown(self, waiting: Sequence[Message], wanted: _Wanted) -> str:
        """The messages that wait, those of the task first."""
        if not waiting:
            return "Nothing is enqueued."
        now = self.now
        lines = sorted(waiting, key=lambda message: message.task != wanted.task)
        return "\n".join(["Enqueued are:", *(_line(message, now) for message in lines)])


class _Wanted:
    """The description of a message."""

    def __init__(
        self,
        task: AnyTask | str,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        key: str | None,
        delay: Duration | None,
        due_at: datetime | None,
    ) -> None:
        self.task = name_of_task(task)
        declared = registry.by_name.get(self.task) or registry.find(self.task)
        if declared is None:
            raise InvalidMessage(f"No task is declared under the name {self.task!r}.")
        self.key = key
        self.delay = None if delay is None else timedelta(milliseconds=duration_ms(delay))
        self.due_at = None if due_at is None else from_ms(instant_ms(due_at))
        self._signature = declared.definition.signature
        self.call: tuple[Sequence[Any], Mapping[str, Any]] | None = None
        if args is not None or kwargs is not None:
            # As it is stored: a tuple is a list there.
            (item,) = build([Call(declared, args or (), kwargs or {})])
            record = Record.decode(with_stamp(0, 0, item.message.record))
            body = decode_body(record.flags, record.body, item.message.id)
            self.call = body.args, body.kwargs

    def fits(self, message: Message) -> bool:
        """Whether the message is as described."""
        return (
            message.task == self.task
            and self.key in (None, message.key)
            and (
                self.call is None
                or self._bound(*self.call) == self._bound(message.args, message.kwargs)
            )
            and (self.delay is None or _near(message.due_at - message.enqueued_at, self.delay))
            and (self.due_at is None or _near(message.due_at - self.due_at, timedelta()))
        )

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """The arguments by the names of the parameters; None when the task does not take them."""
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError:
            return None

    def __str__(self) -> str:
        words = [self.task if self.call is None else _call(self.task, *self.call)]
        if self.key is not None:
            words.append(f"key {self.key!r}")
        if self.delay is not None:
            words.append(f"delay {in_words(self.delay.total_seconds())}")
        if self.due_at is not None:
            words.append(f"due at {self.due_at:%Y-%m-%d %H:%M:%S} UTC")
        return ", ".join(words)


async def _aside(call: Callable[[], R]) -> R:
    """Call it in the thread that has the database. If that is not the thread of the test, no
    connection stays open there."""

    def call_and_close() -> R:
        closed = [connection for connection in connections.all() if connection.connection is None]
        try:
            return call()
        finally:
            for connection in closed:
                if not connection.in_atomic_block:
                    connection.close()

    return await sync_to_async(call_and_close)()


def _then_send(connection: BaseDatabaseWrapper, method: Callable[..., None]) -> Callable[..., None]:
    """The method of the connection; after it, what a TestCase has enqueued is sent."""

    def call_and_send(*args: Any, **kwargs: Any) -> None:
        method(*args, **kwargs)
        if connection.in_atomic_block and is_of_a_test(connection):
            on_commit.act_early(connection.alias)

    return call_and_send


def _forget_sent() -> None:
    """What was enqueued for all tests of a class is sent in each of them."""
    for connection in open_tests():
        on_commit.forget_early(connection.alias)


def _announce() -> None:
    """Let everything that keeps settings read them anew."""
    value = getattr(django_settings, "DELAYQ", {})
    setting_changed.send(sender=QueueUnderTest, setting="DELAYQ", value=value, enter=True)


def _pages(listing: Any, topic: str) -> Iterator[Message]:
    cursor: str | None = None
    while True:
        page: Page = listing(topic, cursor=cursor, limit=500)
        yield from page.messages
        cursor = page.cursor
        if cursor is None:
            return


def _by_id(found: Iterator[Message]) -> Iterator[tuple[tuple[str, str], Message]]:
    return (((message.topic, message.id), message) for message in found)


def _near(value: timedelta, wanted: timedelta) -> bool:
    return abs(value - wanted) < TOLERANCE


def _call(task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    given = [repr(arg) for arg in args] + [f"{name}={value!r}" for name, value in kwargs.items()]
    return f"{task}({', '.join(given)})"


def _line(message: Message, now: datetime) -> str:
    seconds = (message.due_at - now).total_seconds()
    due = f"due in {in_words(seconds)}" if seconds > 0 else "due"
    delay = in_words((message.due_at - message.enqueued_at).total_seconds())
    key = f", key {message.key!r}" if message.key else ""
    call = _call(message.task, message.args, message.kwargs)
    return f"  {call}{key}, delay {delay}, {due}, at {message.due_at:%Y-%m-%d %H:%M:%S} UTC"
