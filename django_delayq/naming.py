"""The names behind the task codes of records."""

from __future__ import annotations

from . import tasks
from .store import get_store
from .store.keys import Partition


def task_name(partition: Partition, code: bytes) -> str:
    """The name of a task: from the registry, else from the partition, else `code:` and the code's digits."""
    task = tasks.by_code.get(code)
    return task.name if task else get_store().task_name(partition, code)


kept_names: dict[tuple[Partition, bytes], str] = {}


def kept_task_name(partition: Partition, code: bytes) -> str:
    """task_name() that asks Redis once, unless nobody knows the name yet: for those that look up many."""
    name = kept_names.get((partition, code))
    if name is None:
        name = task_name(partition, code)
        if not name.startswith("code:"):
            kept_names[partition, code] = name
    return name
