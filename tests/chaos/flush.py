"""FLUSHALL, or a Redis that dies with its data, in the middle of durable messages: all of them run,
once archived."""

from __future__ import annotations

import random
import shutil
import threading
import time

from tests.chaos.world import Options, World

COUNT = 2_000
SECONDS = 1.0
"""How long Redis is away with --kill."""
RECONCILE_AFTER = 10.0
#: Delays of the messages.
LONGEST = 4.0
#: Seconds between two checkouts, so that Redis is lost between them, too.
PAUSE = 0.002
#: A worker starts what it has claimed before the loss for so long afterwards: its buffer, and a
#: busy machine.
HELD = 2.0


def main(options: Options) -> int:
    """The exit code."""
    with World(options) as world:
        for _ in range(2):
            world.worker("--concurrency", "4")
        ids: list[str] = []
        producer = threading.Thread(target=_produce, args=(options, ids), daemon=True)
        producer.start()
        begun = world.wait(lambda: world.history.count() > options.count // 2, 120, 0.005)
        world.promise(begun, "half of the messages have not run within 120 s")
        archived = _archived()
        lost_at, accepted = time.time(), len(ids)
        _lose(world)
        back_at = time.time()
        producer.join()
        done = world.wait(lambda: world.archived() >= options.count, 120)
        took = time.time() - lost_at
        world.promise(done, f"only {world.archived()} rows 120 s after the loss")
        world.wait(world.settled, 30)
        return _check(
            world, ids, archived, lost_at=lost_at, back_at=back_at, took=took, accepted=accepted
        )


def _produce(options: Options, ids: list[str]) -> None:
    from django.db import connection, transaction

    from tests.chaos.models import Order
    from tests.chaos.tasks import note

    dice = random.Random(options.seed)
    durable = note.using(durable=True)
    for number in range(options.count):
        with transaction.atomic():
            Order.objects.create(number=number)
            handle = durable.using(delay=dice.uniform(0, LONGEST)).enqueue(number)
        ids.append(handle.id)
        time.sleep(PAUSE)
    connection.close()


def _archived() -> set[str]:
    from django_delayq.models import ArchivedMessage

    return {
        message_id.hex
        for message_id in ArchivedMessage.objects.values_list("message_id", flat=True)
    }


def _lose(world: World) -> None:
    if world.options.variant != "kill":
        world.redis.client().flushall()
        return
    (node,) = world.redis.primaries
    node.kill()
    shutil.rmtree(node.data_dir)
    time.sleep(world.options.seconds)
    node.start()


def _check(
    world: World,
    ids: list[str],
    archived: set[str],
    *,
    lost_at: float,
    back_at: float,
    took: float,
    accepted: int,
) -> int:
    from tests.chaos.models import Order

    count = world.options.count
    world.promise(
        len(set(ids)) == count == Order.objects.count(), f"{len(set(ids))} ids for {count} orders"
    )
    never = set(ids) - {run.id for run in world.history.starts()}
    world.promise(not never, f"{len(never)} messages never ran: {sorted(never)[:3]}")
    twice = world.history.duplicates()
    first = {run.id: run.started for run in reversed(world.history.starts())}
    wrong = [message for message in twice if message in archived or first[message] > back_at + HELD]
    world.promise(
        not wrong,
        f"{len(wrong)} ran twice although archived before the loss, or begun after: {wrong[:3]}",
    )
    world.promise(max(twice.values(), default=0) <= 2, "a message ran three times")
    world.check_archive(ids)
    early = sum(at < lost_at for at in first.values())
    return world.finish(
        "flush",
        f"{count:,} messages ran, {len(twice)} of them twice; all were archived {took:.1f} s after "
        f"the loss, at which "
        f"{accepted} had been sent, {early} had run and {len(archived)} were archived",
        messages=count,
        sent_before=accepted,
        run_before=early,
        archived_before=len(archived),
        ran_twice=len(twice),
        seconds_to_archived=round(took, 2),
        reconcile_after=world.options.reconcile_after,
    )
