"""The names behind the task codes of records."""

from __future__ import annotations

from functools import lru_cache

from . import tasks
from .store import get_store
from .store.keys import Partition


def task_name(partition: Partition, code: bytes) -> str:
    """The name of a task: from the registry, else from the partition, else `code:` and the code's digits."""
    task = tasks.by_code.get(code)
    return task.name if task else get_store().task_name(partition, code)


@lru_cache(maxsize=1024)
def kept_task_name(partition: Partition, code: bytes) -> str:
    """task_name() that asks Redis once: for those that look up many."""
    return task_name(partition, code)
