"""Plants each damage that an audit knows, in a system that works."""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from django_delayq.archive.archiver import store_entries
from django_delayq.core.message import ATTEMPTS, HEADER, STAMP, new_id, task_code
from django_delayq.core.times import When
from django_delayq.models import ArchivedMessage, OutboxMessage
from django_delayq.operators.doctor.findings import FindingKind
from django_delayq.store import keys
from django_delayq.store.finished import FinishedStream
from django_delayq.store.keys import Partition
from django_delayq.store.lease import Lease
from django_delayq.store.store import Outgoing, RedisStore
from tests.app.tasks import record

DEFAULT, CROWD = Partition("default", 0), Partition("crowd", 1)
LATER = timedelta(minutes=30)
LONG_AHEAD = datetime(2999, 1, 1, tzinfo=timezone.utc)
FAR = "9000000000000"
NAMES = ("high", "normal", "low", "leased", "messages", "attempts", "finished", "followers", "meta")


Steps = Generator[None, None, str]


class World(NamedTuple):
    """What damage is done to."""

    store: RedisStore
    export: Callable[[], Any]
    """Brings the archive to the lake."""
    lake: str

    def key(self, name: str, partition: Partition = DEFAULT) -> str:
        """Of a structure."""
        return keys.partition_keys(self.store.client.prefix, partition)[NAMES.index(name)]

    def do(self, command: str, name: str, *args: Any) -> Any:
        """A command on a structure of the default topic."""
        return self.store.client.command(command, self.key(name), *args)

    def waiting(self, **options: Any) -> bytes:
        """The id of a message that waits."""
        handle = record.using(delay=LATER, **options).enqueue("planted")
        return bytes(handle.identity)

    def claimed(self, **options: Any) -> Lease:
        """The lease of a message that is due."""
        handle = record.using(**options).enqueue("planted")
        now = self.store.clock_ms()
        while self.store.clock_ms() < now + 2:
            pass
        leases = {lease.id: lease for lease in self.store.claim(DEFAULT, 500).leases}
        return leases[handle.identity]

    def ended(self, **options: Any) -> Lease:
        """The lease of one that has ended, and is in the stream."""
        lease = self.claimed(**options)
        assert self.store.ack(DEFAULT, [(lease, b"{}")]) == []
        return lease

    def archived(self, **options: Any) -> ArchivedMessage:
        """The row of one that is archived."""
        lease = self.ended(**options)
        self.archive()
        return ArchivedMessage.objects.get(message_id=lease.id.hex())

    def archive(self) -> None:
        """All that is in the stream."""
        stream = FinishedStream(self.store, DEFAULT, "world")
        while entries := stream.read():
            store_entries(entries)
            stream.remove(entries)


def no_record(world: World) -> str:
    message_id = world.waiting()
    world.do("HDEL", "messages", message_id)
    return message_id.hex()


def no_place(world: World, *, durable: bool = True) -> str:
    """Of a durable one the outbox knows when it is due."""
    message_id = world.waiting(durable=durable)
    world.do("ZREM", "normal", message_id)
    return message_id.hex()


def two_lanes(world: World) -> str:
    message_id = world.waiting()
    world.do("ZADD", "high", FAR, message_id)
    return message_id.hex()


def lane_and_lease(world: World) -> str:
    lease = world.claimed()
    world.do("ZADD", "normal", FAR, lease.id)
    return lease.id.hex()


def wrong_lane(world: World) -> str:
    message_id = world.waiting()
    world.do("ZREM", "normal", message_id)
    world.do("ZADD", "low", FAR, message_id)
    return message_id.hex()


def wrong_partition(world: World) -> str:
    """Its topic has had one and two partitions, and both put it into the first."""
    for count in (1, 2):
        world.store.client.command(
            "SADD", keys.topics_key(world.store.client.prefix), f"crowd:{count}"
        )
    message_id = new_id()[:-1] + b"\2"
    body = HEADER.pack(0x11, 60_000, task_code("tests.app.tasks.crowd")) + b"[7]"
    tasks = {task_code("tests.app.tasks.crowd"): "tests.app.tasks.crowd"}
    message = Outgoing(message_id, "raise", When(FAR), When(), body)
    world.store.enqueue(CROWD, tasks, [message])
    world.store.client.command(
        "HSET", world.key("attempts", CROWD), message_id, b"\0\2" + bytes(ATTEMPTS.size - 2)
    )
    return message_id.hex()


