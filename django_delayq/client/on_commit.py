"""What waits for the commit of a transaction: messages, in one batch, and what is to be done to
others before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db import connections, transaction

from ..outbox import postponed
from ..tasks.builder import Item
from .sender import store_committed

logger = logging.getLogger("delayq")

Place = tuple[str, bytes]
"""Topic and id."""


def add(database: str, items: list[Item]) -> None:
    """Send the items when the open transaction commits, unless the savepoint around this call is
    rolled back."""
    batch = _Batch.of(database)
    batch.hook(_Add(batch, items))


def add_change(database: str, place: Place, act: Callable[[], None], *, cancels: bool) -> None:
    """Do something to a message when the open transaction commits, before what it has enqueued is
    sent."""
    batch = _Batch.of(database)
    batch.hook(_Change(batch, place, act, cancels))


def find(topic: str, identity: bytes) -> tuple[str, Item] | None:
    """The item of this message that an open transaction will send as things stand, and the database
    of that.

    Of several, the one that counts at the commit: the first, unless a later one replaces it.
    """
    for batch in _open_batches():
        found = None
        for item in batch.standing().items.get((topic, identity), ()):
            found = item if found is None or item.message.mode == "replace" else found
        if found is not None:
            return batch.database, found
    return None


def is_cancelled(topic: str, identity: bytes) -> bool:
    """Whether an open transaction cancels, at its commit, what is live now."""
    return any((topic, identity) in batch.standing().cancelled for batch in _open_batches())


def replace(database: str, old: Item, new: Item | None) -> None:
    """Send another item in place of this one, or nothing."""
    batch = _Batch.of(database)
    batch.hook(_Replace(batch, old, new))


def give_way(items: Iterable[Item]) -> None:
    """Durable messages replace what the transaction would send at its commit: accepted before, they
    would then be the older ones in Redis."""
    for item in items:
        if item.message.mode == "replace":
            while place := find(*item.place):
                if place[1].template.durable:
                    break  # the rows decide
                replace(*place, None)


def _open_batches() -> Iterator[_Batch]:
    for connection in connections.all(initialized_only=True):
        newest = _newest_flush(connection.run_on_commit) if connection.in_atomic_block else None
        if newest is not None:
            yield newest.batch


def _newest_flush(hooks: list[Any]) -> _Flush | None:
    """It is the last of all hooks but for those of others."""
    return next((hook for _, hook, _ in reversed(hooks) if isinstance(hook, _Flush)), None)


@dataclass(slots=True)
class _Standing:
    """What the hooks that stand will do, by message. Read on from where it ended: a look must not
    cost more with each message. Django makes another list of hooks when it drops those of a
    savepoint: then it is read anew."""

    hooks: list[Any] = field(default_factory=list)
    read: int = 0
    items: dict[Place, list[Item]] = field(default_factory=dict)
    cancelled: set[Place] = field(default_factory=set)

    def read_on(self) -> None:
        for at in range(self.read, len(self.hooks)):
            hook = self.hooks[at][1]
            # In a TestCase hooks that were run stay in the list.
            if isinstance(hook, _Add | _Replace | _Change) and not hook.done:
                hook.stand(self)
        self.read = len(self.hooks)


@dataclass(slots=True, eq=False)
class _Batch:
    """What one transaction has asked for. Lives in the connection's list of commit hooks and
    nowhere else."""

    database: str
    confirmed: list[_Add | _Replace | _Change] = field(default_factory=list)
    newest: _Flush | None = None
    known: _Standing = field(default_factory=_Standing)

    @classmethod
    def of(cls, database: str) -> _Batch:
        """The batch of the open transaction, found through its hook, so that a rollback forgets
        it."""
        newest = _newest_flush(connections[database].run_on_commit)
        return newest.batch if newest else cls(database)

    def standing(self) -> _Standing:
        """What stands now: Django drops the hooks of savepoints that are rolled back."""
        hooks = connections[self.database].run_on_commit
        if self.known.hooks is not hooks:
            self.known = _Standing(hooks)
        self.known.read_on()
        return self.known

    def hook(self, step: _Add | _Replace | _Change) -> None:
        """Take the step at the commit, then send the batch.

        Two hooks: Django drops the first with its savepoint. The second stands behind it and
        outlives every savepoint (no savepoint ids); the newest of these does what the others have
        left.
        """
        transaction.on_commit(step, using=self.database)
        self.newest = _Flush(self)
        hooks: list[Any] = connections[self.database].run_on_commit
        hooks.append((set(), self.newest, False))

    def flush(self) -> None:
        """Do it all. Never raises: the transaction stands, and the hooks of others must not be
        dropped for us.

        What is to be cancelled or moved comes first. It is never a message of this batch: those are
        taken out of it, or moved in it, when that is asked for.
        """
        steps, self.confirmed, self.known = self.confirmed, [], _Standing()
        leaving = _Leaving()
        for step in steps:
            if isinstance(step, _Change):
                step.act_safely()
            else:
                step.apply(leaving)
        items = list(leaving.items.values())
        try:
            if postponed.pending:
                postponed.catch_up(item.place for item in items)
            store_committed(items)
        except Exception:
            logger.exception(
                "the commit stands, but not everything that it enqueued may have been sent"
            )


@dataclass(slots=True)
class _Leaving:
    """What is sent in the end. One that replaces another stands in its place: of two with one key
    the order counts."""

    items: dict[int, Item] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    """Of each item, by its identity in memory."""

    def put(self, place: int, item: Item) -> None:
        self.items[place] = item
        self.places[id(item)] = place


@dataclass(slots=True, eq=False)
class _Add:
    """Commit hook that adds items to the batch."""

    batch: _Batch
    items: list[Item]
    done: bool = False

    def __call__(self) -> None:
        self.done = True
        self.batch.confirmed.append(self)

    def apply(self, leaving: _Leaving) -> None:
        for item in self.items:
            leaving.put(id(item), item)

    def stand(self, known: _Standing) -> None:
        for item in self.items:
            known.items.setdefault(item.place, []).append(item)


@dataclass(slots=True, eq=False)
class _Replace:
    """Commit hook that takes an item out of the batch, or puts another in its place."""

    batch: _Batch
    old: Item
    new: Item | None
    done: bool = False

    def __call__(self) -> None:
        self.done = True
        self.batch.confirmed.append(self)

    def apply(self, leaving: _Leaving) -> None:
        place = leaving.places.pop(id(self.old), None)
        if place is not None and self.new is None:
            del leaving.items[place]
        elif place is not None and self.new is not None:
            leaving.put(place, self.new)

    def stand(self, known: _Standing) -> None:
        changed = [
            self.new if item is self.old else item for item in known.items.get(self.old.place, ())
        ]
        known.items[self.old.place] = [item for item in changed if item is not None]


@dataclass(slots=True, eq=False)
class _Change:
    """Commit hook that does something to a message that is not of this batch."""

    batch: _Batch
    place: Place
    act: Callable[[], None]
    cancels: bool
    done: bool = False

    def __call__(self) -> None:
        self.done = True
        self.batch.confirmed.append(self)

    def act_safely(self) -> None:
        try:
            self.act()
        except Exception:
            logger.exception(
                "the commit stands, but message %s could not be changed", self.place[1].hex()
            )

    def stand(self, known: _Standing) -> None:
        if self.cancels:
            known.cancelled.add(self.place)


@dataclass(slots=True, eq=False)
class _Flush:
    """Commit hook that sends the batch, if no later one will."""

    batch: _Batch

    def __call__(self) -> None:
        if self.batch.newest is self:
            self.batch.flush()
