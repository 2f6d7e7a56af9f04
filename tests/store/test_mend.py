"""mend.lua: which messages are damaged, and how each damage is mended, in one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.core.message import Priority
from django_delayq.store.finished import FinishedStream
from django_delayq.store.repair import Damage, Suspect
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    DAY_MS,
    DETAIL,
    FAR,
    LATER,
    PARTITION,
    PAST,
    STAMP,
    accepted,
    attempts,
    claim,
    claim_durable,
    corrupt,
    counter,
    dump,
    ends,
    enqueue,
    finished,
    follow,
    full,
    key,
    live,
    markers,
    new_id,
    outgoing,
    send,
    stamped,
    waiting,
    wakeups,
)

RAW_STAMP = STAMP.to_bytes(8, "big")


def diagnose(store: RedisStore, message_id: bytes) -> list[str]:
    return [
        damage
        for found in store.repair.diagnose(PARTITION, [message_id])
        for damage in found.damages
    ]


def mend(
    store: RedisStore, damage: Damage, message_id: bytes, stamp: bytes = b"", argument: bytes = b""
) -> bool:
    return store.repair.mend(PARTITION, damage, [Suspect(message_id, stamp, argument)])[0]


def is_gone(store: RedisStore, message_id: bytes) -> bool:
    return message_id not in all_ids(store)


def put_into(store: RedisStore, name: str, message_id: bytes, score: str = PAST) -> None:
    """Into a lane, or the leases."""
    store.client.command("ZADD", key(store, name), score, message_id)


def take_from(store: RedisStore, name: str, message_id: bytes) -> None:
    store.client.command("ZREM", key(store, name), message_id)


def lanes_of(store: RedisStore, message_id: bytes) -> dict[str, float]:
    content = dump(store)
    return {
        name: content[name][message_id]
        for name in ("high", "normal", "low")
        if message_id in content[name]
    }


# Diagnoses


def test_of_an_unknown_id_there_is_nothing(store: RedisStore) -> None:
    assert diagnose(store, new_id()) == []


def unrecorded(store: RedisStore, lane: str = "normal") -> bytes:
    put_into(store, lane, message_id := new_id())
    return message_id


def unplaced(store: RedisStore) -> bytes:
    take_from(store, "normal", message_id := enqueue(store, when=FAR))
    return message_id


def in_two_lanes(store: RedisStore) -> bytes:
    put_into(store, "high", message_id := enqueue(store, when=FAR))
    return message_id


def in_a_wrong_lane(store: RedisStore) -> bytes:
    message_id = unplaced(store)
    put_into(store, "low", message_id, FAR)
    return message_id


def in_a_lane_and_leased(store: RedisStore) -> bytes:
    put_into(store, "normal", message_id := claim(store).id)
    return message_id


def with_stray_attempts(store: RedisStore) -> bytes:
    message_id = new_id()
    store.client.command("HSET", key(store, "attempts"), message_id, bytes(38))
    return message_id


def stray_follower(store: RedisStore, **fields: Any) -> bytes:
    lease = claim(store)
    follow(store, lease.id, when=FAR, **fields)
    entry = store.client.command("HGET", key(store, "followers"), lease.id)
    store.ack(PARTITION, [(lease, DETAIL)])
    store.cancel_in(PARTITION, [lease.id])
    store.client.command("HSET", key(store, "followers"), lease.id, entry)
    return lease.id


PLANTS: dict[Damage, Callable[[RedisStore], bytes]] = {
    "no_record": unrecorded,
    "no_place": unplaced,
    "two_lanes": in_two_lanes,
    "wrong_lane": in_a_wrong_lane,
    "lane_and_lease": in_a_lane_and_leased,
    "stray_attempts": with_stray_attempts,
    "stray_follower": stray_follower,
}


@pytest.mark.parametrize("damage", PLANTS)
def test_each_damage_is_diagnosed_and_no_other(store: RedisStore, damage: Damage) -> None:
    healthy(store)
    message_id = PLANTS[damage](store)
    before = dump(store)
    (diagnosis,) = store.repair.diagnose(PARTITION, list(all_ids(store)))
    assert (diagnosis.id, diagnosis.damages) == (message_id, [damage])
    record = before["messages"].get(message_id)
    assert diagnosis.stamp_us == (int.from_bytes(record[:8], "big") if record else None)
    assert store.repair.check(PARTITION, damage, [Suspect(message_id), Suspect(new_id())]) == [
        True,
        False,
    ]
    assert dump(store) == before, "neither of them changes anything"


def all_ids(store: RedisStore) -> set[bytes]:
    content = dump(store)
    names = ("high", "normal", "low", "leased", "messages", "attempts", "followers")
    return {message_id for name in names for message_id in content[name]}


def test_a_healthy_partition_has_no_damage(store: RedisStore) -> None:
    ids = [*healthy(store).values()]
    assert store.repair.diagnose(PARTITION, ids) == []
    assert set(ids) >= all_ids(store)


def test_a_message_may_be_damaged_in_two_ways(store: RedisStore) -> None:
    message_id = stray_follower(store)
    enqueue(store, message_id)
    put_into(store, "low", message_id)
    assert diagnose(store, message_id) == ["two_lanes", "stray_follower"]


@pytest.mark.parametrize("lanes", [["low"], ["high", "normal"]])
def test_a_leased_message_in_any_lanes_has_one_damage(store: RedisStore, lanes: list[str]) -> None:
    lease = claim(store)
    for lane in lanes:
        put_into(store, lane, lease.id)
    assert diagnose(store, lease.id) == ["lane_and_lease"]


def test_only_the_life_that_is_meant_is_put_back(store: RedisStore) -> None:
    message_id = unplaced(store)
    stamp = dump(store)["messages"][message_id][:8]
    assert not mend(store, "no_place", message_id, RAW_STAMP, FAR.encode())
    assert mend(store, "no_place", message_id, stamp, FAR.encode())


@pytest.mark.parametrize("raw", [b"", b"1234567", b"12345678", bytes(14) + b"\x13"])
def test_a_damaged_record_is_diagnosed(store: RedisStore, raw: bytes) -> None:
    message_id = unplaced(store)
    corrupt(store, message_id, raw)
    (diagnosis,) = store.repair.diagnose(PARTITION, [message_id])
    stamp_us = int.from_bytes(raw[:8], "big") if len(raw) >= 8 else None
    assert diagnosis == (message_id, stamp_us, ["no_place"])
    put_into(store, "normal", message_id)
    assert diagnose(store, message_id) == []


@pytest.mark.parametrize("size", [0, 60_000])
def test_any_number_of_ids_is_diagnosed(store: RedisStore, size: int) -> None:
    """A call of the script ends after 250 of them, or after 1 MiB of records."""
    damaged = [unrecorded(store), unrecorded(store)]
    ids = [enqueue(store, body=b'"' + b"x" * size + b'"') for _ in range(64 if size else 300)]
    ids = [damaged[0], *ids, damaged[1]]
    assert [found.id for found in store.repair.diagnose(PARTITION, ids)] == damaged
    words = store.repair.check(PARTITION, "no_record", [Suspect(one) for one in ids])
    assert words == [True, *[False] * (len(ids) - 2), True]


def test_an_end_with_a_newer_life_is_not_lost(store: RedisStore) -> None:
    message_id = lost_end(store)
    suspect = Suspect(message_id, RAW_STAMP)
    assert store.repair.check(PARTITION, "lost_end", [suspect]) == [True]
    enqueue(store, message_id)
    assert store.repair.check(PARTITION, "lost_end", [suspect]) == [False]
    corrupt(store, message_id, stamped(STAMP - 1))
    assert store.repair.check(PARTITION, "lost_end", [suspect]) == [True]
    follower = int(FAR).to_bytes(6, "big") + stamped(STAMP + 1)
    store.client.command("HSET", key(store, "followers"), message_id, follower)
    assert store.repair.check(PARTITION, "lost_end", [suspect]) == [False]
    assert not mend(store, "lost_end", *suspect)


def test_all_of_a_long_stream_is_read(store: RedisStore) -> None:
    ids = [enqueue(store) for _ in range(7)]
    store.cancel_in(PARTITION, ids)
    stamps = {
        (entry["id"], int.from_bytes(entry["record"][:8], "big")) for entry in finished(store)
    }
    assert len(stamps) == 7 and store.repair.finished_lives(PARTITION) == stamps


# Nothing is damaged


def healthy(store: RedisStore) -> dict[str, bytes]:
    """A message in each state in which it may be."""
    waits, ended, runs = enqueue(store, when=LATER), claim_durable(store), claim(store)
    store.ack(PARTITION, [(ended, DETAIL)])
    follow(store, runs.id)
    tried = claim(store)
    store.nack(PARTITION, [(tried, DAY_MS, True, DETAIL)])
    return {
        "waits": waits,
        "runs": runs.id,
        "tried": tried.id,
        "ended": ended.id,
        "unknown": new_id(),
    }


@pytest.mark.parametrize("damage", PLANTS)
def test_what_is_whole_is_left_alone(store: RedisStore, damage: Damage) -> None:
    ids = healthy(store)
    before = dump(store)
    suspects = [Suspect(one) for one in ids.values()]
    assert store.repair.mend(PARTITION, damage, suspects) == [False] * len(ids)
    assert dump(store) == before


@pytest.mark.parametrize("damage", ["stale_end", "surplus"])
def test_another_life_is_left_alone(store: RedisStore, damage: Damage) -> None:
    ids = healthy(store)
    before = dump(store)
    items = [Suspect(one, (STAMP + 1).to_bytes(8, "big")) for one in ids.values()]
    assert store.repair.mend(PARTITION, damage, items) == [False] * len(ids)
    assert dump(store) == before


def test_an_unknown_damage_is_refused_before_anything_changes(store: RedisStore) -> None:
    message_id = enqueue(store)
    before = dump(store)
    with pytest.raises(Exception, match="no such damage"):
        store.repair.mend(PARTITION, "worn", [Suspect(message_id)])  # type: ignore[arg-type]
    assert dump(store) == before


def test_any_number_is_mended_in_its_order(store: RedisStore) -> None:
    lost = enqueue(store)
    corrupt(store, lost, None)
    suspects = [*(Suspect(new_id()) for _ in range(500)), Suspect(lost)]
    assert store.repair.mend(PARTITION, "no_record", suspects) == [False] * 500 + [True]


def test_of_one_message_that_is_named_twice_the_second_is_whole(store: RedisStore) -> None:
    suspect = Suspect(unrecorded(store))
    assert store.repair.mend(PARTITION, "no_record", [suspect, suspect]) == [True, False]
    assert len(ends(store)) == 1


# An id without a record


@pytest.mark.parametrize("lane", ["high", "normal", "low", "leased"])
def test_an_id_without_a_record_ends_as_dead(store: RedisStore, lane: str) -> None:
    message_id = new_id()
    put_into(store, lane, message_id)
    assert mend(store, "no_record", message_id)
    assert ends(store) == [(message_id, "dead")]
    assert finished(store)[0]["detail"] == b'{"reason":"body_missing"}'
    assert is_gone(store, message_id) and counter(store, "dead") == 1
    assert not mend(store, "no_record", message_id)


def test_its_attempts_are_told_and_go(store: RedisStore) -> None:
    lease = claim(store)
    corrupt(store, lease.id, None)
    assert mend(store, "no_record", lease.id)
    assert finished(store)[0]["attempts"][:2] == b"\0\1" and attempts(store, lease.id) is None


def test_what_follows_its_run_begins(store: RedisStore) -> None:
    lease = claim(store)
    follow(store, lease.id, when=FAR)
    corrupt(store, lease.id, None)
    assert mend(store, "no_record", lease.id)
    assert waiting(store) == {lease.id: float(FAR)} and live(store) == {lease.id}
    assert counter(store, "enqueued") == 2


def test_what_sql_sends_again_is_not_told_as_ended(store: RedisStore) -> None:
    message_id = new_id()
    put_into(store, "normal", message_id)
    assert store.repair.mend(PARTITION, "no_record", [Suspect(message_id)], "none") == [True]
    assert ends(store) == [] and waiting(store) == {}


# A record without a place


def test_a_record_without_a_place_waits_again_until_it_is_due(store: RedisStore) -> None:
    message_id = enqueue(store, when=FAR, priority=Priority.HIGH)
    take_from(store, "high", message_id)
    heads = wakeups(store)
    assert mend(store, "no_place", message_id, argument=FAR.encode())
    assert lanes_of(store, message_id) == {"high": float(FAR)}
    assert wakeups(store) == heads + 1
    assert not mend(store, "no_place", message_id, argument=FAR.encode())


def test_when_nobody_knows_when_it_is_due_it_ends_as_dead(store: RedisStore) -> None:
    lease = claim(store)
    follow(store, lease.id, when=FAR)
    take_from(store, "leased", lease.id)
    store.client.command("HDEL", key(store, "attempts"), lease.id)
    assert mend(store, "no_place", lease.id)
    assert ends(store) == [(lease.id, "dead")] and finished(store)[0]["record"] == lease.record
    assert finished(store)[0]["detail"] == b'{"reason":"due_lost"}' and counter(store, "dead") == 1
    assert waiting(store) == {lease.id: float(FAR)}, "what follows it begins"


def test_of_two_due_times_that_are_known_the_later_counts(store: RedisStore) -> None:
    for due, later in ((FAR, FAR), ("1", PAST)):
        lease = claim(store)
        take_from(store, "leased", lease.id)
        assert mend(store, "no_place", lease.id, argument=due.encode())
        assert lanes_of(store, lease.id) == {"normal": float(later)}


def test_one_that_has_run_keeps_its_due_time_and_attempts(store: RedisStore) -> None:
    lease = claim(store, priority=Priority.LOW)
    take_from(store, "leased", lease.id)
    assert mend(store, "no_place", lease.id)
    entry = attempts(store, lease.id)
    assert lanes_of(store, lease.id) == {"low": float(PAST)} and entry and entry.attempt == 1


# Several places


def test_of_two_lanes_the_one_of_the_record_stays(store: RedisStore) -> None:
    message_id = enqueue(store, when=FAR)
    put_into(store, "high", message_id)
    put_into(store, "low", message_id)
    assert mend(store, "two_lanes", message_id)
    assert lanes_of(store, message_id) == {"normal": float(FAR)}
    assert not mend(store, "two_lanes", message_id)


def test_of_two_wrong_lanes_the_earlier_due_time_stays(store: RedisStore) -> None:
    message_id = enqueue(store, when=FAR)
    take_from(store, "normal", message_id)
    put_into(store, "high", message_id, "6000000000000")
    put_into(store, "low", message_id, "7000000000000")
    assert mend(store, "two_lanes", message_id)
    assert lanes_of(store, message_id) == {"normal": 6000000000000.0}


def test_a_message_in_a_wrong_lane_goes_to_its_own(store: RedisStore) -> None:
    message_id = enqueue(store, when=FAR)
    take_from(store, "normal", message_id)
    put_into(store, "low", message_id, FAR)
    assert mend(store, "wrong_lane", message_id)
    assert lanes_of(store, message_id) == {"normal": float(FAR)}


def test_of_a_lane_and_a_lease_the_lease_stays(store: RedisStore) -> None:
    lease = claim(store)
    put_into(store, "normal", lease.id)
    assert mend(store, "lane_and_lease", lease.id)
    assert waiting(store) == {} and lease.id in dump(store)["leased"]
    assert store.ack(PARTITION, [(lease, DETAIL)]) == []


# What belongs to nothing


def test_attempts_without_a_message_go(store: RedisStore) -> None:
    message_id = new_id()
    store.client.command("HSET", key(store, "attempts"), message_id, bytes(38))
    assert mend(store, "stray_attempts", message_id)
    assert attempts(store, message_id) is None
    assert not mend(store, "stray_attempts", message_id)


@pytest.mark.parametrize("place", ["normal", "leased"])
def test_attempts_of_an_id_in_a_place_stay(store: RedisStore, place: str) -> None:
    message_id = new_id()
    put_into(store, place, message_id)
    store.client.command("HSET", key(store, "attempts"), message_id, bytes(38))
    assert not mend(store, "stray_attempts", message_id) and attempts(store, message_id)


def test_a_follower_without_a_run_begins(store: RedisStore) -> None:
    message_id = stray_follower(store, priority=Priority.HIGH)
    assert mend(store, "stray_follower", message_id)
    assert lanes_of(store, message_id) == {"high": float(FAR)} and dump(store)["followers"] == {}
    assert not mend(store, "stray_follower", message_id)


def test_it_replaces_what_waits_under_its_key(store: RedisStore) -> None:
    message_id = stray_follower(store, priority=Priority.HIGH)
    enqueue(store, message_id, body=b'["old"]')
    enqueued = counter(store, "enqueued")
    assert mend(store, "stray_follower", message_id)
    assert (
        lanes_of(store, message_id) == {"high": float(FAR)}
        and counter(store, "enqueued") == enqueued
    )
    assert dump(store)["messages"][message_id].endswith(b'["follower"]')


# Ends


def test_an_end_that_is_archived_is_forgotten(store: RedisStore) -> None:
    lease = claim_durable(store)
    store.ack(PARTITION, [(lease, DETAIL)])
    assert mend(store, "stale_end", lease.id, RAW_STAMP)
    assert markers(store) == {}
    assert not mend(store, "stale_end", lease.id, RAW_STAMP)


def lost_end(store: RedisStore) -> bytes:
    lease = claim_durable(store)
    store.ack(PARTITION, [(lease, DETAIL)])
    store.client.command("DEL", key(store, "finished"))
    return lease.id


def test_an_end_that_nobody_was_told_of_is_told_as_dead(store: RedisStore) -> None:
    message_id = lost_end(store)
    assert mend(store, "lost_end", message_id, RAW_STAMP, stamped())
    assert ends(store) == [(message_id, "dead")]
    assert (
        finished(store)[0]["detail"] == b'{"reason":"end_lost"}'
        and finished(store)[0]["record"] == stamped()
    )
    assert markers(store) == {message_id: STAMP}
    assert counter(store, "dead") == 0, "it was counted when it ended"
    stream = FinishedStream(store, PARTITION, "archiver")
    stream.remove(stream.read())
    assert markers(store) == {}


def test_that_of_another_life_is_not(store: RedisStore) -> None:
    message_id = lost_end(store)
    assert not mend(
        store, "lost_end", message_id, (STAMP + 1).to_bytes(8, "big"), stamped(STAMP + 1)
    )
    assert ends(store) == []


def test_a_life_that_is_archived_goes(store: RedisStore) -> None:
    message = accepted(when=FAR)
    send(store, message)
    store.client.command("HSET", key(store, "attempts"), message[0], bytes(38))
    assert mend(store, "surplus", message[0], RAW_STAMP)
    assert is_gone(store, message[0]) and ends(store) == []
    assert not mend(store, "surplus", message[0], RAW_STAMP)


def test_one_that_runs_stays(store: RedisStore) -> None:
    lease = claim_durable(store)
    assert not mend(store, "surplus", lease.id, RAW_STAMP)
    assert store.ack(PARTITION, [(lease, DETAIL)]) == []


def test_attempts_come_along_once(store: RedisStore) -> None:
    message_id = enqueue(store)
    assert mend(store, "no_attempts", message_id, argument=b"\0\3" + bytes(36))
    assert not mend(store, "no_attempts", message_id, argument=b"\0\4" + bytes(36))
    assert not mend(store, "no_attempts", new_id(), argument=b"\0\4" + bytes(36))
    entry = attempts(store, message_id)
    assert entry and entry.attempt == 3


# A full Redis


@pytest.mark.parametrize("damage", ["no_place", "no_record", "lost_end"])
def test_a_full_redis_is_mended(store: RedisStore, server: Server, damage: Damage) -> None:
    message_id = PLANTS.get(damage, lost_end)(store)
    stamp = RAW_STAMP if damage == "lost_end" else b""
    with full(server):
        assert mend(store, damage, message_id, stamp, stamped() if stamp else b"")


def test_sending_leaves_the_store_as_any_other(store: RedisStore) -> None:
    """What was mended runs as any other message."""
    message_id = outgoing()[0]
    enqueue(store, message_id)
    take_from(store, "normal", message_id)
    mend(store, "no_place", message_id, argument=PAST.encode())
    store.ack(PARTITION, [(claim(store, message_id), DETAIL)])
    assert ends(store) == [(message_id, "acked")]
