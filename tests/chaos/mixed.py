"""Everything at once: transactions that enqueue, cancel, move and replace, and commit or roll back
at random, while workers are killed, one task hangs and Redis goes away twice. Nothing is lost,
nothing runs after its cancel."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.acceptance.harness import stop_gracefully
from tests.chaos.world import Options, World

COUNT = 60
"""Transactions per second."""
SECONDS = 300.0
RECONCILE_AFTER = 5.0
PRODUCERS = 3
#: Seconds between two kills of a worker, and for how long Redis is away each time.
KILL_EVERY = 10.0
AWAY = 6.0
#: The delay of a new message, and of one that is moved (seconds).
DELAYS = (2.0, 8.0)
#: What is due sooner than this after a commit may have been claimed before it: such an order says
#: nothing (seconds).
MARGIN = 0.5
#: A call of that time may have been stored by a Redis that was about to leave, and have run before
#: the outbox sent it once more: docs/explanation/guarantees.md allows it to run twice (seconds).
UNKNOWN = 1.0
KINDS = ("plain", "durable", "once")


@dataclass
class Order:
    """One key, and what its transactions have come to."""

    number: int
    kind: str
    version: int = 0
    """Of the arguments that count; 0: it waits for nothing."""
    due: float = 0.0
    lives: int = 0
    """How many enqueues of its key have been committed."""
    kept: int = 0
    """How often another one was offered and not wanted."""
    cancelled_at: float = 0.0
    """When the cancel that counts was committed."""
    has_stood: bool = False
    """Whether a message of it was live after some transaction."""
    newest: int = 0
    """The newest version ever used, also by what was rolled back."""
    is_certain: bool = True
    """Whether everything that was done to it came well before its due time."""
    sent: list[float] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    """What its transactions did, and when: for a person who reads of a broken promise."""

    def note(self, what: str) -> None:
        """Add a line to its story."""
        self.story.append(f"{time.time():.3f} {what}")

    @property
    def key(self) -> str:
        """Its business key."""
        return f"order:{self.number}"


class RolledBack(Exception):
    """What makes a transaction or a savepoint roll back."""


def main(options: Options) -> int:
    """The exit code."""
    with World(options) as world:
        fleet = [world.worker("--concurrency", "4") for _ in range(2)]
        from tests.chaos.tasks import hang

        hanging = hang.enqueue()
        numbers, stop = itertools.count(1), threading.Event()
        producers = [_Producer(options, seed, numbers, stop) for seed in range(PRODUCERS)]
        for producer in producers:
            producer.start()
        outages = _suffer(world, fleet)
        stop.set()
        for producer in producers:
            producer.join()
        orders = [order for producer in producers for order in producer.orders]
        settled = world.wait(world.settled, 120, 0.25)
        world.promise(
            settled, "something is still on its way two minutes after the last transaction"
        )
        time.sleep(3)  # for what should not come
        for producer in producers:
            world.promise(not producer.errors, f"a transaction has failed: {producer.errors[:3]}")
        return _check(world, orders, hanging.id, outages)


class _Producer(threading.Thread):
    """Transactions one after the other, each about one order of its own."""

    def __init__(self, options: Options, seed: int, numbers: Any, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.orders: list[Order] = []
        self.errors: list[str] = []
        self._pause = PRODUCERS / options.count
        self._dice = random.Random(f"{options.seed} {seed}")
        self._numbers = numbers
        self._end = stop
        self._later: list[tuple[float, int, Order]] = []
        """Orders that get another transaction, and when."""

    def run(self) -> None:
        from django.db import connection

        while not self._end.wait(self._pause * self._dice.uniform(0.5, 1.5)):
            order = self._next()
            try:
                self._transaction(order)
            except Exception as error:  # what nobody expects: the run is broken
                order.is_certain = False
                self.errors.append(f"{type(error).__name__}: {error}")
        connection.close()

    def _next(self) -> Order:
        if self._later and self._later[0][0] <= time.time():
            return heapq.heappop(self._later)[2]
        order = Order(next(self._numbers), self._dice.choice(KINDS))
        self.orders.append(order)
        return order

    def _transaction(self, order: Order) -> None:
        """One to three steps, of which some stand in savepoints that are rolled back; or all of it
        is rolled back."""
        from django.db import transaction

        before, sent = (order.version, order.due, order.lives, order.cancelled_at), len(order.sent)
        begun = time.time()
        try:
            with transaction.atomic():
                for _ in range(self._dice.choice((1, 1, 2, 3))):
                    self._step(order, begun)
                if self._dice.random() < 0.2:
                    raise RolledBack
            order.note("committed")
        except RolledBack:
            order.note("rolled back")
            order.version, order.due, order.lives, order.cancelled_at = before
            del order.sent[sent:]
        now = time.time()
        if order.cancelled_at == begun:
            order.cancelled_at = now
        order.sent = [now if at == begun else at for at in order.sent]
        order.has_stood = order.has_stood or order.version > 0
        if before[0] and before[1] - now < MARGIN:
            order.is_certain = False
        if order.version and order.is_certain and order.lives < 4:
            again = now + self._dice.uniform(0, max(0.0, order.due - now - 1.0))
            heapq.heappush(self._later, (again, order.number, order))

    def _step(self, order: Order, begun: float) -> None:
        from django.db import transaction

        steps: tuple[Callable[[Order, float], None], ...] = (
            self._cancel,
            self._move,
            self._replace,
            self._keep,
        )
        step = self._dice.choice(steps) if order.version else self._enqueue
        before = (order.version, order.due, order.lives, order.cancelled_at)
        sent = len(order.sent)
        try:
            with transaction.atomic():
                step(order, begun)
                if self._dice.random() < 0.15:
                    raise RolledBack
        except RolledBack:
            order.note("rolled back to the savepoint")
            order.version, order.due, order.lives, order.cancelled_at = before
            del order.sent[sent:]

    def _enqueue(self, order: Order, begun: float, mode: str = "raise") -> None:
        delay = self._dice.uniform(*DELAYS)
        order.newest += 1
        at = time.time()
        _task(order).using(key=order.key, delay=delay, on_duplicate=mode).enqueue(
            order.number, order.newest
        )
        order.version, order.due = order.newest, at + delay
        order.lives += 1
        order.sent.append(begun)
        order.note(f"{mode} {order.newest}, due in {delay:.3f} s")

    def _replace(self, order: Order, begun: float) -> None:
        self._enqueue(order, begun, "replace")

    def _keep(self, order: Order, begun: float) -> None:
        _task(order).using(key=order.key, delay=1, on_duplicate="keep").enqueue(order.number, -1)
        order.kept += 1
        order.note("keep, due in 1 s")

    def _move(self, order: Order, begun: float) -> None:
        delay, at = self._dice.uniform(*DELAYS), time.time()
        _task(order).reschedule(key=order.key, delay=delay, missing_ok=True)
        order.due = at + delay
        order.note(f"move, due in {delay:.3f} s")

    def _cancel(self, order: Order, begun: float) -> None:
        _task(order).cancel(key=order.key, missing_ok=True)
        order.version, order.cancelled_at = 0, begun
        order.note("cancel")


def _task(order: Order) -> Any:
    from tests.chaos import tasks

    return {
        "plain": tasks.run_order,
        "durable": tasks.run_order.using(durable=True),
        "once": tasks.run_order_once,
    }[order.kind]


def _suffer(world: World, fleet: list[Any]) -> list[float]:
    """Kill a worker now and then, and take Redis away twice. Returns when that was."""
    dice, seconds = random.Random(world.options.seed), world.options.seconds
    begun, outages = time.monotonic(), []
    kill_at = begun + KILL_EVERY
    away_at = [begun + seconds / 3, begun + 2 * seconds / 3]
    while (now := time.monotonic()) < begun + seconds:
        if now >= kill_at:
            index = dice.randrange(len(fleet))
            fleet[index].kill()
            fleet[index] = world.begin("--concurrency", "4")
            kill_at += KILL_EVERY
        if away_at and now >= away_at[0]:
            del away_at[0]
            outages.append(time.time())
            stop_gracefully(world.redis)
            time.sleep(AWAY)
            world.redis.restart()
        time.sleep(0.05)
    return outages


def _check(world: World, orders: list[Order], hanging: str, outages: list[float]) -> int:
    from django_delayq.models import ArchivedMessage, UnarchivableEntry

    runs: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for run in world.history.all():
        if run.what.startswith("order "):
            _, number, version = run.what.split()
            runs[int(number)].append((run.started, int(version)))
    certain = [order for order in orders if order.is_certain]
    figures = _check_runs(world, certain, runs)
    ghosts = [order for order in orders if not order.lives and runs[order.number]]
    world.promise(
        not ghosts, f"{len(ghosts)} messages that were rolled back have run: {ghosts[:3]}"
    )
    _check_rows(world, orders, outages)
    hung = list(ArchivedMessage.objects.filter(message_id=hanging).values_list("state", "reason"))
    world.promise(hung == [("dead", "poison")], f"the hanging task ended as {hung}")
    left = _left(world) | {"unarchivable": UnarchivableEntry.objects.count()}
    world.promise(not any(left.values()), f"something is left: {left}")
    ran = sum(map(len, runs.values()))
    return world.finish(
        "mixed",
        f"{len(orders):,} orders ({len(certain):,} beyond doubt), {ran:,} runs, "
        f"{world.archived():,} rows, "
        f"{len(outages)} outages; "
        f"{', '.join(f'{name} {count}' for name, count in figures.items())}",
        orders=len(orders),
        certain=len(certain),
        cancelled=sum(not order.version and order.has_stood for order in certain),
        runs=ran,
        rows=world.archived(),
        **figures,
    )


def _check_runs(
    world: World, certain: list[Order], runs: dict[int, list[tuple[float, int]]]
) -> dict[str, int]:
    """What ran is what was wanted, when it was wanted. Returns how often it was not."""
    wanted = [order for order in certain if order.version]
    ended = [order for order in certain if order.cancelled_at and not order.version]
    found = {
        "lost": [
            order
            for order in wanted
            if order.version not in {version for _, version in runs[order.number]}
        ],
        "run after a committed cancel": [
            order for order in ended if any(at > order.cancelled_at for at, _ in runs[order.number])
        ],
        "run with arguments that were replaced": [
            order
            for order in wanted
            if {version for _, version in runs[order.number]} - {order.version}
        ],
        "run though nothing was wanted": [order for order in ended if runs[order.number]],
        "early": [
            order for order in wanted if any(at < order.due - 0.01 for at, _ in runs[order.number])
        ],
    }
    for name, bad in found.items():
        world.promise(
            not bad, f"{len(bad)} {name}: {[(order, runs[order.number]) for order in bad[:3]]}"
        )
    return {name: len(bad) for name, bad in found.items()}


def _check_rows(world: World, orders: list[Order], outages: list[float]) -> None:
    """As many rows as messages have ended, and one effect for each that was to happen once."""
    from django_delayq.models import ArchivedMessage
    from tests.chaos.models import Effect

    rows: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for key, state, reason in ArchivedMessage.objects.exclude(key="").values_list(
        "key", "state", "reason"
    ):
        rows[key].append((state, reason))
    certain = [order for order in orders if order.is_certain]
    wrong = [
        (order, rows[order.key])
        for order in certain
        if not _rows_are_right(order, rows[order.key], outages)
    ]
    world.promise(not wrong, f"{len(wrong)} orders have rows that are wrong: {wrong[:3]}")
    ghosts = [order for order in orders if not order.lives and rows[order.key]]
    world.promise(
        not ghosts, f"{len(ghosts)} messages that were rolled back have a row: {ghosts[:3]}"
    )
    dead = [
        (key, row)
        for key, found in rows.items()
        for row in found
        if row[0] not in ("acked", "cancelled")
    ]
    world.promise(
        not dead, f"{len(dead)} messages ended otherwise than acked or cancelled: {dead[:3]}"
    )
    effects = Counter(Effect.objects.values_list("number", flat=True))
    once = [order for order in certain if order.kind == "once"]
    sums = [
        (order, effects[order.number])
        for order in once
        if effects[order.number] != bool(order.version)
    ]
    world.promise(not sums, f"{len(sums)} exactly-once effects are not there once: {sums[:3]}")


def _rows_are_right(order: Order, rows: list[tuple[str, str]], outages: list[float]) -> bool:
    """One row that is acked where a run was wanted, else none; at least one and at most one for
    each enqueue.

    What `keep` has left in the outbox while nobody could know of the other one is a message of its
    own.
    """
    acked = sum(state == "acked" for state, _ in rows)
    doubtful = sum(any(-UNKNOWN < at - outage < AWAY for outage in outages) for at in order.sent)
    wanted = bool(order.version)
    if not wanted <= acked <= wanted + (doubtful if order.kind == "plain" else 0):
        return False
    return order.has_stood <= len(rows) <= order.lives + doubtful + order.kept


def _left(world: World) -> dict[str, int]:
    """What Redis and the outbox hold that should be gone."""
    from django_delayq.store import get_store
    from django_delayq.store.keys import Partition, partition_keys

    client = world.redis.client()
    left = {"outbox": world.outbox(), "stream": world.stream(), "live": world.live()}
    for key in partition_keys("chaos", Partition("default", 0)):
        name = key.rpartition(":")[2]
        if name == "meta":
            left["done"] = sum(field.startswith(b"done:") for field in client.hkeys(key))
        elif name != "finished":
            left[name] = int(client.exists(key))
    get_store().close()
    return left
