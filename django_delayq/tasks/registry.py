"""Every task that code declares, and the topics that tasks and settings name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from ..core.conf import DEFAULT_TOPIC, get_settings
from ..core.exceptions import DuplicateTask, UnknownTopic
from .declaration import fingerprint, place_of

if TYPE_CHECKING:
    from .recurrence import Recurrence
    from .task import Task

#: Every declared task by name and by code. Messages are resolved here and nowhere else.
by_name: dict[str, Task[Any, Any]] = {}
by_code: dict[bytes, Task[Any, Any]] = {}


#: Topics that exist without a task of ours: the queues of TASKS.
topics: set[str] = set()
#: Each takes the name of a task that nobody has declared, and declares it if it can.
finders: list[Callable[[str], Task[Any, Any] | None]] = []


def find(name: str) -> Task[Any, Any] | None:
    """A task that another library declares once somebody asks for it."""
    return next((task for finder in finders if (task := finder(name)) is not None), None)


def register(task: Task[Any, Any]) -> None:
    """Make the task known. Raises DuplicateTask when its name, or its code, belongs to another
    function."""
    new = task.definition
    known = by_code.get(new.code)
    if known is not None and fingerprint(known.definition.func) != fingerprint(new.func):
        raise DuplicateTask(
            f"Two tasks are named {new.name!r} (or share its code): "
            f"{place_of(known.definition.func)} and {place_of(new.func)}. Give one of them another "
            "name: @delayed_task(name=...)."
        )
    by_name[new.name] = by_code[new.code] = task


def check_topic(topic: str) -> str:
    """The topic itself. Raises UnknownTopic that names those that exist."""
    if not is_declared(topic):
        known = ", ".join(sorted(known_topics()))
        raise UnknownTopic(f"Topic {topic!r} is not declared. Known topics: {known}.")
    return topic


def is_declared(topic: str) -> bool:
    """Whether a task or the settings declare it."""
    return get_settings().is_for_api(topic) or is_known_topic(topic)


def is_known_topic(topic: str) -> bool:
    """Whether it is one of known_topics(), without making all of them: there may be thousands."""
    return any(topic in names for names in _declared())


def known_topics() -> set[str]:
    """Every topic that a task or the settings declare."""
    return set().union(*_declared())


def _declared() -> Sequence[Collection[str]]:
    of_tasks = {task.options.topic for task in by_name.values()}
    return [DEFAULT_TOPIC], topics, get_settings().topics, of_tasks


def served_topics() -> set[str]:
    """The declared topics that are for workers."""
    return {topic for topic in known_topics() if not get_settings().is_for_api(topic)}


def recurring_tasks() -> dict[str, tuple[Task[Any, Any], Recurrence]]:
    """The tasks that run again and again, by name, and when they do."""
    found = {name: (task, task.definition.recurrence) for name, task in by_name.items()}
    return {name: (task, recurrence) for name, (task, recurrence) in found.items() if recurrence}
