"""What waits for the commit of a transaction: its messages, all of one transaction in one batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.db import connections, transaction

from .outgoing import Item
from .sending import store_items


def put_off(database: str, items: list[Item]) -> None:
    """Send the items when the open transaction commits, unless the savepoint around this call is rolled back."""
    batch = _Batch.of(database)
    batch.hook(_Add(batch, items))


def find(topic: str, identity: bytes) -> tuple[str, Item] | None:
    """The item of this message that an open transaction will send as things stand, and the database of that.

    Of several, the one that counts at the commit: the first, unless a later one replaces it.
    """
    for connection in connections.all(initialized_only=True):
        found = None
        for item in _standing(connection.alias) if connection.in_atomic_block else ():
            if item.message[0] == identity and item.template.topic == topic:
                found = item if found is None or item.message[1] == "replace" else found
        if found is not None:
            return connection.alias, found
    return None


def replace(database: str, old: Item, new: Item | None) -> None:
    """Send another item in place of this one, or nothing."""
    batch = _Batch.of(database)
    batch.hook(_Replace(batch, old, new))


def _standing(database: str) -> list[Item]:
    items: list[Item] = []
    for hook in _hooks(database):
        if isinstance(hook, _Add):
            items += hook.items
        elif isinstance(hook, _Replace):
            items = hook.applied(items)
    return items


def _hooks(database: str) -> list[Any]:
    """The commit hooks that stand: Django drops those of savepoints that are rolled back."""
    hooks: list[Any] = connections[database].run_on_commit
    return [hook for _, hook, _ in hooks]


@dataclass(slots=True, eq=False)
class _Batch:
    """What one transaction has enqueued. Lives in the connection's list of commit hooks and nowhere else."""

    database: str
    confirmed: list[Item] = field(default_factory=list)
    newest: _Flush | None = None

    @classmethod
    def of(cls, database: str) -> _Batch:
        """The batch of the open transaction, found through its hook, so that a rollback forgets it."""
        flushes = [hook for hook in _hooks(database) if isinstance(hook, _Flush)]
        return flushes[-1].batch if flushes else cls(database)

    def hook(self, change: _Add | _Replace) -> None:
        """Change the batch at the commit, then send it.

        Two hooks: Django drops the first with its savepoint. The second stands behind it and outlives every savepoint
        (no savepoint ids); the newest of these sends what the others have left.
        """
        transaction.on_commit(change, using=self.database)
        self.newest = _Flush(self)
        hooks: list[Any] = connections[self.database].run_on_commit
        hooks.append((set(), self.newest, False))


@dataclass(slots=True, eq=False)
class _Add:
    """Commit hook that adds items to the batch."""

    batch: _Batch
    items: list[Item]

    def __call__(self) -> None:
        self.batch.confirmed += self.items


@dataclass(slots=True, eq=False)
class _Replace:
    """Commit hook that takes an item out of the batch, or puts another in its place."""

    batch: _Batch
    old: Item
    new: Item | None

    def __call__(self) -> None:
        self.batch.confirmed = self.applied(self.batch.confirmed)

    def applied(self, items: list[Item]) -> list[Item]:
        """The items with the change made."""
        changed = [self.new if item is self.old else item for item in items]
        return [item for item in changed if item is not None]


@dataclass(slots=True, eq=False)
class _Flush:
    """Commit hook that sends the batch, if no later one will."""

    batch: _Batch

    def __call__(self) -> None:
        if self.batch.newest is self:
            items, self.batch.confirmed = self.batch.confirmed, []
            store_items(items)
