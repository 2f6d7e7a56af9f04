"""The Redis users of the roles: each does its work with its rights, and nothing beyond them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from redis.exceptions import RedisError

from django_delayq.core.exceptions import StoreForbidden
from django_delayq.store.acl import ROLES, rights_of
from django_delayq.store.store import RedisStore
from tests.servers import Server
from tests.store.factories import (
    DETAIL,
    PARTITION,
    STAMP,
    claim,
    dump,
    end_leases,
    enqueue,
    follow,
    new_id,
    outgoing,
    send,
)
from tests.store.life import edited, limiting, whole_life
from tests.store.test_scripts import ACL, client_rules, limited, listen, prefix_rules

#: What Redis 6.2 to 8 and Valkey say, also inside a script.
REFUSED = r"(?i)noperm|permission|ACL|can't (run|access)"

Calls = Iterator[Callable[[], Any]]


def producing(store: RedisStore) -> Calls:
    """What a web process does that enqueues, changes and cancels, and waits for results."""
    first, other = new_id(), new_id()
    yield lambda: send(store, outgoing(first), outgoing(other, when="+1000", expires="+5"))
    yield lambda: enqueue(store)
    yield lambda: store.queries.find(PARTITION, [first])
    yield lambda: store.reschedule_in(PARTITION, other, "+2000")
    yield lambda: store.edit_in(PARTITION, other, *edited(store, other))
    yield lambda: store.cancel_in(PARTITION, [other])
    yield lambda: store.reports.ended("orders", other)
    yield lambda: store.reports.result("orders", other)
    yield lambda: store.reports.progress("orders", other)
    yield store.topics.names
    yield store.now_us


def working(store: RedisStore) -> Calls:
    """What a worker does that archives nothing."""
    message_id = new_id()
    yield lambda: send(store, outgoing(message_id))
    yield lambda: store.nack(PARTITION, [(claim(store, message_id), 0, False, DETAIL)])
    yield lambda: store.reschedule_in(PARTITION, message_id, "5")
    yield lambda: store.put_off(PARTITION, [(claim(store, message_id), 0, DETAIL)])
    yield lambda: store.reschedule_in(PARTITION, message_id, "5")
    yield lambda: store.release(PARTITION, store.claim(PARTITION, 1).leases)
    yield lambda: store.extend(PARTITION, [claim(store, message_id)])
    yield lambda: follow(store, message_id)
    yield lambda: end_leases(store)
    yield lambda: store.reclaim(PARTITION)
    yield lambda: store.ack(PARTITION, [(store.claim(PARTITION, 1).leases[0], DETAIL)])
    yield lambda: store.progress(claim(store), b"[1]", 60_000)
    yield from limiting(store)
    yield lambda: store.workers.beat("worker", "{}")
    yield lambda: store.workers.is_quiet("worker")
    yield lambda: store.workers.acquire_lock("sample", 55_000)
    yield lambda: store.workers.add_sample(1, {})
    yield store.workers.heartbeats
    yield lambda: store.workers.forget("worker")
    yield lambda: store.queries.snapshot([PARTITION], [0], 5)
    yield lambda: store.queries.oldest_lease_ms(PARTITION)
    yield lambda: store.queries.task_name(PARTITION, b"code")
    yield store.topics.used_partitions
    yield store.clock_ms
    yield lambda: listen(store)


def viewing(store: RedisStore) -> Calls:
    """What the pages, `delayq stats` and the metrics read."""
    yield lambda: store.queries.find(PARTITION, [new_id()])
    yield lambda: store.queries.list(PARTITION, 1, (1, b""), 5)
    yield lambda: store.queries.stats(PARTITION)
    yield lambda: store.queries.all_stats([PARTITION])
    yield lambda: store.queries.count_leased([PARTITION])
    yield lambda: store.queries.count_leased([PARTITION] * 60)
    yield lambda: store.find_many((f"topic{n}", new_id()) for n in range(200))
    yield lambda: list(store.queries.first_waiting([PARTITION], 5))
    yield store.workers.heartbeats_and_quiet
    yield lambda: store.queries.holders([(PARTITION, 5)])
    yield lambda: store.queries.durable_status(PARTITION, [(new_id(), STAMP)])
    yield lambda: store.queries.leased_under(PARTITION, bytes(16))
    yield lambda: store.queries.snapshot([PARTITION], [0], 5)
    yield lambda: store.queries.counters([PARTITION])
    yield lambda: store.queries.task_name(PARTITION, b"code")
    yield lambda: store.queries.oldest_lease_ms(PARTITION)
    yield lambda: store.queries.holding_back([PARTITION])
    yield lambda: store.reports.ended("orders", new_id())
    yield lambda: store.reports.result("orders", new_id())
    yield lambda: store.reports.progress("orders", new_id())
    yield lambda: store.workers.is_quiet("worker")
    yield store.workers.heartbeats
    yield store.topics.names
    yield store.topics.used_partitions
    yield store.clock_ms


def archiving(store: RedisStore) -> Calls:
    """Everything: who archives also relays, reconciles and runs bulk operations."""
    yield from whole_life(store)
    yield lambda: listen(store)


WORK: dict[str, Callable[[RedisStore], Calls]] = {
    "producer": producing,
    "worker": working,
    "viewer": viewing,
    "archiver": archiving,
}


def test_the_table_has_what_each_script_needs() -> None:
    assert {right.removeprefix("+") for right in ACL} <= {*ROLES["archiver"]}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_does_its_work_with_its_rights(server: Server, prefix: str, role: str) -> None:
    rights = [f"+{right}" for right in rights_of(role)]
    rules = *prefix_rules(prefix), *rights, *client_rules(server)
    with limited(server, prefix, *rules) as store:
        for call in WORK[role](store):
            call()


@pytest.mark.parametrize("role", ROLES)
def test_a_role_can_do_nothing_else(server: Server, prefix: str, role: str) -> None:
    rights = [f"+{right}" for right in rights_of(role)]
    rules = *prefix_rules(prefix), *rights, *client_rules(server)
    with limited(server, prefix, *rules) as store:
        redis = store.client.redis
        for command in (
            ("FLUSHALL",),
            ("KEYS", "*"),
            ("CONFIG", "GET", "*"),
            ("CONFIG", "SET", "maxmemory", "1"),
            ("SCRIPT", "FLUSH"),
            ("ACL", "LIST"),
            ("HGET", "foreign", "field"),
            ("EVAL", "return redis.call('HGET', KEYS[1], 'field')", "1", "foreign"),
            ("EVAL", "return redis.call('KEYS', '*')", "1", f"{prefix}:topics"),
        ):
            with pytest.raises(RedisError, match=REFUSED):
                redis.execute_command(*command, **_anywhere(server, command))


def test_a_viewer_changes_no_message(store: RedisStore, server: Server, prefix: str) -> None:
    enqueue(store, when="+9000")
    before = dump(store)
    rights = [f"+{right}" for right in rights_of("viewer")]
    with limited(server, prefix, *prefix_rules(prefix), *rights, *client_rules(server)) as viewer:
        with pytest.raises(StoreForbidden):
            enqueue(viewer)
        with pytest.raises(StoreForbidden):
            viewer.purge(PARTITION)
        with pytest.raises(StoreForbidden):
            viewer.workers.quiet("worker")
    assert dump(store) == before


def _anywhere(server: Server, command: tuple[str, ...]) -> dict[str, Any]:
    """A cluster wants to know which node is meant by a command without a key."""
    is_of_node = server.kind == "cluster" and command[0] not in ("HGET", "EVAL")
    return {"target_nodes": "random"} if is_of_node else {}


def test_the_command_prints_users_that_redis_takes(
    delayq: RedisStore, server: Server, prefix: str
) -> None:
    out = StringIO()
    call_command("delayq", "acl", "--json", stdout=out)
    lines = json.loads(out.getvalue())
    assert [*lines][:4] == [*ROLES]
    assert all(f"~{prefix}:* " in line for line in [*lines.values()][:4])
    if server.kind in ("redis7", "valkey"):
        for line in lines.values():
            assert delayq.client.redis.execute_command(*line.split()) == b"OK"
            delayq.client.redis.execute_command("ACL", "DELUSER", line.split()[2])


def test_the_command_prints_one_user(delayq: RedisStore, prefix: str) -> None:
    out = StringIO()
    call_command("delayq", "acl", "--role", "viewer", "--no-check", stdout=out)
    (line,) = out.getvalue().splitlines()
    assert line.startswith(f"ACL SETUSER {prefix}-viewer ")
    assert "config" not in line
    assert "+hset" not in line
