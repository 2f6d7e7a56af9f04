"""A task that code can enqueue, cancel and reschedule, and the decorator that makes one.

Code declares tasks before Django has loaded its models. So nothing here imports a module that needs
models before somebody calls a method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, cast, overload
from uuid import UUID

from asgiref.sync import sync_to_async

from ..core.exceptions import InvalidArguments, InvalidKey, InvalidTask
from ..core.message import Message
from ..core.times import Duration, When
from ..tasks.declaration import check_function, name_of
from ..tasks.options import BatchOptions, CallOptions, ChangeOptions, Options, TaskOptions
from ..tasks.recurrence import Recurrence
from ..tasks.registry import by_name, register
from ..tasks.task import Call, Definition, Receipt, Task
from .handle import Handle

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..tasks.batch import Batch

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


@cache
def _enqueue() -> Callable[[Iterable[Sequence[Call]]], list[Receipt]]:
    """enqueue() of enqueue.py, imported at the first call. Imported at each, it would cost 4 us of
    each lone enqueue."""
    from .enqueue import enqueue

    return enqueue


class DelayedTask(Task[P, R]):
    """A function that can be enqueued. Calling it calls the function."""

    receipt = Handle

    def __reduce__(self) -> Any:
        """By name: a pickle or a copy is this task in the process that reads it, with the same
        options."""
        declared = self.definition.options
        names = (field.name for field in fields(declared))
        changes = {
            name: mine
            for name in names
            if (mine := getattr(self.options, name)) != getattr(declared, name)
        }
        return _restored, (self.__module__, self.name, changes)

    def using(self, **changes: Unpack[CallOptions]) -> DelayedTask[P, R]:
        """A copy with other options. Raises InvalidMessage and its subclasses."""
        return type(self)(self.definition, self.options.changed(changes))

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """One element for enqueue_many, with this copy's options; its using() gives it a key and a
        due time of its own."""
        return Call(self, args, kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle:
        """Store a message that calls the task with these arguments, and return its handle.

        Inside a transaction it is sent when that commits. Raises InvalidMessage (nothing was sent),
        DuplicateMessage, StoreUnavailable (nothing was sent) or EnqueueUnknown. A commit raises
        nothing: what goes wrong only then is in `handle.outcome`, the signal `refused` and the log.
        """
        return cast(Handle, _enqueue()([[Call(self, args, kwargs)]])[0])

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle:
        """enqueue() for async code."""
        return await sync_to_async(self.enqueue, thread_sensitive=True)(*args, **kwargs)

    def enqueue_many(
        self, calls: Iterable[Sequence[Any] | Mapping[str, Any] | Call]
    ) -> list[Handle]:
        """Enqueue one message per element and return their handles. Sent in batches of 500.

        An element is a sequence (positional arguments), a mapping (keyword arguments) or what
        prepare() returned, such as `task.prepare(order.pk).using(key=..., due_at=...)`. Duplicates
        raise DuplicateMessage after everything else was sent.
        """
        from .enqueue import in_chunks

        return cast("list[Handle]", _enqueue()(in_chunks(map(self._call, calls))))

    async def aenqueue_many(
        self, calls: Iterable[Sequence[Any] | Mapping[str, Any] | Call]
    ) -> list[Handle]:
        """enqueue_many() for async code. `calls` is read in a thread."""
        return await sync_to_async(self.enqueue_many, thread_sensitive=True)(calls)

    def key_for(self, *args: Any, **kwargs: Any) -> str | None:
        """The key of a message with these arguments, as `key` of @delayed_task makes it: for
        cancel, reschedule and get. None when it has none.

        Arguments of which the key is not made may be left out. Raises InvalidArguments and
        InvalidKey, also when the task has no `key`.
        """
        if self.options.key_maker is None and self.options.key is None:
            raise InvalidKey(
                f"{self.name} makes no keys. @delayed_task(key='order:{{order_id}}') would."
            )
        try:
            self.definition.signature.bind_partial(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(f"{self.name}.key_for(): {error}.") from None
        return self.key_of(args, kwargs)

    def cancel(
        self,
        *,
        key: str | None = None,
        id: str | UUID | None = None,  # noqa: A002
        missing_ok: bool = False,
        after_commit: bool | None = None,
        running: bool = False,
    ) -> bool:
        """Take a waiting message back. Returns True; with `missing_ok` False when none waits.

        Inside a transaction it takes effect when that commits, in the order of the calls, and not
        at all when it rolls back; `after_commit=False` acts at once. Raises MessageNotFound or
        MessageRunning, unless `missing_ok`; what is found only at the commit is logged and sent as
        the signal `refused`. While Redis is away the outbox keeps the cancel, and the relay brings
        it to Redis later.

        `running=True` cancels also a message that runs, at once, whatever the open transaction
        does: it is archived as cancelled and never tried again. Its worker ends a coroutine and an
        isolated run within about a second; a thread goes on, and what it returns is refused: it can
        look at `current_message().lease_lost`. Raises StoreUnavailable while Redis is away.
        """
        from .changes import cancel

        how = self._how(missing_ok, after_commit)._replace(running=running)
        return cancel(self.options.topic, key, id, how)

    @overload
    def reschedule(
        self,
        *,
        key: str | None = None,
        id: str | UUID | None = None,
        delay: Duration | None = None,
        due_at: datetime | None = None,
        missing_ok: Literal[False] = False,
        after_commit: bool | None = None,
    ) -> datetime: ...
    @overload
    def reschedule(
        self,
        *,
        key: str | None = None,
        id: str | UUID | None = None,
        delay: Duration | None = None,
        due_at: datetime | None = None,
        missing_ok: bool,
        after_commit: bool | None = None,
    ) -> datetime | None: ...
    def reschedule(
        self,
        *,
        key: str | None = None,
        id: str | UUID | None = None,  # noqa: A002
        delay: Duration | None = None,
        due_at: datetime | None = None,
        missing_ok: bool = False,
        after_commit: bool | None = None,
    ) -> datetime | None:
        """Give a waiting message another due time, and return it. When a message with the key
        runs, this moves the one that follows it.

        Inside a transaction, while Redis is away, and with `missing_ok` (then None) as for
        cancel().
        """
        from .changes import reschedule

        how = self._how(missing_ok, after_commit)
        return reschedule(self.options.topic, key, id, When.given(delay, due_at), how)

    def get(self, *, key: str | None = None, id: str | UUID | None = None) -> Message | None:  # noqa: A002
        """The live message with its state, due_at and attempt, or None when it is finished or
        unknown. The open transaction has not changed it yet.
        """
        from .finding import get

        return get(self.options.topic, key, id)

    async def acancel(
        self,
        *,
        key: str | None = None,
        id: str | UUID | None = None,  # noqa: A002
        missing_ok: bool = False,
        after_commit: bool | None = None,
        running: bool = False,
    ) -> bool:
        """cancel() for async code."""
        return await sync_to_async(self.cancel, thread_sensitive=True)(
            key=key, id=id, missing_ok=missing_ok, after_commit=after_commit, running=running
        )

    @overload
    async def areschedule(
        self,
        *,
        key: str | None = None,
        id: str | UUID | None = None,
        delay: Duration | None = None,
        due_at: datetime | None = None,
        missing_ok: Literal[False] = False,
        after_commit: bool | None = None,
    ) -> datetime: ...
    @overload
    async def areschedule(
        self,
        *,
        key: str | None = None,
        id: str | UUID | None = None,
        delay: Duration | None = None,
        due_at: datetime | None = None,
        missing_ok: bool,
        after_commit: bool | None = None,
    ) -> datetime | None: ...
    async def areschedule(
        self,
        *,
        key: str | None = None,
        id: str | UUID | None = None,  # noqa: A002
        delay: Duration | None = None,
        due_at: datetime | None = None,
        missing_ok: bool = False,
        after_commit: bool | None = None,
    ) -> datetime | None:
        """reschedule() for async code."""
        reschedule: Callable[..., datetime | None] = self.reschedule
        return await sync_to_async(reschedule, thread_sensitive=True)(
            key=key,
            id=id,
            delay=delay,
            due_at=due_at,
            missing_ok=missing_ok,
            after_commit=after_commit,
        )

    async def aget(self, *, key: str | None = None, id: str | UUID | None = None) -> Message | None:  # noqa: A002
        """get() for async code."""
        return await sync_to_async(self.get, thread_sensitive=True)(key=key, id=id)

    def _how(self, missing_ok: bool, after_commit: bool | None) -> ChangeOptions:
        mine = self.options
        wait = mine.after_commit if after_commit is None else after_commit
        return ChangeOptions(missing_ok, wait, mine.database, mine.on_redis_error)

    def _call(self, element: Sequence[Any] | Mapping[str, Any] | Call) -> Call:
        if type(element) is tuple:
            return Call(self, element, {})
        if isinstance(element, Call):
            return element
        if isinstance(element, Mapping):
            return Call(self, (), element)
        if isinstance(element, str | bytes) or not isinstance(element, Sequence):
            raise InvalidArguments(
                "enqueue_many takes tuples of arguments, mappings or prepare(...), not "
                f"{element!r}."
            )
        return Call(self, tuple(element), {})


class BatchTask(DelayedTask[P, R]):
    """A task whose function gets many messages in one call. P is what enqueue() takes."""

    def __call__(self, messages: Batch[Unpack[tuple[Any, ...]]]) -> R:  # type: ignore[override]
        return cast(R, self.definition.func(messages))


class BatchDecorator(Protocol):
    """Types enqueue() by the arguments that `Batch[...]` names."""

    @overload
    def __call__(self, func: Callable[[Batch[A]], R], /) -> BatchTask[[A], R]: ...
    @overload
    def __call__(self, func: Callable[[Batch[A, B]], R], /) -> BatchTask[[A, B], R]: ...
    @overload
    def __call__(self, func: Callable[[Batch[A, B, C]], R], /) -> BatchTask[[A, B, C], R]: ...
    @overload
    def __call__(self, func: Callable[[Batch[A, B, C, D]], R], /) -> BatchTask[[A, B, C, D], R]: ...
    @overload
    def __call__(
        self, func: Callable[[Batch[Unpack[tuple[Any, ...]]]], R], /
    ) -> BatchTask[..., R]: ...


def _restored(module: str, name: str, changes: Mapping[str, Any]) -> Task[Any, Any]:
    """The task that a pickle names."""
    if name not in by_name:
        import_module(module)
    task = by_name[name]
    return (
        type(task)(task.definition, replace(task.definition.options, **changes))
        if changes
        else task
    )


@overload
def delayed_task(func: Callable[P, R], /) -> DelayedTask[P, R]: ...
@overload
def delayed_task(*, name: str | None = None, **options: Unpack[BatchOptions]) -> BatchDecorator: ...
@overload
def delayed_task(
    *, name: str | None = None, **options: Unpack[TaskOptions]
) -> Callable[[Callable[P, R]], DelayedTask[P, R]]: ...
def delayed_task(func: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Make a function a task that can be enqueued. With or without options; `def` or `async def`.

    `name` stands for the task in stored messages (default: module and qualified name); keep it when
    you move the function. The options are those of TaskOptions, and of BatchOptions for one
    that gets many messages in one call. With `every` or `cron` the task is recurring: a process
    that archives enqueues it at each tick. Raises InvalidMessage, InvalidTask or DuplicateTask at
    import.
    """

    def decorate(function: Callable[P, R]) -> DelayedTask[P, R]:
        if isinstance(function, DelayedTask):
            raise InvalidTask(
                f"{function.name} is a task already: leave one of the two decorators away."
            )
        check_function(function)
        checked, recurrence = Options.declared(options), Recurrence.declared(options)
        definition = Definition(function, name_of(function, name), checked, recurrence)
        definition.check_options()
        if checked.batch is not None:
            definition.signature  # noqa: B018  what is no batch is refused here
        if checked.key_maker is not None:
            maker = checked.key_maker.of(definition.name, definition.signature)
            definition = replace(definition, options=replace(checked, key_maker=maker))
        made = DelayedTask if checked.batch is None else BatchTask
        task: DelayedTask[P, R] = made(definition, definition.options)
        register(task)
        return task

    return decorate if func is None else decorate(func)
