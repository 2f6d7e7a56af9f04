"""The @delayed_task decorator, the tasks it makes and their registry."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, overload
from uuid import UUID

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async

from ..core.conf import get_settings
from ..core.exceptions import InvalidArguments, InvalidTask
from ..core.ids import task_code
from ..core.message import Message
from .declaration import check_function, name_of, signature_of
from .handle import Handle, Manner, producer
from .options import CallOptions, Duration, Options, TaskOptions, when
from .registry import by_name, register

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Definition:
    """What is said once about a task, at its declaration."""

    func: Callable[..., Any]
    name: str
    options: Options

    @cached_property
    def code(self) -> bytes:
        """Stands for the name in records."""
        return task_code(self.name)

    @cached_property
    def is_async(self) -> bool:
        """Whether it is an `async def`, or marked as one (asgiref.sync.markcoroutinefunction)."""
        return iscoroutinefunction(self.func)

    @cached_property
    def signature(self) -> inspect.Signature:
        """What a call takes."""
        return signature_of(self.func)

    @cached_property
    def _positional(self) -> range:
        """The numbers of purely positional arguments that fit: the quick answer for most calls (0.1
        us for 4 us)."""
        parameters = list(self.signature.parameters.values())
        plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(plain) < len(parameters):
            return range(0)
        return range(sum(p.default is p.empty for p in plain), len(plain) + 1)

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise InvalidArguments unless the function can be called with these."""
        if not kwargs and len(args) in self._positional:
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            words = f"{self.name}{self.signature} cannot be called so: {error}."
            raise InvalidArguments(f"{words}{self._hint(args, kwargs)}") from None

    def _hint(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """What may have been meant."""
        if options := sorted(
            kwargs.keys() & CallOptions.__annotations__.keys() - self.signature.parameters.keys()
        ):
            given = ", ".join(f"{name}=..." for name in options)
            return f" Options of the message go to using(): task.using({given}).enqueue(...)."
        if not hasattr(self.func, "__wrapped__"):
            return ""
        try:
            inspect.signature(self.func, follow_wrapped=False).bind(*args, **kwargs)
        except (TypeError, ValueError):
            return ""
        return (
            " If its decorator gives it the rest, the decorator has to say what a call takes: by "
            "the parameters of "
            "its own function, or by a __signature__."
        )


@dataclass(frozen=True, slots=True)
class Call:
    """A task, its options and arguments: what one message is made of."""

    task: DelayedTask[Any, Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class DelayedTask(Generic[P, R]):
    """A function that can be enqueued. Calling it calls the function."""

    do_not_call_in_templates = True
    """Django calls what can be called: a task in a template's context would run."""

    def __init__(self, definition: Definition, options: Options) -> None:
        self.definition = definition
        self.options = options
        self.template: Any = None
        """What outgoing.py has worked out for this copy."""
        func = definition.func
        self.__wrapped__, self.__doc__ = func, func.__doc__
        self.__module__, self.__qualname__ = func.__module__, func.__qualname__
        if definition.is_async:
            markcoroutinefunction(self)

    def __reduce__(self) -> Any:
        """By name: what is pickled or copied is this task in the process that reads it, with the
        same options."""
        declared = self.definition.options
        names = (one.name for one in fields(declared))
        changes = {
            name: mine
            for name in names
            if (mine := getattr(self.options, name)) != getattr(declared, name)
        }
        return _restored, (self.__module__, self.name, changes)

    def __repr__(self) -> str:
        return f"<delayed task {self.name} of topic {self.options.topic}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.definition.func(*args, **kwargs)
        return result

    @property
    def name(self) -> str:
        """Stands for the task in logs and stored messages."""
        return self.definition.name

    @property
    def __name__(self) -> str:
        return self.definition.func.__name__

    def using(self, **changes: Unpack[CallOptions]) -> DelayedTask[P, R]:
        """A copy with other options. Raises InvalidMessage and its subclasses."""
        return DelayedTask(self.definition, self.options.changed(changes))

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """One element for enqueue_many, with this copy's options."""
        return Call(self, args, kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle:
        """Store a message that calls the task with these arguments, and return its handle.

        Inside a transaction it is sent when that commits. Raises InvalidMessage (nothing was sent),
        DuplicateMessage, StoreUnavailable (nothing was sent) or EnqueueUnknown. Nothing is raised
        out of a commit: what is found only then is told by `handle.outcome`, the signal `refused`
        and the log.
        """
        return producer().send_one(Call(self, args, kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle:
        """enqueue() for async code."""
        return await sync_to_async(self.enqueue, thread_sensitive=True)(*args, **kwargs)

    def enqueue_many(
        self, calls: Iterable[Sequence[Any] | Mapping[str, Any] | Call]
    ) -> list[Handle]:
        """Enqueue one message per element and return their handles. Sent in batches of 500.

        An element is a sequence (positional arguments), a mapping (keyword arguments) or what
        prepare() returned. Duplicates raise DuplicateMessage after everything else was sent.
        """
        return producer().send(self._call(element) for element in calls)

    def cancel(
        self,
        *,
        key: str | None = None,
        id: str | UUID | None = None,  # noqa: A002
        missing_ok: bool = False,
        after_commit: bool | None = None,
    ) -> bool:
        """Take a waiting message back. Returns True; with `missing_ok` also False: nothing waits
        that could be.

        Inside a transaction it takes effect when that commits, in the order of the calls, and not
        at all when it rolls back; `after_commit=False` acts at once. Raises MessageNotFound or
        MessageRunning, unless `missing_ok`; what is found only at the commit is logged and sent as
        the signal `refused`. While Redis is away nobody can know what waits there: what is said is
        kept in the outbox, and Redis hears of it when it is back.
        """
        return producer().cancel(
            self.options.topic, key, id, self._manner(missing_ok, after_commit)
        )

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
        """Give a waiting message another due time, which is returned; of a key that runs, what
        follows is moved.

        Inside a transaction, while Redis is away, and with `missing_ok` (then None) as for
        cancel().
        """
        manner = self._manner(missing_ok, after_commit)
        return producer().reschedule(self.options.topic, key, id, when(delay, due_at), manner)

    def get(self, *, key: str | None = None, id: str | UUID | None = None) -> Message | None:  # noqa: A002
        """The live message with its state, due_at and attempt, or None when it is finished or
        unknown.

        It is shown as it is now: without what the open transaction has yet to do.
        """
        return producer().get(self.options.topic, key, id)

    async def acancel(
        self,
        *,
        key: str | None = None,
        id: str | UUID | None = None,  # noqa: A002
        missing_ok: bool = False,
        after_commit: bool | None = None,
    ) -> bool:
        """cancel() for async code."""
        call = sync_to_async(self.cancel, thread_sensitive=True)
        return await call(key=key, id=id, missing_ok=missing_ok, after_commit=after_commit)

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
        call: Any = sync_to_async(self.reschedule, thread_sensitive=True)
        name, options = (
            {"key": key, "id": id},
            {"missing_ok": missing_ok, "after_commit": after_commit},
        )
        moved: datetime | None = await call(**name, delay=delay, due_at=due_at, **options)
        return moved

    async def aget(self, *, key: str | None = None, id: str | UUID | None = None) -> Message | None:  # noqa: A002
        """get() for async code."""
        return await sync_to_async(self.get, thread_sensitive=True)(key=key, id=id)

    def _manner(self, missing_ok: bool, after_commit: bool | None) -> Manner:
        mine = self.options
        wait = mine.after_commit if after_commit is None else after_commit
        return Manner(missing_ok, wait, mine.database, mine.on_redis_error)

    def _call(self, element: Sequence[Any] | Mapping[str, Any] | Call) -> Call:
        if type(element) is tuple:
            return Call(self, element, {})
        if isinstance(element, Call):
            return element
        if isinstance(element, Mapping):
            return Call(self, (), element)
        if isinstance(element, str | bytes) or not isinstance(element, Sequence):
            raise InvalidArguments(
                f"enqueue_many takes tuples of arguments, mappings or prepare(...), not "
                f"{element!r}."
            )
        return Call(self, element, {})

    @property
    def ttr_ms(self) -> int:
        """The task's, else the topic's, else DELAYQ's."""
        if self.options.ttr_ms is not None:
            return self.options.ttr_ms
        topic = get_settings().topics.get(self.options.topic)
        return int(1000 * ((topic.ttr if topic else None) or get_settings().ttr))

    @property
    def max_runtime_s(self) -> float:
        """The task's, else DELAYQ's, in seconds."""
        given = self.options.max_runtime_ms
        return get_settings().max_runtime if given is None else given / 1000

    @property
    def max_attempts(self) -> int:
        """The task's, else the topic's, else DELAYQ's."""
        if self.options.max_attempts is not None:
            return self.options.max_attempts
        topic = get_settings().topics.get(self.options.topic)
        return (topic.max_attempts if topic else None) or get_settings().max_attempts

    @property
    def max_attempts_of_call(self) -> int | None:
        """What using() gave, if it differs from the declaration: only then it travels with the
        message."""
        mine = self.options.max_attempts
        return None if mine == self.definition.options.max_attempts else mine


def _restored(module: str, name: str, changes: Mapping[str, Any]) -> DelayedTask[Any, Any]:
    """A task that was pickled."""
    if name not in by_name:
        import_module(module)
    task = by_name[name]
    return (
        DelayedTask(task.definition, replace(task.definition.options, **changes))
        if changes
        else task
    )


@overload
def delayed_task(func: Callable[P, R], /) -> DelayedTask[P, R]: ...
@overload
def delayed_task(
    *, name: str | None = None, **options: Unpack[TaskOptions]
) -> Callable[[Callable[P, R]], DelayedTask[P, R]]: ...
def delayed_task(
    func: Any = None, /, *, name: str | None = None, **options: Unpack[TaskOptions]
) -> Any:
    """Make a function a task that can be enqueued. With or without options; `def` or `async def`.

    `name` stands for the task in stored messages (default: module and qualified name); keep it when
    you move the function. The options are those of TaskOptions. Raises InvalidMessage, InvalidTask
    or DuplicateTask at import.
    """

    def decorate(function: Callable[P, R]) -> DelayedTask[P, R]:
        if isinstance(function, DelayedTask):
            raise InvalidTask(
                f"{function.name} is a task already: leave one of the two decorators away."
            )
        check_function(function)
        checked = Options.declared(options)
        definition = Definition(function, name_of(function, name), checked)
        if checked.exactly_once and definition.is_async:
            raise InvalidTask(
                f"{definition.name} is async def, and Django has no transactions for those: "
                "exactly_once needs a def task."
            )
        task: DelayedTask[P, R] = DelayedTask(definition, checked)
        register(task)
        return task

    return decorate if func is None else decorate(func)