def stray_attempts(world: World) -> str:
    message_id = new_id()
    world.do("HSET", "attempts", message_id, bytes(ATTEMPTS.size))
    return message_id.hex()


def stray_follower(world: World) -> str:
    message_id = new_id()
    body = stored(world.store) + b"[8]"
    world.do("HSET", "followers", message_id, int(FAR).to_bytes(6, "big") + body)
    return message_id.hex()


def lost_end(world: World) -> str:
    lease = world.ended(durable=True)
    world.do("DEL", "finished")
    return lease.id.hex()


def stale_end(world: World) -> str:
    row = world.archived(durable=True)
    world.do("HSET", "meta", b"done:" + row.message_id.bytes, stamp_of(row))
    return row.message_id.hex


def lost(world: World) -> str:
    message_id = world.waiting(durable=True)
    world.do("ZREM", "normal", message_id)
    world.do("HDEL", "messages", message_id)
    looked_at(message_id)
    return message_id.hex()


def unclosed(world: World) -> str:
    lease = world.claimed(durable=True)
    row = OutboxMessage.objects.get(message_id=lease.id.hex())
    world.store.ack(DEFAULT, [(lease, b"{}")])
    world.archive()
    row.save(force_insert=True)
    return lease.id.hex()


def live_again(world: World) -> str:
    lease = world.ended()
    world.archive()
    world.do("HSET", "messages", lease.id, lease.record)
    world.do("ZADD", "normal", FAR, lease.id)
    return lease.id.hex()


# What needs a lake: each step ends where an export has to come


def late_row(world: World) -> Steps:
    """Committed in SQL after a batch with greater ids was."""
    row = world.archived()
    world.archived()
    pk = row.pk
    ArchivedMessage.objects.filter(pk=pk).delete()
    yield
    row.save(force_insert=True)
    return str(pk)


def changed_row(world: World) -> Steps:
    row = world.archived()
    yield
    ArchivedMessage.objects.filter(pk=row.pk).update(worker="somebody else")
    return str(row.pk)


def lost_row(world: World) -> Steps:
    row = world.archived()
    world.archived()
    yield
    ArchivedMessage.objects.filter(pk=row.pk).delete()
    return str(row.pk)


PLANTS: dict[FindingKind, Callable[[World], str]] = {
    FindingKind.UNCLOSED: unclosed,
    FindingKind.LIVE_AGAIN: live_again,
    FindingKind.NO_RECORD: no_record,
    FindingKind.NO_PLACE: no_place,
    FindingKind.TWO_LANES: two_lanes,
    FindingKind.LANE_AND_LEASE: lane_and_lease,
    FindingKind.WRONG_LANE: wrong_lane,
    FindingKind.WRONG_PARTITION: wrong_partition,
    FindingKind.STRAY_ATTEMPTS: stray_attempts,
    FindingKind.STRAY_FOLLOWER: stray_follower,
    FindingKind.LOST_END: lost_end,
    FindingKind.STALE_END: stale_end,
    FindingKind.LOST: lost,
}
IN_THE_LAKE: dict[FindingKind, Callable[[World], Steps]] = {
    FindingKind.LATE_ROW: late_row,
    FindingKind.CHANGED_ROW: changed_row,
    FindingKind.LOST_ROW: lost_row,
}


def plant_all(world: World) -> dict[str, list[str]]:
    """One of each; the name of each by its kind. Two exports."""
    names = {kind.value: [plant(world)] for kind, plant in PLANTS.items()}
    steps = {kind.value: plant(world) for kind, plant in IN_THE_LAKE.items()}
    while steps:
        for kind, one in list(steps.items()):
            try:
                next(one)
            except StopIteration as end:
                names[kind] = [end.value]
                del steps[kind]
        if steps:
            world.export()
    return names


def stored(store: RedisStore, flags: int = 0x11) -> bytes:
    """Stamp and header of a record, as they lie in Redis."""
    now_us = int(store.clock_ms() * 1000)
    return STAMP.pack(now_us, bytes(6)) + HEADER.pack(flags, 60_000, task_code(record.name))


def stamp_of(row: ArchivedMessage) -> bytes:
    """As Redis remembers it."""
    return round(row.enqueued_at.timestamp() * 1e6).to_bytes(8, "big")


def looked_at(message_id: bytes) -> None:
    """As if the row had been sent long ago."""
    OutboxMessage.objects.filter(message_id=message_id.hex()).update(relay_at_ms=0)
