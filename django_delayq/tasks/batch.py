"""Messages of a batch task, as its function gets them: many in one call."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, get_args, get_origin, overload

from ..core.exceptions import (
    ControlFlow,
    InvalidMessage,
    InvalidResult,
    InvalidTask,
    Reject,
    Retry,
    Snooze,
)
from ..core.message import Body
from ..core.task_report import TaskReport, encode_result
from ..core.times import duration_ms
from ..store.lease import Lease
from .annotations import resolved_annotation

if sys.version_info >= (3, 11):
    from typing import TypeVarTuple, Unpack
else:
    from typing_extensions import TypeVarTuple, Unpack

Ts = TypeVarTuple("Ts")


class BatchMessage(Generic[Unpack[Ts]]):
    """One message of a batch. When the function returns, the message is acked, unless the function
    has called retry(), snooze() or reject() of it; the last call counts."""

    __slots__ = ("_body", "_lease", "_result_limit", "args", "verdict")

    def __init__(self, lease: Lease, body: Body, result_limit: int | None = None) -> None:
        self._lease = lease
        self._body = body
        self._result_limit = result_limit
        """In bytes; None: the task keeps no results."""
        self.args: tuple[Unpack[Ts]] = tuple(body.args)
        """The arguments, of the types that the annotation names."""
        self.verdict: ControlFlow | None = None
        """What the function has said about this message; None: it is done."""

    def __repr__(self) -> str:
        return f"<message {self.id} of topic {self.topic}, attempt {self.attempt}>"

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Arguments by name. Only a batch task that does not say what it takes gets any."""
        return self._body.kwargs

    @property
    def id(self) -> str:
        """32 hexadecimal digits."""
        return self._lease.id.hex()

    @property
    def topic(self) -> str:
        """Where it was claimed."""
        return self._lease.partition.topic

    @property
    def key(self) -> str | None:
        """The business identity; None without one."""
        return self._body.key

    @property
    def attempt(self) -> int:
        """1 for the first run."""
        return self._lease.attempts.attempt

    @property
    def headers(self) -> Mapping[str, str]:
        """What `using(headers=...)` gave."""
        return self._body.headers

    @property
    def lease_lost(self) -> bool:
        """True once the lease has ended, or the message was cancelled while it ran: what becomes of
        it is decided elsewhere."""
        return self._lease.ended

    def retry(self, reason: str = "", *, delay: timedelta | float | None = None) -> None:
        """As `raise Retry(reason, delay=...)` in the task of one message. Raises InvalidMessage for
        what is no delay."""
        if delay is not None:
            duration_ms(delay)
        self.verdict = Retry(reason, delay=delay)

    def snooze(self, delay: timedelta | float) -> None:
        """As `raise Snooze(delay)` in the task of one message. Raises InvalidMessage for what is no
        delay."""
        duration_ms(delay)
        self.verdict = Snooze(delay)

    def reject(self, reason: str) -> None:
        """As `raise Reject(reason)` in the task of one message."""
        self.verdict = Reject(reason)

    def keep_result(self, value: object) -> None:
        """Keep the value for `handle.wait()`, as what the task of one message returns. With
        `result=True` only, else raises InvalidMessage. A value that is no JSON, or too large, makes
        this message a dead letter."""
        if self._result_limit is None:
            raise InvalidMessage("This task keeps no results: @delayed_task(result=True) does.")
        try:
            encoded = encode_result(value, self._result_limit)
        except InvalidResult as error:
            self.verdict = error
            return
        self._lease.report = self._lease.report or TaskReport()
        self._lease.report.result = encoded


class Batch(Sequence[BatchMessage[Unpack[Ts]]], Generic[Unpack[Ts]]):
    """The messages of one call, those that were due first in front. `Batch[int, str]` says what the
    arguments of each are."""

    def __init__(self, messages: Sequence[BatchMessage[Unpack[Ts]]]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[BatchMessage[Unpack[Ts]]]:
        return iter(self._messages)

    def __repr__(self) -> str:
        return f"<batch of {len(self)} messages>"

    @overload
    def __getitem__(self, index: int) -> BatchMessage[Unpack[Ts]]: ...
    @overload
    def __getitem__(self, index: slice) -> Batch[Unpack[Ts]]: ...
    def __getitem__(self, index: int | slice) -> BatchMessage[Unpack[Ts]] | Batch[Unpack[Ts]]:
        if isinstance(index, slice):
            return Batch(self._messages[index])
        return self._messages[index]


def element_signature(name: str, func: Callable[..., Any]) -> inspect.Signature:
    """What a call of enqueue() takes, by the annotation of the function's one parameter. Raises
    InvalidTask."""
    parameters = list(inspect.signature(func, follow_wrapped=False).parameters.values())
    wanted = (
        f"{name} is a batch task: its function takes one Batch, as in "
        "`def close_orders(messages: Batch[int])`."
    )
    if len(parameters) != 1 or parameters[0].kind in (
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    ):
        raise InvalidTask(wanted)
    try:
        hint = resolved_annotation(func, parameters[0])
    except Exception as error:
        raise InvalidTask(
            f"{wanted} The annotation cannot be read ({error}): define what it names before the "
            "task, and not for type checkers only."
        ) from None
    if hint is Batch:
        return inspect.Signature(
            [
                inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
                inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
            ]
        )
    if get_origin(hint) is not Batch:
        raise InvalidTask(wanted)
    return inspect.Signature(
        [
            inspect.Parameter(f"arg{number}", inspect.Parameter.POSITIONAL_ONLY, annotation=kind)
            for number, kind in enumerate(get_args(hint), 1)
        ]
    )
