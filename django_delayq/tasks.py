"""The @delayed_task decorator, the tasks it makes and their registry."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload
from uuid import UUID

from asgiref.sync import sync_to_async

from .conf import DEFAULT_TOPIC, get_settings
from .exceptions import DuplicateTask, InvalidArguments, InvalidMessage, InvalidName, UnknownTopic
from .handle import Handle, producer
from .identity import task_code
from .message import Message
from .options import CallOptions, Duration, Options, TaskOptions, when

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
        """Whether it is an `async def`."""
        return inspect.iscoroutinefunction(self.func)

    @cached_property
    def signature(self) -> inspect.Signature:
        """Of the function."""
        return inspect.signature(self.func)

    @cached_property
    def _positional(self) -> range:
        """The numbers of purely positional arguments that fit: the quick answer for most calls (0.1 us for 4 us)."""
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
            raise InvalidArguments(f"{self.name}{self.signature} cannot be called so: {error}.") from None


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
        self.__wrapped__ = definition.func
        self.__doc__ = definition.func.__doc__

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

        Inside a transaction it is sent when that commits. Raises InvalidMessage (nothing was sent), DuplicateMessage,
        StoreUnavailable (nothing was sent) or EnqueueUnknown; inside a transaction the last three come at the commit.
        """
        return producer().send_one(Call(self, args, kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle:
        """enqueue() for async code."""
        return await sync_to_async(self.enqueue, thread_sensitive=True)(*args, **kwargs)

    def enqueue_many(self, calls: Iterable[Sequence[Any] | Mapping[str, Any] | Call]) -> list[Handle]:
        """Enqueue one message per element and return their handles. Sent in batches of 500.

        An element is a sequence (positional arguments), a mapping (keyword arguments) or what prepare() returned.
        Duplicates raise DuplicateMessage after everything else was sent.
        """
        return producer().send(self._call(element) for element in calls)

    def cancel(self, *, key: str | None = None, id: str | UUID | None = None) -> None:  # noqa: A002
        """Take a waiting message back. Raises MessageNotFound or MessageRunning."""
        producer().cancel(self.options.topic, key, id)

    def reschedule(
        self,
        *,
        key: str | None = None,
        id: str | UUID | None = None,  # noqa: A002
        delay: Duration | None = None,
        due_at: datetime | None = None,
    ) -> datetime:
        """Give a waiting message another due time, which is returned. Raises MessageNotFound or MessageRunning."""
        return producer().reschedule(self.options.topic, key, id, when(delay, due_at))

    def get(self, *, key: str | None = None, id: str | UUID | None = None) -> Message | None:  # noqa: A002
        """The live message with its state, due_at and attempt, or None when it is finished or unknown."""
        return producer().get(self.options.topic, key, id)

    async def acancel(self, **name: Any) -> None:
        """cancel() for async code."""
        await sync_to_async(self.cancel, thread_sensitive=True)(**name)

    async def areschedule(self, **options: Any) -> datetime:
        """reschedule() for async code."""
        return await sync_to_async(self.reschedule, thread_sensitive=True)(**options)

    async def aget(self, **name: Any) -> Message | None:
        """get() for async code."""
        return await sync_to_async(self.get, thread_sensitive=True)(**name)

    def _call(self, element: Sequence[Any] | Mapping[str, Any] | Call) -> Call:
        if type(element) is tuple:
            return Call(self, element, {})
        if isinstance(element, Call):
            return element
        if isinstance(element, Mapping):
            return Call(self, (), element)
        if isinstance(element, str | bytes) or not isinstance(element, Sequence):
            raise InvalidArguments(
                f"enqueue_many takes tuples of arguments, mappings or prepare(...), not {element!r}."
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
        """What using() gave, if it differs from the declaration: only then it travels with the message."""
        mine = self.options.max_attempts
        return None if mine == self.definition.options.max_attempts else mine


#: Every declared task by name and by code. Messages are resolved here and nowhere else.
by_name: dict[str, DelayedTask[Any, Any]] = {}
by_code: dict[bytes, DelayedTask[Any, Any]] = {}


def register(task: DelayedTask[Any, Any]) -> None:
    """Make the task known. Raises DuplicateTask when its name, or its code, belongs to another function."""
    new = task.definition
    known = by_code.get(new.code)
    if known is not None and _place(known.definition.func) != _place(new.func):
        raise DuplicateTask(
            f"Two tasks are named {new.name!r} (or share its code): {_place(known.definition.func)} and "
            f"{_place(new.func)}. Give one of them another name: @delayed_task(name=...)."
        )
    by_name[new.name] = by_code[new.code] = task


def _place(func: Callable[..., Any]) -> str:
    """File and line: a module that is imported a second time declares the same task, not another one."""
    code = inspect.unwrap(func).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def _check_task_name(name: str) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", name):
        raise InvalidName(f"{name!r:.80} cannot name a task: use A-Z a-z 0-9 _ . - and at most 200 characters.")
    return name


def check_topic(topic: str) -> str:
    """The topic itself. Raises UnknownTopic that names those that exist."""
    known = known_topics()
    if topic not in known:
        raise UnknownTopic(f"Topic {topic!r} is not declared. Known topics: {', '.join(sorted(known))}.")
    return topic


def known_topics() -> set[str]:
    """Every topic that a task or the settings declare."""
    return {DEFAULT_TOPIC, *get_settings().topics, *(task.options.topic for task in by_name.values())}


@overload
def delayed_task(func: Callable[P, R], /) -> DelayedTask[P, R]: ...
@overload
def delayed_task(
    *, name: str | None = None, **options: Unpack[TaskOptions]
) -> Callable[[Callable[P, R]], DelayedTask[P, R]]: ...
def delayed_task(func: Any = None, /, *, name: str | None = None, **options: Unpack[TaskOptions]) -> Any:
    """Make a function a task that can be enqueued. With or without options; `def` or `async def`.

    `name` stands for the task in stored messages (default: module and qualified name); keep it when you move the
    function. The options are those of TaskOptions. Raises InvalidMessage or DuplicateTask at import.
    """

    def decorate(function: Callable[P, R]) -> DelayedTask[P, R]:
        checked = Options.declared(options)
        full_name = f"{function.__module__}.{function.__qualname__}" if name is None else _check_task_name(name)
        definition = Definition(function, full_name, checked)
        if checked.exactly_once and definition.is_async:
            raise InvalidMessage(
                f"{full_name} is async def, and Django has no transactions for those: exactly_once needs a def task."
            )
        task: DelayedTask[P, R] = DelayedTask(definition, checked)
        register(task)
        return task

    return decorate if func is None else decorate(func)
