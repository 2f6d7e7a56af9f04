"""A primary is killed, or frozen for a while and woken, under load: behind Sentinel, and on a
Cluster.

Durable messages are all there in the end, and of the others at most what was accepted in the second
before the fault is lost. On a Cluster also: a slot moves from node to node while its messages come
and go.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import Any, NamedTuple

from django.db import connection as database

from django_delayq import DelayQError
from tests.acceptance.history import Run
from tests.chaos.world import Options, World
from tests.servers import Cluster, Replicated, Server

#: Messages a second, and seconds before the fault, of the fault, and after it.
COUNT = 200
BEFORE = 6.0
SECONDS = 8.0
AFTER = 14.0
RECONCILE_AFTER = 5.0
#: Before the fault: what a plain message may be lost that was accepted then. Without starts: so
#: long at most (seconds).
LOSS_WINDOW = 1.0
LONGEST_PAUSE = 5.0
SENDERS = 4
IDLE = 16
DOWN_AFTER = 1500
PARTITIONS = 4


class Sent(NamedTuple):
    """One message that was accepted."""

    id: str
    durable: bool
    at: float
    due_ms: float
    outcome: str


class Load:
    """Sends mixed messages at a steady rate from some threads until it is stopped."""

    def __init__(self, rate: float, seed: int) -> None:
        self.sent: list[Sent] = []
        self.refused: list[str] = []
        self.slowest = 0.0
        self._interval = SENDERS / rate
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(seed + n,)) for n in range(SENDERS)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _send(self, seed: int) -> None:
        from tests.chaos.tasks import note

        dice, number, next_at = random.Random(seed), 0, time.monotonic()
        while not self._ended.is_set():
            number += 1
            task = note.using(delay=dice.choice((0, 0.05, 0.5, 1.5, 4)), durable=bool(number % 2))
            begun = time.monotonic()
            try:
                handle = task.enqueue(number)
            except DelayQError as error:
                self.refused.append(f"{type(error).__name__}: {error}")
            else:
                due_ms = handle.due_ms or 0
                self.sent.append(
                    Sent(handle.id, bool(number % 2), time.time(), due_ms, handle.outcome)
                )
            self.slowest = max(self.slowest, time.monotonic() - begun)
            # What the fault held up is not made up for: nobody's customers come all at once
            # afterwards.
            next_at = max(next_at + self._interval, time.monotonic() - self._interval)
            self._ended.wait(max(0.0, next_at - time.monotonic()))
        database.close()


def run(name: str, options: Options) -> int:
    """The exit code."""
    behind_sentinel = name == "sentinel"
    server = (
        Replicated(sentinels=3, down_after=DOWN_AFTER)
        if behind_sentinel
        else Cluster(replicas=True)
    )
    topics = {"default": {"partitions": PARTITIONS}} if name == "cluster" else {}
    with World(options, server, TOPICS=topics) as world:
        for _ in range(2):
            world.worker("--concurrency", "8")
        load = Load(options.count, options.seed)
        time.sleep(BEFORE)
        _warm()
        fault_at, over_at = _harm(world)
        time.sleep(AFTER)
        load.stop()
        ended_at = time.time()
        world.wait(lambda: world.settled() and world.history.count() >= len(load.sent), 30)
        world.wait(world.settled, 60)
        return _check(name, world, load, fault_at, over_at, ended_at)


def _warm() -> None:
    """Leave idle connections behind, as a web server has after a busy minute: these are what a
    fault wakes up again."""
    from django_delayq.store import get_store

    client = get_store().client.redis
    nodes = client.get_primaries() if hasattr(client, "get_primaries") else []
    for pool in [node.redis_connection.connection_pool for node in nodes] or [
        client.connection_pool
    ]:
        for connection in [pool.get_connection() for _ in range(IDLE)]:
            pool.release(connection)


def _harm(world: World) -> tuple[float, float]:
    """When it began, and when it was over."""
    if world.options.variant == "migrate":
        return _migrate(world)
    begun, (node, *_) = time.time(), _victims(world.redis)
    if world.options.variant == "kill":
        node.kill()
    else:
        assert node.pid is not None
        os.kill(node.pid, signal.SIGSTOP)
    time.sleep(world.options.seconds)
    if world.options.variant == "kill":
        node.start()  # it still takes itself for a primary
    else:
        os.kill(node.pid, signal.SIGCONT)
    return begun, time.time()


def _victims(server: Server) -> list[Any]:
    """The primaries, first one that has messages: on a cluster the partitions' slots are where they
    are."""
    if not isinstance(server, Cluster):
        return server.primaries
    port = _home(server, 0).port
    return sorted(server.primaries, key=lambda node: node.port != port)


def _home(server: Server, number: int) -> Any:
    with server.client() as client:
        return client.get_node_from_key(f"chaos:{{default:{number}}}:messages")


def _migrate(world: World) -> tuple[float, float]:
    """Move the slot of a partition round the primaries, key by key, as `redis-cli --cluster
    reshard` does."""
    begun = time.time()
    while time.time() < begun + world.options.seconds:
        with world.redis.client() as client:
            slot = client.keyslot("chaos:{default:0}:messages")
            source = client.get_node_from_key("chaos:{default:0}:messages")
            ids = {
                node.name: client.execute_command("CLUSTER MYID", target_nodes=node)
                for node in client.get_primaries()
            }
            target = random.choice(
                [node for node in client.get_primaries() if node.name != source.name]
            )
            ids = {
                name: value.decode() if isinstance(value, bytes) else value
                for name, value in ids.items()
            }
            from_id, to_id = ids[source.name], ids[target.name]
            setslot = "CLUSTER SETSLOT"
            client.execute_command(setslot, slot, "IMPORTING", from_id, target_nodes=target)
            client.execute_command(setslot, slot, "MIGRATING", to_id, target_nodes=source)
            while keys := client.execute_command(
                "CLUSTER GETKEYSINSLOT", slot, 100, target_nodes=source
            ):
                migrate = ("MIGRATE", target.host, target.port, "", 0, 5000, "KEYS", *keys)
                client.execute_command(*migrate, target_nodes=source)
            client.execute_command(setslot, slot, "NODE", to_id, target_nodes=target)
            client.execute_command(setslot, slot, "NODE", to_id, target_nodes=source)
        time.sleep(0.5)
    return begun, time.time()


def _check(
    name: str, world: World, load: Load, fault_at: float, over_at: float, ended_at: float
) -> int:
    first: dict[str, Run] = {run.id: run for run in reversed(world.history.starts())}
    lost = [sent for sent in load.sent if sent.id not in first]
    durable = [sent for sent in lost if sent.durable]
    late = [
        sent
        for sent in lost
        if not sent.durable and not fault_at - LOSS_WINDOW <= sent.at <= fault_at
    ]
    excused = len(lost) - len(durable) - len(late)
    early = [
        s for s in load.sent if s.id in first and s.due_ms and first[s.id].started * 1000 < s.due_ms
    ]
    moments = sorted(
        run.started for run in first.values() if fault_at - 1 <= run.started <= ended_at
    )
    pause = max(
        (b - a for a, b in zip(moments, [*moments[1:], ended_at], strict=True)),
        default=ended_at - fault_at,
    )
    twice = world.history.duplicates()
    if world.options.variant == "migrate":
        world.promise(not lost, f"{len(lost)} messages were lost although nothing failed")
    world.promise(not durable, f"{len(durable)} durable messages were lost: {durable[:3]}")
    when = sorted(round(sent.at - over_at, 1) for sent in late)
    world.promise(
        not late,
        f"{len(late)} plain ones were lost, accepted so many s after the waking: {when[:9]}",
    )
    world.promise(not early, f"{len(early)} were early: {early[:3]}")
    world.promise(not load.refused, f"{len(load.refused)} were refused: {load.refused[:3]}")
    world.promise(pause <= LONGEST_PAUSE, f"nothing started for {pause:.1f} s")
    gone = {sent.id for sent in lost}
    world.check_archive([sent.id for sent in load.sent if sent.id not in gone], may_be_twice=twice)
    spilled = sum(sent.outcome == "outbox" and not sent.durable for sent in load.sent)
    text = (
        f"{len(load.sent)} accepted, {spilled} plain ones in the outbox; lost: durable "
        f"{len(durable)}, plain "
        f"{len(late)}, and {excused} of the second before; {len(early)} early, {len(twice)} ran "
        f"twice; nothing started "
        f"for {pause:.1f} s, the slowest enqueue took {load.slowest:.1f} s"
    )
    return world.finish(
        name,
        text,
        accepted=len(load.sent),
        spilled=spilled,
        lost_durable=len(durable),
        lost_plain=len(late),
        lost_in_the_second_before=excused,
        early=len(early),
        twice=len(twice),
        pause=round(pause, 2),
        slowest_enqueue=round(load.slowest, 2),
    )
