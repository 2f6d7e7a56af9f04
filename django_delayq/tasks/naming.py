"""The names behind the task codes of records, and what a partition holds under these names."""

from __future__ import annotations

from ..core.message import Found, Message, task_code_of
from ..core.present import readable
from ..store import get_store
from ..store.keys import Partition
from . import registry


def task_name(partition: Partition, code: bytes) -> str:
    """The name of a task: from the registry, else from the partition, else `code:` and the code's
    digits."""
    task = registry.by_code.get(code)
    return task.name if task else get_store().queries.task_name(partition, code)


kept_names: dict[tuple[Partition, bytes], str] = {}


def kept_task_name(partition: Partition, code: bytes) -> str:
    """As task_name(), but it asks Redis once for each name. While nobody knows the name it asks
    again each time."""
    name = kept_names.get((partition, code))
    if name is None:
        name = task_name(partition, code)
        if not name.startswith("code:"):
            kept_names[partition, code] = name
    return name


def shown(partition: Partition, found: Found) -> Message:
    """The message of a partition as people see it."""
    code = task_code_of(found.record)
    name = kept_task_name(partition, code) if len(code) == 4 else "undecodable"
    return readable(partition.topic, name, found)
