"""Keeps messages and changes until a transaction commits. Then it makes the changes, and sends the
messages in batches.

Each call adds a step to Django's hooks of the commit. Django drops the steps of a savepoint that is
rolled back; the steps that are left make the plan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from django.db import connections, transaction

from ..outbox import postponed
from ..tasks.builder import Item
from .sender import store_committed

logger = logging.getLogger("delayq")

Address = tuple[str, bytes]
"""Topic and id."""


def add(database: str, items: list[Item]) -> None:
    """Send the items when the open transaction commits, unless the savepoint around this call is
    rolled back."""
    batch = _TransactionChanges.of(database)
    batch.hook(_Add(batch, items))


def add_change(database: str, address: Address, act: Callable[[], None], *, cancels: bool) -> None:
    """Change a message when the open transaction commits, before the messages that it has enqueued
    are sent."""
    batch = _TransactionChanges.of(database)
    batch.hook(_Change(batch, address, act, cancels))


def find(topic: str, identity: bytes) -> tuple[str, Item] | None:
    """The item of this message that an open transaction will send, and the database of that
    transaction.

    Of several items it is the one that counts at the commit: the first, unless a later one replaces
    it.
    """
    for batch in _open_batches():
        found = None
        for item in batch.planned().at((topic, identity)):
            found = item if found is None or item.message.replaces else found
        if found is not None:
            return batch.database, found
    return None


def cancels(topic: str, identity: bytes) -> bool:
    """Whether an open transaction cancels the live message at its commit."""
    return any((topic, identity) in batch.planned().cancelled for batch in _open_batches())


def replace(database: str, old: Item, new: Item | None) -> None:
    """Send another item in place of this one, or nothing."""
    batch = _TransactionChanges.of(database)
    batch.hook(_Replace(batch, old, new))


def give_way(items: Iterable[Item]) -> None:
    """Durable messages replace the messages with the same keys that the transaction would send at
    its commit. Those would be sent later, and so replace the newer durable ones in Redis."""
    for item in items:
        if item.message.replaces:
            while pending := find(*item.address):
                if pending[1].template.durable:
                    break  # the rows decide
                replace(*pending, None)


def planned() -> Iterator[tuple[Sequence[Item], Set[Address]]]:
    """For each open transaction: the items that it will send, and the live messages that it will
    cancel."""
    for batch in _open_batches():
        plan = batch.planned()
        yield list(plan.items.values()), plan.cancelled


def act_early(database: str) -> None:
    """Do now what the commit of the open transaction would do. For tests, whose transaction never
    commits."""
    steps = [step for step in _steps(database) if not step.done]
    for step in steps:
        step()
    if steps:
        steps[0].batch.flush()


def forget_early(database: str) -> None:
    """Let act_early() do the same again: what was enqueued for all tests of a class is sent in each
    of them."""
    for step in _steps(database):
        step.done, step.batch.hooks = False, []


def _steps(database: str) -> list[_PlanStep]:
    hooks: list[Any] = connections[database].run_on_commit
    return [hook for _, hook, _ in hooks if isinstance(hook, _PlanStep)]


def _open_batches() -> Iterator[_TransactionChanges]:
    for connection in connections.all(initialized_only=True):
        newest = _newest_flush(connection.run_on_commit) if connection.in_atomic_block else None
        if newest is not None:
            yield newest.batch


def _newest_flush(hooks: list[Any]) -> _Flush | None:
    """The last hook of ours: hooks of others may follow it."""
    return next((hook for _, hook, _ in reversed(hooks) if isinstance(hook, _Flush)), None)


@dataclass(slots=True)
class _CommitPlan:
    """The result of the steps. An item that replaces another takes its slot, because the order of
    two items with one key counts."""

    items: dict[int, Item] = field(default_factory=dict)
    """By slot, in the order of sending."""
    slots: dict[int, int] = field(default_factory=dict)
    """The slot of each item, by the id() of the item."""
    by_address: dict[Address, list[int]] = field(default_factory=dict)
    """The slots of each message."""
    cancelled: set[Address] = field(default_factory=set)
    """Messages that are live now and cancelled at the commit."""

    def put(self, slot: int, item: Item) -> None:
        self.items[slot] = item
        self.slots[id(item)] = slot

    def at(self, address: Address) -> list[Item]:
        return [self.items[s] for s in self.by_address.get(address, ()) if s in self.items]


@dataclass(slots=True, eq=False)
class _TransactionChanges:
    """The messages and changes of one transaction. Only the connection's list of commit hooks
    refers to it."""

    database: str
    confirmed: list[_PlanStep] = field(default_factory=list)
    newest: _Flush | None = None
    plan: _CommitPlan = field(default_factory=_CommitPlan)
    hooks: list[Any] = field(default_factory=list)
    """The list of hooks that the plan was made from."""
    read: int = 0
    """How many of these hooks the plan has read."""

    @classmethod
    def of(cls, database: str) -> _TransactionChanges:
        """The batch of the open transaction, found through its hook, so that a rollback forgets
        it."""
        newest = _newest_flush(connections[database].run_on_commit)
        return newest.batch if newest else cls(database)

    def planned(self) -> _CommitPlan:
        """The plan as it stands. It reads only new hooks, so that a call does not cost more with
        each message; when Django has dropped some, it makes a new list, and all is read anew."""
        hooks = connections[self.database].run_on_commit
        if self.hooks is not hooks:
            self.plan, self.hooks, self.read = _CommitPlan(), hooks, 0
        for at in range(self.read, len(hooks)):
            step = hooks[at][1]
            if (
                isinstance(step, _PlanStep) and not step.done
            ):  # a TestCase keeps those that were run
                step.apply(self.plan)
        self.read = len(hooks)
        return self.plan

    def hook(self, step: _PlanStep) -> None:
        """Take the step at the commit, then send the batch.

        Adds two hooks. Django drops the first with its savepoint. The second comes after it and
        outlives every savepoint, because it has no savepoint ids. The newest of these second hooks
        sends the batch.
        """
        transaction.on_commit(step, using=self.database)
        self.newest = _Flush(self)
        hooks: list[Any] = connections[self.database].run_on_commit
        hooks.append((set(), self.newest, False))

    def flush(self) -> None:
        """Make the changes and send the items. Never raises: the transaction stands, and after an
        error Django would drop the hooks of others.

        Changes come first. They never change a message of this batch: cancel() takes such a message
        out of the batch at once, and reschedule() moves it there.
        """
        steps, self.confirmed, self.hooks = self.confirmed, [], []
        plan = _CommitPlan()
        for step in steps:
            if isinstance(step, _Change):
                try:
                    step.act()
                except Exception:
                    message_id = step.address[1].hex()
                    logger.exception(
                        "the commit stands, but message %s could not be changed", message_id
                    )
            step.apply(plan)
        items = list(plan.items.values())
        try:
            if postponed.pending:
                postponed.catch_up(item.address for item in items)
            store_committed(items)
        except Exception:
            logger.exception(
                "the commit stands, but not everything that it enqueued may have been sent"
            )


@dataclass(slots=True, eq=False)
class _PlanStep:
    """Commit hook that changes the plan."""

    batch: _TransactionChanges
    done: bool = field(default=False, init=False)

    def __call__(self) -> None:
        if not self.done:  # a TestCase calls it once more
            self.done = True
            self.batch.confirmed.append(self)

    def apply(self, plan: _CommitPlan) -> None:
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class _Add(_PlanStep):
    """Adds items."""

    items: list[Item]

    def apply(self, plan: _CommitPlan) -> None:
        for item in self.items:
            plan.put(id(item), item)
            plan.by_address.setdefault(item.address, []).append(id(item))


@dataclass(slots=True, eq=False)
class _Replace(_PlanStep):
    """Takes an item out, or puts another in its slot."""

    old: Item
    new: Item | None

    def apply(self, plan: _CommitPlan) -> None:
        slot = plan.slots.pop(id(self.old), None)
        if slot is not None and self.new is None:
            del plan.items[slot]
        elif slot is not None and self.new is not None:
            plan.put(slot, self.new)


@dataclass(slots=True, eq=False)
class _Change(_PlanStep):
    """Changes a message that is not of this batch."""

    address: Address
    act: Callable[[], None]
    cancels: bool

    def apply(self, plan: _CommitPlan) -> None:
        if self.cancels:
            plan.cancelled.add(self.address)


@dataclass(slots=True, eq=False)
class _Flush:
    """Commit hook that sends the batch, if no later one will."""

    batch: _TransactionChanges

    def __call__(self) -> None:
        if self.batch.newest is self:
            self.batch.flush()
