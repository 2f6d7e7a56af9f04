"""A task as code declares it: what the worker, the registry and the builder of messages need."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, ParamSpec, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction

from ..core.conf import get_settings
from ..core.exceptions import (
    InvalidArguments,
    InvalidTask,
    MiddlewareFailed,
    Reject,
    Retry,
    Snooze,
)
from ..core.limits import names_in
from ..core.message import check_key, task_code
from ..core.times import Duration, When
from .annotations import Annotations
from .declaration import declaring
from .options import CallOptions, Options
from .recurrence import Recurrence

if TYPE_CHECKING:
    from typing_extensions import Self

#: Worth another attempt whatever retry_for says.
_WORTH = (Retry, MiddlewareFailed, asyncio.CancelledError, SystemExit, KeyboardInterrupt)
#: A function in a thread, a coroutine, or many messages in one call.
TaskKind = Literal["def", "async", "batch"]
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Definition:
    """What is fixed when a task is declared."""

    func: Callable[..., Any]
    name: str
    options: Options
    recurrence: Recurrence | None = None
    """When it runs again and again; None: only when somebody enqueues it."""

    @cached_property
    def code(self) -> bytes:
        """Stands for the name in records."""
        return task_code(self.name)

    @cached_property
    def is_async(self) -> bool:
        """Whether it is an `async def`, or marked as one (asgiref.sync.markcoroutinefunction)."""
        return iscoroutinefunction(self.func)

    @cached_property
    def kind(self) -> TaskKind:
        """What runs it."""
        if self.options.batch is not None:
            return "batch"
        return "async" if self.is_async else "def"

    @cached_property
    def runs_apart(self) -> bool:
        """Whether a run needs more than a call: a transaction or a child process."""
        return self.options.exactly_once or self.options.isolate

    @cached_property
    def signature(self) -> inspect.Signature:
        """What a call takes. Raises InvalidTask."""
        if self.options.batch is not None:
            from .batch import element_signature

            return element_signature(self.name, self.func)
        return inspect.signature(declaring(self.func), follow_wrapped=False)

    @cached_property
    def annotations(self) -> Annotations:
        """What its parameters take. Resolved at the first enqueue or run."""
        return Annotations(self.name, declaring(self.func), self.signature)

    @cached_property
    def fitting(self) -> dict[tuple[Any, ...], bool]:
        """Shapes of calls that were found to fit, and whether that is all there is to check; see
        Template.record()."""
        return {}

    @cached_property
    def positional(self) -> range:
        """How many purely positional arguments fit: the quick check of most calls (0.1 us instead
        of 4 us). Empty when only signature.bind() can tell."""
        needed, most = 0, 0
        for parameter in self.signature.parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                most = sys.maxsize
            elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                needed, most = needed + (parameter.default is parameter.empty), most + 1
            elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
                return range(0)
        return range(needed, min(most, sys.maxsize - 1) + 1)

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise InvalidArguments unless the function can be called with these."""
        if not kwargs and len(args) in self.positional:
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            words = f"{self.name}{self.signature} cannot be called so: {error}."
            raise InvalidArguments(f"{words}{self._hint(args, kwargs)}") from None

    def check_options(self) -> None:
        """Raise InvalidTask when the options do not fit the function."""
        if self.options.exactly_once and self.is_async:
            raise InvalidTask(
                f"{self.name} is async def, and Django has no transactions for those: exactly_once "
                "needs a def task."
            )
        if self.options.isolate and self.is_async:
            raise InvalidTask(
                f"{self.name} is async def, and isolate needs a def task. The event loop cancels a "
                "coroutine at its max_runtime anyway; asyncio.run() in a def task runs one apart."
            )
        if self.options.batch is not None and self.recurrence is not None:
            raise InvalidTask(
                f"{self.name} is recurring, and each tick is one message: leave batch away."
            )
        unknown = {*names_in(self.options.limit_by or "")} - self.signature.parameters.keys()
        if unknown:
            raise InvalidTask(
                f"{self.name} has no argument {', '.join(sorted(unknown))}, which its limit_by "
                f"names: {self.options.limit_by!r}."
            )
        parameters = self.signature.parameters
        takes_any = any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
        )
        known = {*parameters, *(["result"] if self.options.result else [])}
        unknown = {path.split(".")[0] for path in self.options.secret} - known
        if unknown and not takes_any:
            raise InvalidTask(
                f"{self.name} has no argument {', '.join(sorted(unknown))}, which its secret names."
            )
        if self.recurrence is not None:
            try:
                self.check_arguments((), {})
            except InvalidArguments:
                raise InvalidTask(
                    f"{self.name}{self.signature} is recurring, and a tick gives no arguments: "
                    "give each parameter a default."
                ) from None

    def stored(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The JSON values that a message of this call has. Raises InvalidArguments and
        UnserialisableArguments, which name the parameter."""
        self.check_arguments(args, kwargs)
        return self.annotations.stored(args, kwargs)

    def _hint(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """What the caller may have meant."""
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
            "the parameters of its own function, or by a __signature__."
        )


@dataclass(slots=True, repr=False)
class Receipt:
    """Names a message that was enqueued, and says what has become of the enqueue."""

    identity: bytes
    topic: str
    task: str
    key: str | None
    outcome: str = ""
    """Empty until it is sent; then `stored`, `kept` (the live one stays, or the window of the one
    that has ended goes on), `replaced` or `follows` (the running one).

    `outbox`: the database has it, and the relay sends it when Redis is back, or its due time is
    near. What a commit could not do: `duplicate` (another has the key), `unknown` (the answer was
    lost) or `failed` (nobody has it).
    """
    due_ms: int | None = None

    @property
    def id(self) -> str:
        """32 hexadecimal digits."""
        return self.identity.hex()


class Task(Generic[P, R]):
    """A declared function with its options. Calling it calls the function."""

    do_not_call_in_templates = True
    """Django calls what can be called: a task in a template's context would run."""

    receipt: ClassVar[type[Receipt]] = Receipt
    """What names a message of this task. DelayedTask has one that can also cancel it."""

    def __init__(self, definition: Definition, options: Options) -> None:
        self.definition = definition
        self.options = options
        self.destination = options.topic, options.database, options.after_commit, options.durable
        """Messages with the same one are sent together."""
        self.template: Any = None
        """The Template of this copy: the builder makes it and keeps it here."""
        func = definition.func
        self.__wrapped__, self.__doc__ = func, func.__doc__
        self.__module__, self.__qualname__ = func.__module__, func.__qualname__
        if definition.is_async:
            markcoroutinefunction(self)

    def __repr__(self) -> str:
        return f"<delayed task {self.name} of topic {self.options.topic}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.definition.func(*args, **kwargs)

    @cached_property
    def placing(self) -> Self:
        """The copy that calls with a key or a due time of their own belong to: what they share is
        made once for them, too."""
        copy = type(self)(self.definition, self.options)
        copy.__dict__["placing"] = copy
        return copy

    @property
    def name(self) -> str:
        """Stands for the task in logs and stored messages."""
        return self.definition.name

    @property
    def __name__(self) -> str:
        return self.definition.func.__name__

    def key_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """The key of a call, by using() or by the task's own `key`. Raises InvalidMessage and its
        subclasses."""
        maker = self.options.key_maker
        if maker is None:
            return self.options.key
        annotations = self.definition.annotations
        if not annotations.are_json:
            # The same whether the caller has the values or their JSON.
            args, kwargs = annotations.read(*annotations.stored(args, kwargs))
        return maker.key(args, kwargs)

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

    def tries_again(self, error: BaseException, failures: int, most: int | None) -> bool:
        """Whether a message that has failed so often, with this error the last time, runs again.
        `most`: its own max_attempts, if it has one."""
        if isinstance(error, Snooze | Reject):
            return isinstance(error, Snooze)
        return failures < (most or self.max_attempts) and isinstance(
            error, (*_WORTH, *self.options.retry_for)
        )

    @property
    def max_attempts_of_call(self) -> int | None:
        """What using() gave, if it differs from the declaration: only then it travels with the
        message."""
        mine = self.options.max_attempts
        return None if mine == self.definition.options.max_attempts else mine


@dataclass(frozen=True, slots=True)
class Call:
    """A task and the arguments of a call: what a message is made of."""

    task: Task[Any, Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def using(
        self,
        *,
        key: str | None = None,
        delay: Duration | None = None,
        due_at: datetime | None = None,
    ) -> PlacedCall:
        """The call with a key and a due time of its own. In an enqueue_many() of many keys this
        costs a fraction of a `using()` of the task for each. Raises InvalidMessage."""
        when = None
        if delay is not None or due_at is not None:
            when = When.given(delay, due_at)
        return PlacedCall(self.task.placing, self.args, self.kwargs, check_key(key), when)


@dataclass(frozen=True, slots=True)
class PlacedCall(Call):
    """A call with a key or a due time of its own; None: those of the task."""

    key: str | None
    when: When | None
