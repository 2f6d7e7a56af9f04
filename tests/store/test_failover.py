"""sentinel.py, cluster.py: no call waits for a primary that is out, and none is answered by one
that woke up."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from django_delayq.core.conf import parse_settings
from django_delayq.core.exceptions import (
    NotReplicated,
    OutcomeUnknown,
    StoreUnavailable,
    TooFewReplicas,
)
from django_delayq.store.connection import open_client
from django_delayq.store.keys import partition_keys
from django_delayq.store.sentinel import Sentinels
from django_delayq.store.store import RedisStore
from tests.servers import Cluster, Replicated, wait_until
from tests.store.factories import PARTITION, TASKS, outgoing


@pytest.fixture(scope="session")
def server_kind() -> str:
    """These tests do harm: each has servers of its own."""
    return "redis7"


@pytest.fixture
def behind_sentinel() -> Iterator[Replicated]:
    with Replicated(sentinels=1, down_after=600) as server:
        yield server


def store_on(server: Any, prefix: str, **settings: Any) -> RedisStore:
    parsed = parse_settings({"REDIS": server.url, "PREFIX": prefix, **settings})
    return RedisStore(open_client(parsed), parsed)


def accepted(store: RedisStore) -> bytes | None:
    """The id of a message that Redis took, if it did."""
    message = outgoing()
    try:
        store.enqueue(PARTITION, TASKS, [message])
    except (StoreUnavailable, OutcomeUnknown):
        return None
    return message[0]


def idle_connections(store: RedisStore, count: int = 4) -> None:
    pool = store.client.redis.connection_pool
    for connection in [pool.get_connection() for _ in range(count)]:
        pool.release(connection)


def promoted(server: Replicated) -> bool:
    replica = server.others[0]
    with redis.Redis(unix_socket_path=str(replica.socket)) as client:
        return bool(client.info("replication")["role"] == "master")


def named(server: Replicated) -> int:
    with redis.Redis(unix_socket_path=str(server.others[-1].socket)) as client:
        return int(client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", "mymaster")[1])


@pytest.mark.long
def test_what_is_accepted_after_a_frozen_primary_wakes_is_in_the_new_one(
    behind_sentinel: Replicated, prefix: str
) -> None:
    server = behind_sentinel
    busy, quiet = store_on(server, prefix), store_on(server, prefix)
    for store in (busy, quiet):
        assert accepted(store)
        idle_connections(store)
    old, new = server.primaries[0], server.others[0]
    assert old.pid is not None
    os.kill(old.pid, signal.SIGSTOP)
    begun = time.monotonic()
    assert accepted(busy) is None
    waited = time.monotonic() - begun
    wait_until(lambda: named(server) == new.port, "Sentinel names the replica")
    wait_until(lambda: accepted(busy), "the new primary takes messages")
    took = time.monotonic() - begun
    os.kill(old.pid, signal.SIGCONT)
    ids = []
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        ids += [accepted(busy), accepted(quiet)]

    assert waited < busy.client.settings.socket_timeout / 2
    assert took < busy.client.settings.socket_timeout
    with redis.Redis(unix_socket_path=str(new.socket)) as client:
        there = set(client.hkeys(partition_keys(prefix, PARTITION)[4]))
    assert all(ids) and set(ids) <= there
    for store in (busy, quiet):
        store.close()


def test_a_late_answer_is_not_that_of_the_next_call(
    behind_sentinel: Replicated, prefix: str
) -> None:
    store = store_on(behind_sentinel, prefix, SOCKET_TIMEOUT=0.2)
    assert accepted(store) and accepted(store)  # the second with the script of a lone message
    pid = behind_sentinel.primaries[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    assert accepted(store) is None
    threading.Timer(0.1, os.kill, (pid, signal.SIGCONT)).start()
    # Sent before Redis wakes up: on the connection that has timed out the other answer would come
    # first.
    assert store.cancel_in(PARTITION, [b"nobody knows it."]) == ["NOT_FOUND"]
    store.close()


def test_a_primary_that_was_demoted_refuses_and_is_left(
    behind_sentinel: Replicated, prefix: str
) -> None:
    store = store_on(behind_sentinel, prefix)
    assert accepted(store)
    old, new = behind_sentinel.primaries[0], behind_sentinel.others[0]
    with redis.Redis(unix_socket_path=str(old.socket)) as client:
        client.replicaof("127.0.0.1", str(new.port))
        with pytest.raises(StoreUnavailable):
            store.enqueue(PARTITION, TASKS, [outgoing()])
        client.replicaof("NO", "ONE")
    wait_until(lambda: accepted(store), "it takes messages again")
    store.close()


def test_a_failover_that_somebody_asks_for_loses_nothing_that_is_accepted(
    behind_sentinel: Replicated, prefix: str
) -> None:
    server = behind_sentinel
    store = store_on(server, prefix)
    assert accepted(store)
    new = server.others[0]
    ended, ids = threading.Event(), set[bytes]()

    def send() -> None:
        while not ended.wait(0.002):
            ids.add(accepted(store) or b"")

    sender = threading.Thread(target=send)
    sender.start()
    with redis.Redis(unix_socket_path=str(server.others[-1].socket)) as client:
        client.execute_command("SENTINEL FAILOVER", "mymaster")
    wait_until(lambda: named(server) == new.port, "Sentinel names the replica")
    before = len(ids)
    wait_until(lambda: len(ids) > before + 100, "messages are accepted")
    ended.set()
    sender.join()
    with redis.Redis(unix_socket_path=str(new.socket)) as client:
        there = set(client.hkeys(partition_keys(prefix, PARTITION)[4]))
    assert ids - {b""} <= there
    store.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """With replicas. The test that does harm comes last."""
    with Cluster(replicas=True) as server:
        yield server


@pytest.mark.long
def test_on_a_cluster_replicas_are_waited_for_on_the_node_of_the_partition(
    cluster: Cluster, prefix: str
) -> None:
    store = store_on(cluster, prefix, WAIT_REPLICAS=1)
    assert accepted(store) and accepted(store)
    greedy = store_on(cluster, prefix, WAIT_REPLICAS=2, SOCKET_TIMEOUT=0.2)
    message = outgoing()
    with pytest.raises(NotReplicated):
        greedy.enqueue(PARTITION, TASKS, [message])
    assert store.queries.find(PARTITION, [message[0]])[0] is not None
    with pytest.raises(TooFewReplicas):
        greedy.enqueue(PARTITION, TASKS, [outgoing()])
    for one in (store, greedy):
        one.close()


@pytest.mark.long
def test_a_call_to_a_frozen_node_of_a_cluster_ends_when_a_replica_has_taken_over(
    cluster: Cluster, prefix: str
) -> None:
    store = store_on(cluster, prefix, SOCKET_TIMEOUT=30)
    assert accepted(store)
    port = store.client.redis.get_node_from_key(partition_keys(prefix, PARTITION)[4]).port
    (node,) = [node for node in cluster.primaries if node.port == port]
    assert node.pid is not None
    os.kill(node.pid, signal.SIGSTOP)
    begun = time.monotonic()
    assert accepted(store) is None
    wait_until(lambda: accepted(store), "the new primary takes messages")
    assert time.monotonic() - begun < 15
    store.close()


# What the Sentinels say


class Witness:
    """What a Sentinel knows."""

    def __init__(self, epoch: int, port: int = 1, flags: str = "master", promoted: int = 0) -> None:
        self.epoch, self.port, self.flags, self.promoted = epoch, port, flags, promoted
        self.asked = 0

    def sentinel_masters(self) -> dict[str, Any]:
        self.asked += 1
        if self.flags == "dead":
            raise redis.ConnectionError("Error 111 connecting")
        state = {"ip": "h", "port": self.port, "config-epoch": self.epoch, "flags": self.flags}
        return {
            "m": {**state, "is_odown": "o_down" in self.flags, "is_sdown": "s_down" in self.flags}
        }

    def execute_command(self, *command: str) -> tuple[bytes, bytes]:
        return b"h", str(self.promoted or self.port).encode()


def sentinels(*witnesses: Witness) -> Sentinels:
    asked = Sentinels([("h", 1)], "m")
    asked.sentinels = list(witnesses)
    asked._heard_in = os.getpid()  # nobody is heard
    return asked


def primary(asked: Sentinels) -> int:
    asked.forget()
    return asked.discover_master("m")[1]


def test_the_newest_configuration_that_most_know_is_believed() -> None:
    assert primary(sentinels(Witness(1, 1), Witness(2, 2), Witness(1, 1))) == 2
    assert primary(sentinels(Witness(1, 1, "dead"), Witness(2, 2), Witness(3, 3))) == 3


def test_what_was_heard_is_not_forgotten_because_most_have_not_heard_it() -> None:
    asked = sentinels(Witness(2, 2))
    assert primary(asked) == 2
    asked.sentinels = [Witness(1, 1), Witness(1, 1), Witness(2, 2)]
    assert primary(asked) == 2
    asked.sentinels = [Witness(0, 1), Witness(0, 1), Witness(0, 1)]  # set up anew
    assert primary(asked) == 1


def test_a_replica_that_was_promoted_is_the_primary_before_the_failover_has_ended() -> None:
    assert (
        primary(
            sentinels(Witness(1, 1, "master,o_down", promoted=5), Witness(1, 1, "master,o_down"))
        )
        == 5
    )


@pytest.mark.parametrize(
    "flags", ["master,s_down", "master,s_down,o_down", "master,failover_in_progress"]
)
def test_nobody_is_sent_to_a_primary_that_is_down_or_replaced(flags: str) -> None:
    with pytest.raises(
        redis.ConnectionError, match="No master found for 'm': the Sentinels find it down"
    ):
        primary(sentinels(Witness(1, 1, flags), Witness(1, 1, flags)))


def test_one_sentinel_that_does_not_reach_the_primary_is_not_believed() -> None:
    assert primary(sentinels(Witness(1, 1, "master,s_down"), Witness(1, 1))) == 1


def test_sentinels_that_are_away_are_asked_last() -> None:
    dead, alive = Witness(1, 1, "dead"), [Witness(1, 1), Witness(1, 1)]
    asked = sentinels(dead, *alive)
    assert [primary(asked), primary(asked)] == [1, 1]
    assert (dead.asked, [one.asked for one in alive]) == (1, [2, 2])


def test_many_connections_ask_once() -> None:
    witness = Witness(1, 1)
    asked = sentinels(witness)
    assert [asked.discover_master("m")[1] for _ in range(5)] == [1] * 5
    assert witness.asked == 1
    asked.suspect()
    asked.discover_master("m")
    assert witness.asked == 2


def test_threads_that_wait_do_not_ask_dead_sentinels_one_after_the_other() -> None:
    dead = Witness(1, 1, "dead")
    asked = sentinels(dead)
    for _ in range(5):
        with pytest.raises(redis.ConnectionError, match="No master found"):
            asked.discover_master("m")
    assert dead.asked == 1


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ("+switch-master", "m h 1 h 2"),
        ("+odown", "master m h 1 #quorum 2/2"),
        ("+try-failover", "master m h 1"),
        ("+promoted-slave", "slave h:2 h 2 @ m h 1"),
    ],
)
def test_what_sentinels_say_drops_the_connections_to_the_old_primary(
    event: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness, dropped = Witness(1, 1), []
    asked = sentinels(witness)
    assert primary(asked) == 1
    monkeypatch.setattr(asked, "_drop", lambda: dropped.append(asked.primary))
    asked._heard(
        event, words.replace(" m ", " another ").replace("m h 1 h 2", "another h 1 h 2").split()
    )
    assert (dropped, witness.asked) == ([], 1)
    witness.epoch, witness.port = 2, 2
    asked._heard(event, words.split())
    assert dropped[0] == ("h", 1)
    assert asked.primary == ("h", 2)
    count = len(dropped)
    asked._heard(event, words.split())  # from the next Sentinel: we are there already
    assert len(dropped) == count


def test_a_connection_that_was_made_too_slowly_is_not_used(
    behind_sentinel: Replicated, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_on(behind_sentinel, prefix)
    manager = store.client.redis.connection_pool.sentinel_manager
    connection = store.client.redis.connection_pool.make_connection()
    address = manager.discover_master("mymaster")
    # What listens to the Sentinels may hear of the primary just now.
    monkeypatch.setattr(manager, "_lead_to", lambda primary: None)
    manager.primary = ("127.0.0.1", 1)
    with pytest.raises(redis.ConnectionError, match="another is primary now"):
        connection.connect_to(address)
    store.close()


def test_the_threads_end_with_the_store(behind_sentinel: Replicated, prefix: str) -> None:
    store = store_on(behind_sentinel, prefix)
    before = {thread for thread in threading.enumerate() if thread.name == "delayq-sentinel"}
    assert accepted(store)
    mine = {thread for thread in threading.enumerate() if thread.name == "delayq-sentinel"} - before
    assert len(mine) == 1
    assert all(thread.daemon for thread in mine)
    store.close()
    wait_until(lambda: not any(thread.is_alive() for thread in mine), "they have ended")
