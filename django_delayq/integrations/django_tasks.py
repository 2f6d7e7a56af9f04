"""The backend of Django's tasks: `django.tasks` (Django 6), or the backport `django_tasks`.

Each task of Django is a task of ours, named by its module path, that keeps its result: workers,
pages and commands know nothing of Django's tasks. Only in this package the words are Django's: a
queue_name is a topic, run_after is due_at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from django.conf import settings
from django.core import checks
from django.utils import timezone
from django.utils.module_loading import import_string

from ..archive.endings import find_end
from ..client import on_commit
from ..client.decorator import DelayedTask, delayed_task
from ..core.conf import NAME
from ..core.exceptions import ConfigurationError, InvalidMessage, UndecodableMessage
from ..core.message import Found, Priority, State, parse_id, task_code_of, with_stamp
from ..core.times import aware, stored_ms
from ..models import OutboxMessage
from ..outbox import lookup
from ..store import get_store
from ..tasks import registry
from ..tasks.naming import task_name
from ..tasks.options import NOW, Options, TaskOptions
from ..tasks.task import Task as OurTask
from .task_results import (
    BACKEND_HEADER,
    DEFAULT_ALIAS,
    PRIORITY_HEADER,
    READY,
    Facts,
    declared_at,
    ended_facts,
    live_facts,
)
from .task_runs import runner_of
from .tasks_api import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    normalize_json,
    task_backends,
    task_enqueued,
)

if TYPE_CHECKING:
    from ..tasks.options import CallOptions

#: What a worker reads from the task: from @task(...), else from OPTIONS of the backend named there.
OF_TASK = ("max_runtime", "backoff", "retry_for", "exactly_once")
#: What travels with a message: from using(...), else from @task(...), else from OPTIONS.
OF_MESSAGE = (
    "delay", "ttr", "max_attempts", "expires", "durable", "on_redis_error", "on_duplicate",
    "window", "key", "headers", "database", "after_commit",
)  # fmt: skip
#: What OPTIONS may have: what means something for every task.
IN_OPTIONS = (*OF_TASK, *(name for name in OF_MESSAGE if name not in ("key", "headers")))
_DJANGOS = ("priority", "queue_name", "run_after", "backend")
#: Django's tasks know no retries, so a task has to ask for them.
MAX_ATTEMPTS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayqTask(Task):  # type: ignore[type-arg]
    """A task of Django with our options, which are those of @delayed_task and using(). None: what
    OPTIONS of the backend says."""

    delay: timedelta | float | None = None
    """How long to wait after the enqueue, instead of run_after."""
    key: str | None = None
    """Business identity inside the queue, 1 to 256 characters. At most one live message has it."""
    ttr: timedelta | float | None = None
    """Time until a dead worker is noticed."""
    max_attempts: int | None = None
    """Failed attempts after which the task has FAILED. Default 1."""
    max_runtime: timedelta | float | None = None
    """How long a run may take."""
    backoff: Any = None
    """Wait between attempts: a function of the number of failures, a list of waits, or one wait."""
    retry_for: Any = None
    """Exceptions that are worth another attempt. Default: every Exception."""
    expires: timedelta | float | datetime | None = None
    """The task is not started later than this."""
    durable: bool | None = None
    """Write the message into the database with the caller's transaction."""
    exactly_once: bool | None = None
    """Run in a transaction that also records the run."""
    on_duplicate: str | None = None
    """What an enqueue does when a message with this key is live."""
    window: timedelta | float | None = None
    """For so long after an enqueue the key takes no other message, also after the end."""
    on_redis_error: str | None = None
    """What an enqueue does while Redis is away."""
    headers: Mapping[str, str] | None = None
    """Small strings for people and tracing."""
    database: str | None = None
    """Alias of the database whose transaction the message waits for."""
    after_commit: bool | None = None
    """False sends at once, whatever the transaction does. Default: `AFTER_COMMIT`."""

    def using(self, **changes: Any) -> DelayqTask:
        """A copy with other options: Django's, where run_after may be a timedelta, and ours of a
        message. None changes nothing. Raises InvalidTask."""
        if wrong := sorted(changes.keys() - {*_DJANGOS, *OF_MESSAGE}):
            known = "is of the task: give it to @task" if wrong[0] in OF_TASK else "is no option"
            raise InvalidTask(f"using(): {wrong[0]} {known}.")
        given = {name: value for name, value in changes.items() if value is not None}
        if isinstance(given.get("run_after"), timedelta):
            given["delay"] = given.pop("run_after")
        if "run_after" in given:
            given["delay"] = None
        elif "delay" in given:
            given["run_after"] = None
        return replace(self, **given)

    def __reduce__(self) -> Any:
        """By the path of its function, which Python would find decorated."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        del named["func"]
        return _restored, (self.module_path, named)


def _restored(path: str, named: Mapping[str, Any]) -> DelayqTask:
    """The task that a pickle names."""
    return DelayqTask(func=import_string(path).func, **named)


class DelayqBackend(BaseTaskBackend):
    """Lets Django's tasks run as messages of this queue. `QUEUES` are topics; `OPTIONS` are
    defaults for all tasks of the backend (IN_OPTIONS)."""

    task_class = DelayqTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        registry.topics.update(name for name in self.queues if NAME.match(str(name)))
        if find_task not in registry.finders:
            registry.finders.append(find_task)

    def validate_task(self, task: Task[..., Any]) -> None:
        """Refuse what cannot run. Raises InvalidTask, also for our own options."""
        super().validate_task(task)
        try:
            self._as_ours(task)
        except (InvalidMessage, ConfigurationError) as error:
            raise InvalidTask(str(error)) from error

    def enqueue(  # type: ignore[override]
        self, task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult[..., Any]:
        """Store a message, or let it wait for the commit of the open transaction.

        Raises InvalidTask, TypeError for arguments that JSON does not have, and what
        DelayedTask.enqueue() raises.
        """
        self.validate_task(task)
        given = cast("list[Any]", normalize_json(list(args)))
        named = cast("dict[str, Any]", normalize_json(dict(kwargs)))
        ours = self._as_ours(task)
        registry.topics.add(task.queue_name)  # QUEUES may take any
        handle = ours.enqueue(*given, **named)
        # By Redis' clock, as far as its answer tells that.
        is_due_at_once = handle.due_ms is not None and ours.options.when == NOW
        facts = Facts(
            id=handle.id,
            path=task.module_path,
            topic=task.queue_name,
            status=READY,
            args=given,
            kwargs=named,
            headers={},
            enqueued_at=stored_ms(handle.due_ms or 0) if is_due_at_once else timezone.now(),
        )
        result = facts.result(self.alias, task)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[..., Any]:
        """The result as it stands, wherever the message is. Raises TaskResultDoesNotExist, also
        when its row was pruned or its queue is none of this backend."""
        try:
            identity = parse_id(result_id)
        except InvalidMessage:
            raise TaskResultDoesNotExist(result_id) from None
        topics = sorted(self.queues or registry.known_topics())
        ends = (find_end(topic, identity) for topic in topics)
        try:
            facts = _live(topics, identity) or next(map(ended_facts, filter(None, ends)), None)
        except (UndecodableMessage, ValueError):
            facts = None
        if facts is None:
            raise TaskResultDoesNotExist(result_id)
        return facts.result(facts.alias(self.alias))

    def check(self, **kwargs: Any) -> list[Any]:
        """Whether QUEUES and OPTIONS can be used."""
        where, found = f"TASKS[{self.alias!r}]", []
        for name in sorted(map(str, self.queues)):
            if not NAME.match(name):
                words = f'{where}["QUEUES"] has {name!r}, which cannot name a topic.'
                hint = "Use A-Z a-z 0-9 _ . - and at most 64 characters."
                found.append(_wrong(words, hint))
        if unknown := sorted(self.options.keys() - {*IN_OPTIONS}):
            words = f'{where}["OPTIONS"] has no option {unknown[0]!r}.'
            hint = f"Its options are: {', '.join(sorted(IN_OPTIONS))}."
            return [*found, _wrong(words, hint)]
        try:
            of_task = {n: v for n, v in self.options.items() if n in OF_TASK}
            of_message = {n: v for n, v in self.options.items() if n in OF_MESSAGE}
            Options.declared(cast("TaskOptions", of_task)).changed(cast("CallOptions", of_message))
        except (InvalidMessage, ConfigurationError) as error:
            found.append(_wrong(f'{where}["OPTIONS"]: {error}'))
        return found

    def _as_ours(self, task: Task[..., Any]) -> DelayedTask[..., Any]:
        """Our task with the options of this one. Raises InvalidMessage and ConfigurationError."""
        declared = self.declared(task)
        changes: dict[str, Any] = {"max_attempts": MAX_ATTEMPTS}
        changes |= {name: self.options[name] for name in OF_MESSAGE if name in self.options}
        changes |= {n: v for n in OF_MESSAGE if (v := getattr(task, n, None)) is not None}
        changes |= {"topic": task.queue_name, "priority": priority_of(task.priority)}
        if task.run_after is not None:
            changes.pop("delay", None)
            changes["due_at"] = aware(task.run_after)
        headers = dict(changes.pop("headers", {}))
        if task.priority:
            headers[PRIORITY_HEADER] = str(int(task.priority))
        if self.alias != DEFAULT_ALIAS:
            headers[BACKEND_HEADER] = self.alias
        return declared.using(headers=headers, **changes)

    def declared(self, task: Task[..., Any]) -> DelayedTask[..., Any]:
        """Our task that stands for the function; declared when it is seen first."""
        known = registry.by_name.get(task.module_path)
        if known is not None and _stands_for(known, task):
            return cast("DelayedTask[..., Any]", known)
        options = {name: self.options[name] for name in OF_TASK if name in self.options}
        options |= _own_options(task)
        options |= {"topic": task.queue_name, "max_attempts": MAX_ATTEMPTS, "result": True}
        decorate = delayed_task(name=task.module_path, **cast("TaskOptions", options))
        return decorate(runner_of(task))


def _wrong(words: str, hint: str | None = None) -> checks.Error:
    return checks.Error(words, hint=hint, id="delayq.E008")


def make_known() -> None:
    """Let a worker know the queues of our backends, and find their tasks. The app calls it."""
    for alias, params in settings.TASKS.items():
        if "django_delayq" in str(params.get("BACKEND")):
            task_backends[alias]


def find_task(name: str) -> OurTask[..., Any] | None:
    """Our task for the function at this path, imported if need be. Only a task of Django is
    taken."""
    task = declared_at(name)
    if task is not None:
        # Its own backend first. using(backend=...) may have sent it to another one of ours.
        for alias in (task.backend, *settings.TASKS):
            if isinstance(backend := task_backends[alias], DelayqBackend):
                return backend.declared(task)
    return None


def priority_of(priority: int) -> Priority:
    """Django's -100 to 100 in our three lanes: above 0 high, below 0 low."""
    return Priority.HIGH if priority > 0 else Priority.LOW if priority < 0 else Priority.NORMAL


