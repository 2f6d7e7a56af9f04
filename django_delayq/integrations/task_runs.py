"""Runs a function of Django's tasks as a task of ours: its context, its result, the signals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, Signature, iscoroutinefunction, signature
from traceback import format_exception
from typing import Any, cast

from django.utils import timezone

from ..core.message import Found, Record, State, decode_body, task_code_of
from ..store.lease import Lease
from ..tasks import context, redaction, registry
from .task_results import FAILED, SUCCESSFUL, live_facts
from .tasks_api import (
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)


def runner_of(task: Task[..., Any]) -> Callable[..., Any]:
    """What a worker calls for this task, with the signature of the message's arguments."""
    func: Any = task.func
    # These close over the function and not over the task: by what a function closes over the
    # registry tells whether it is the same.
    if iscoroutinefunction(func):

        @wraps(func)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with _attempt(run_async) as result:
                value = await func(*_given(run_async, result, args), **kwargs)
                value = normalize_json(value)
                object.__setattr__(result, "_return_value", value)
            return value

        run: Any = run_async
    else:

        @wraps(func)
        def run_here(*args: Any, **kwargs: Any) -> Any:
            with _attempt(run_here) as result:
                value = func(*_given(run_here, result, args), **kwargs)
                value = normalize_json(value)
                object.__setattr__(result, "_return_value", value)
            return value

        run = run_here
    # Without annotations: Django's tasks take the JSON values as they are.
    parameters = [
        p.replace(annotation=Parameter.empty) for p in signature(func).parameters.values()
    ]
    run.__annotations__ = {}
    run.__signature__ = Signature(parameters[1:] if task.takes_context else parameters)
    run.task = task
    return cast("Callable[..., Any]", run)


def _given(run: Any, result: TaskResult[..., Any], args: Sequence[Any]) -> Sequence[Any]:
    return (TaskContext(task_result=result), *args) if run.task.takes_context else args


@contextmanager
def _attempt(run: Any) -> Iterator[TaskResult[..., Any]]:
    """One run, with Django's signals around it. A failure that is followed by another attempt is no
    end, so it sends none."""
    task, lease = run.task, context.current_message().lease
    result = _running_result(task, lease)
    sender = type(task_backends[result.backend])
    task_started.send_robust(sender, task_result=result)
    try:
        yield result
    except BaseException as error:
        record = Record.decode(lease.record)
        most = decode_body(record.flags, record.body, lease.id).max_attempts
        failures = lease.attempts.attempt - lease.attempts.crashes
        if not registry.by_name[task.module_path].tries_again(error, failures, most):
            _finish(result, FAILED)
            kind = type(error)
            seen = error
            if redaction.hides(task_code_of(lease.record)):
                seen = redaction.safe_error(error, redaction.hidden_in(lease))
            result.errors.append(
                TaskError(
                    exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
                    traceback="".join(format_exception(seen)),
                )
            )
            _while_handling(seen, lambda: task_finished.send_robust(sender, task_result=result))
        raise
    _finish(result, SUCCESSFUL)
    task_finished.send_robust(sender, task_result=result)


def _while_handling(error: BaseException, tell: Callable[[], object]) -> None:
    """Tell receivers that ask for sys.exc_info(). The stack that they see begins with the function
    of the task: the variables of our own functions have the arguments."""
    stack, whole, before = error.__traceback__, error.__traceback__, error.__context__
    for _ in range(2):  # _attempt and the runner
        stack = stack and stack.tb_next
    try:
        raise error
    except BaseException:
        # As they were: `raise` puts the error that is handled already, the true one, before it.
        error.__traceback__, error.__context__ = stack, before
        tell()
        error.__traceback__ = whole


def _running_result(task: Task[..., Any], lease: Lease) -> TaskResult[..., Any]:
    found = Found(lease.id, State("leased"), lease.attempts.due_at_ms, lease.record, lease.attempts)
    facts = live_facts(task.module_path, lease.partition.topic, found)
    result = facts.result(facts.alias(), task)
    now = timezone.now()
    result.worker_ids[-1] = context.worker_name or result.worker_ids[-1]
    object.__setattr__(result, "last_attempted_at", now)
    if result.attempts == 1:
        object.__setattr__(result, "started_at", now)
    return result


def _finish(result: TaskResult[..., Any], status: TaskResultStatus) -> None:
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", status)
