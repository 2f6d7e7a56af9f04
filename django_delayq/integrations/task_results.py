"""Results of Django's tasks, made of what the queue and the archive know of a message."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
from django.conf import settings
from django.utils.module_loading import import_string

from ..archive.archive_rows import reported_in
from ..archive.endings import End
from ..archive.row_arguments import read_arguments
from ..core.exceptions import MessageCancelled, MessageExpired, MessageFailed
from ..core.message import Final, Found, Record, State, decode_body
from ..core.times import epoch_us, stored_ms
from ..tasks import registry
from .tasks_api import Task, TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus

READY, RUNNING = TaskResultStatus("READY"), TaskResultStatus("RUNNING")
FAILED, SUCCESSFUL = TaskResultStatus("FAILED"), TaskResultStatus("SUCCESSFUL")
#: Headers for what a message of ours has no place for.
BACKEND_HEADER, PRIORITY_HEADER = "django-backend", "django-priority"
#: The backend of a message without that header.
DEFAULT_ALIAS = "default"
#: Stands for a worker that nobody can name: one that has crashed, or that runs the task just now.
SOME_WORKER = "unknown"
#: Outcomes of runs that are no attempts.
_NO_ATTEMPT = ("snoozed", "put off", "released")
#: The exception that stands for an end which no exception of the task explains.
_WITHOUT_ERROR = {
    Final.DEAD: MessageFailed,
    Final.CANCELLED: MessageCancelled,
    Final.EXPIRED: MessageExpired,
}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a message. Instants are as timezone.now() gives them."""

    id: str
    path: str
    """Of the function."""
    topic: str
    status: TaskResultStatus
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    headers: Mapping[str, str]
    enqueued_at: datetime
    run_after: datetime | None = None
    started_at: datetime | None = None
    last_attempted_at: datetime | None = None
    finished_at: datetime | None = None
    errors: Sequence[TaskError] = field(default_factory=list)
    worker_ids: Sequence[str] = field(default_factory=list)
    return_value: Any = None

    def alias(self, otherwise: str = DEFAULT_ALIAS) -> str:
        """The backend that the task was sent by; `otherwise` when the settings have it no more."""
        alias = self.headers.get(BACKEND_HEADER, DEFAULT_ALIAS)
        return alias if alias in settings.TASKS else otherwise

    def result(self, alias: str, task: Task[..., Any] | None = None) -> TaskResult[..., Any]:
        """As Django's tasks show it. Raises TaskResultDoesNotExist when the function is gone."""
        result = TaskResult(
            task=task or self._task(alias),
            id=self.id,
            status=self.status,
            enqueued_at=self.enqueued_at,
            # Redis has whole milliseconds for one of them, and the worker's clock is its own.
            started_at=_not_before(self.enqueued_at, self.started_at),
            finished_at=_not_before(self.last_attempted_at, self.finished_at),
            last_attempted_at=_not_before(self.enqueued_at, self.last_attempted_at),
            args=list(self.args),
            kwargs=dict(self.kwargs),
            backend=alias,
            errors=list(self.errors),
            worker_ids=list(self.worker_ids),
        )
        object.__setattr__(result, "_return_value", self.return_value)
        return result

    def _task(self, alias: str) -> Task[..., Any]:
        task = declared_at(self.path)
        if task is None:
            raise TaskResultDoesNotExist(self.id)
        priority = int(self.headers.get(PRIORITY_HEADER, 0))
        changes: dict[str, Any] = {"priority": priority, "queue_name": self.topic, "backend": alias}
        return task.using(run_after=self.run_after, **changes)


def _not_before(first: datetime | None, then: datetime | None) -> datetime | None:
    return max(first, then) if first and then else then


def declared_at(path: str) -> Task[..., Any] | None:
    """The task that a module has at this path, else the one that stands for its function."""
    try:
        found = import_string(path)
    except ImportError:
        found = None
    if isinstance(found, Task):
        return found
    known = registry.by_name.get(path)
    task = getattr(known.definition.func, "task", None) if known else None
    return task if isinstance(task, Task) else None


def live_facts(path: str, topic: str, found: Found) -> Facts:
    """Of a message that waits or runs. Raises UndecodableMessage."""
    record = Record.decode(found.record)
    body = decode_body(record.flags, record.body, found.id)
    runs, attempts = _attempts(found.attempts.runs if found.attempts else ()), found.attempts
    enqueued_ms = -(-record.enqueued_at_us // 1000)
    workers = [run.get("worker") or SOME_WORKER for run in runs]
    last_ms = runs[-1].get("started_ms") if runs else None
    status = READY
    if found.state == State.LEASED and attempts:
        status = RUNNING
        workers.append(SOME_WORKER)
        # The time of the newest claim is not kept; its due time comes a moment before.
        last_ms = attempts.due_at_ms if runs else attempts.first_claimed_at_ms
    first_ms = attempts.first_claimed_at_ms if attempts and workers else None
    is_deferred = not attempts and found.due_at_ms > enqueued_ms
    return Facts(
        id=found.id.hex(),
        path=path,
        topic=topic,
        status=status,
        args=body.args,
        kwargs=body.kwargs,
        headers=body.headers,
        enqueued_at=stored_ms(enqueued_ms),
        run_after=stored_ms(found.due_at_ms) if is_deferred else None,
        started_at=stored_ms(first_ms) if first_ms else None,
        last_attempted_at=stored_ms(last_ms) if last_ms else None,
        errors=_errors(runs),
        worker_ids=workers,
    )


def ended_facts(end: End) -> Facts:
    """Of a message that has ended."""
    row = end.row
    runs = _attempts(row.runs)
    last_ms = runs[-1].get("started_ms") if runs else None
    known = read_arguments(row.message_id, row.body)
    errors = _errors(runs[:-1] if row.state != Final.ACKED else runs)
    if row.state != Final.ACKED:
        kind = _WITHOUT_ERROR[Final(row.state)]
        errors.append(
            error_of(row.error_class, row.traceback)
            if row.error_class
            else error_of(f"{kind.__module__}.{kind.__qualname__}", row.reason)
        )
    return Facts(
        id=row.message_id.hex,
        path=row.task,
        topic=row.topic,
        status=(SUCCESSFUL if row.state == Final.ACKED else FAILED),
        args=known.args,
        kwargs=known.kwargs,
        headers=json.loads(row.headers or "{}"),
        enqueued_at=stored_ms(-(-epoch_us(row.enqueued_at) // 1000)),
        started_at=row.started_at,
        last_attempted_at=stored_ms(last_ms) if last_ms else row.started_at,
        finished_at=row.finished_at,
        errors=errors,
        worker_ids=[run.get("worker") or SOME_WORKER for run in runs],
        # Of a result that was redacted, what the archive shows; None when there was none.
        return_value=msgspec.json.decode(end.result)
        if end.result
        else reported_in(row.result).get("result"),
    )


def error_of(error_class: str, text: str) -> TaskError:
    """Our name of a builtin has no module."""
    path = error_class if "." in error_class else f"builtins.{error_class}"
    return TaskError(exception_class_path=path, traceback=text)


def _attempts(runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [run for run in runs if run.get("outcome") not in _NO_ATTEMPT]


def _errors(runs: Sequence[Mapping[str, Any]]) -> list[TaskError]:
    """Of earlier attempts only one line is kept."""
    return [
        error_of(run["error_class"], str(run.get("error", "")))
        for run in runs
        if "error_class" in run
    ]