def _own_options(task: Task[..., Any]) -> dict[str, Any]:
    return {name: v for name in OF_TASK if (v := getattr(task, name, None)) is not None}


def _stands_for(ours: OurTask[..., Any], task: Task[..., Any]) -> bool:
    """Whether it runs this function in this way. Copies by using() differ in other things only."""
    mine = getattr(ours.definition.func, "task", None)
    return (
        isinstance(mine, Task)
        and mine.func is task.func
        and mine.takes_context == task.takes_context
        and (not isinstance(task, DelayqTask) or _own_options(mine) == _own_options(task))
    )


def _live(topics: Sequence[str], identity: bytes) -> Facts | None:
    """Of a message in Redis, in the open transaction, or in the outbox."""
    for partition, found in get_store().find_many((topic, identity) for topic in topics):
        return live_facts(task_name(partition, task_code_of(found.record)), partition.topic, found)
    for topic in topics:
        if pending := on_commit.find(topic, identity):
            _, (_, message, template) = pending
            now_us = get_store().now_us()
            due_ms = message.when.from_ms(-(-now_us // 1000))
            record = with_stamp(now_us, 0, message.record)
            return live_facts(
                template.name, topic, Found(identity, State("delayed"), due_ms, record, None)
            )
    rows = OutboxMessage.objects.filter(message_id=UUID(bytes=identity), topic__in=topics)
    for topic in rows.values_list("topic", flat=True):
        if kept := lookup.get(topic, identity):
            return live_facts(kept[0], topic, kept[1])
    return None
