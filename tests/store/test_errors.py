"""errors.py: what went wrong is not executed, unknown, or a bug. With real servers where they can
be made to fail."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from redis.exceptions import RedisClusterException, SlotNotCoveredError

from django_delayq.core.conf import parse_settings
from django_delayq.core.exceptions import (
    DelayQError,
    OutcomeUnknown,
    StoreError,
    StoreForbidden,
    StoreFull,
    StoreLoading,
    StoreReadOnly,
    StoreUnavailable,
)
from django_delayq.store.connection import open_client
from django_delayq.store.lease import Lease
from django_delayq.store.redis_errors import translate
from django_delayq.store.store import RedisStore
from tests.proxy import Proxy
from tests.servers import SINGLE, Server, require, wait_until
from tests.store.factories import (
    DAY_MS,
    DETAIL,
    LATER,
    PARTITION,
    claim,
    dump,
    end_leases,
    ends,
    enqueue,
    enqueue_many,
    key,
    leased,
    outgoing,
    send,
    waiting,
)


@pytest.fixture(scope="session", params=SINGLE)
def server_kind(request: pytest.FixtureRequest) -> str:
    """A cluster's client finds its way around a proxy."""
    require(request.param)
    return str(request.param)


@contextmanager
def another_store(url: str, prefix: str, **settings: Any) -> Iterator[RedisStore]:
    """A store with connections of its own."""
    parsed = parse_settings({"REDIS": url, "PREFIX": prefix, **settings})
    store = RedisStore(open_client(parsed), parsed)
    yield store
    store.close()


@contextmanager
def config(server: Server, name: str, value: object, back: object) -> Iterator[None]:
    with server.client() as client:
        client.config_set(name, value)
        try:
            yield
        finally:  # or a test that fails makes all after it fail
            client.config_set(name, back)


# Not executed


def test_a_refused_connection_is_unavailable(prefix: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    url = f"redis://:secret@127.0.0.1:{port}/0"
    with (
        another_store(url, prefix) as store,
        pytest.raises(StoreUnavailable, match="Nothing was changed") as error,
    ):
        enqueue(store)
    assert f"Cannot reach Redis at redis://:***@127.0.0.1:{port}/0" in str(error.value)


def test_a_missing_socket_is_unavailable(prefix: str) -> None:
    nowhere = another_store("unix:///nowhere/redis.sock", prefix)
    with nowhere as store, pytest.raises(StoreUnavailable, match="Nothing was changed"):
        store.queries.stats(PARTITION)


def test_a_read_only_replica_refuses_and_nothing_changes(store: RedisStore, server: Server) -> None:
    lease, message_id = claim(store), enqueue(store, when=LATER)
    before = dump(store)
    with replica(server):
        for call in (
            lambda: enqueue(store),
            lambda: store.ack(PARTITION, [(lease, DETAIL)]),
            lambda: store.cancel_in(PARTITION, [message_id]),
            lambda: store.workers.beat("worker", "{}"),
        ):
            with pytest.raises(StoreReadOnly):
                call()
        assert dump(store) == before
    assert store.ack(PARTITION, [(lease, DETAIL)]) == []


@contextmanager
def replica(server: Server) -> Iterator[None]:
    """The server follows a primary that is not there."""
    with server.client() as client:
        client.replicaof("127.0.0.1", 1)
        yield
        client.replicaof("NO", "ONE")


def test_a_replica_without_its_primary_is_unavailable(store: RedisStore, server: Server) -> None:
    with (
        config(server, "replica-serve-stale-data", "no", "yes"),
        replica(server),
        pytest.raises(StoreUnavailable),
    ):
        store.queries.stats(PARTITION)


def test_a_primary_without_its_replicas_is_read_only(store: RedisStore, server: Server) -> None:
    with (
        config(server, "min-replicas-to-write", 1, 0),
        pytest.raises(StoreReadOnly, match="replicas"),
    ):
        enqueue(store)


def test_a_full_redis_says_what_to_do(store: RedisStore, server: Server) -> None:
    with config(server, "maxmemory", 1, 0), pytest.raises(StoreFull, match="Raise maxmemory"):
        enqueue(store)


def test_a_missing_password_is_forbidden(server: Server, prefix: str) -> None:
    with server.client() as admin, another_store(server.url, prefix) as store:
        admin.config_set("requirepass", "secret")
        try:
            with pytest.raises(StoreForbidden):
                store.clock_ms()
        finally:
            admin.config_set("requirepass", "")


def test_a_wrong_password_is_forbidden_and_not_shown(server: Server, prefix: str) -> None:
    url = server.url.replace("redis://", "redis://nobody:s3cret@")
    with another_store(url, prefix) as store, pytest.raises(StoreForbidden) as error:
        store.clock_ms()
    assert "s3cret" not in str(error.value)


def test_a_server_busy_with_a_script_is_unavailable(store: RedisStore, server: Server) -> None:
    with endless_script(server), pytest.raises(StoreUnavailable, match="BUSY"):
        while True:
            store.queries.stats(PARTITION)
    assert store.queries.stats(PARTITION).waiting == 0


@contextmanager
def endless_script(server: Server) -> Iterator[None]:
    def run() -> None:
        with server.client() as client, pytest.raises(redis.ResponseError):
            client.eval("while true do end", 0)

    def kill() -> bool:
        with server.client() as client:
            return bool(client.script_kill())

    with config(server, "lua-time-limit", 5, 5000):
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            wait_until(kill, "the script has ended")
            thread.join()


def test_too_many_clients_are_unavailable(store: RedisStore, server: Server, prefix: str) -> None:
    store.clock_ms()
    with another_store(server.url, prefix) as late, config(server, "maxclients", 1, 10_000):
        error = failure(late.clock_ms)
    assert isinstance(error, StoreUnavailable | OutcomeUnknown)


def failure(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except DelayQError as error:
        return error
    return None


# A bug


def test_a_key_of_another_type_is_a_bug_and_nothing_changes(store: RedisStore) -> None:
    store.client.command("SET", key(store, "messages"), "a string")
    with pytest.raises(StoreError, match="wrong kind"):
        enqueue(store)
    assert not store.client.command("EXISTS", key(store, "normal"))


# Unknown: the connection breaks after the call was sent


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.url) as proxy:
        yield proxy


@pytest.fixture
def far(proxy: Proxy, prefix: str) -> Iterator[RedisStore]:
    """The same partition through the proxy, with scripts and connection warm."""
    with another_store(proxy.url, prefix, SOCKET_TIMEOUT=0.3) as store:
        store.queries.stats(PARTITION)
        yield store


def unknown(proxy: Proxy, call: Callable[[], Any]) -> None:
    """The server executes the call, and its answer is lost."""
    proxy.mode = "drop_reply"
    with pytest.raises(OutcomeUnknown):
        call()
    proxy.mode = "forward"


def test_a_message_whose_answer_was_lost_is_enqueued_once(
    store: RedisStore, proxy: Proxy, far: RedisStore
) -> None:
    enqueue(store)  # Redis knows the script: else the answer that is lost is NOSCRIPT
    message = outgoing(when=LATER)
    unknown(proxy, lambda: send(far, message))
    before = dump(store)
    assert send(far, message) == {0: "SAME"}
    assert dump(store) == before
    assert message[0] in waiting(store)


@pytest.mark.parametrize("how", ["ack", "retry", "dead", "release"])
def test_a_run_whose_settlement_was_lost_is_settled_once(
    store: RedisStore, proxy: Proxy, far: RedisStore, how: str
) -> None:
    settle = SETTLE[how]
    assert settle(store, claim(store), False) == []
    lease = claim(store, when="5")
    unknown(proxy, lambda: settle(far, lease, False))
    before = dump(store)
    assert lease.id not in leased(store)
    assert settle(far, lease, True) == []
    assert (dump(store), lease.lost) == (before, False)


SETTLE: dict[str, Callable[[RedisStore, Lease, bool], Any]] = {
    "ack": lambda store, lease, again: store.ack(PARTITION, [(lease, DETAIL)], repeated=again),
    "retry": lambda store, lease, again: store.nack(
        PARTITION, [(lease, DAY_MS, True, DETAIL)], repeated=again
    ),
    "dead": lambda store, lease, again: store.nack(
        PARTITION, [(lease, None, True, DETAIL)], repeated=again
    ),
    "release": lambda store, lease, again: store.release(PARTITION, [lease], repeated=again),
}


def test_a_claim_whose_answer_was_lost_is_found_by_its_token(
    store: RedisStore, proxy: Proxy, far: RedisStore
) -> None:
    ids, token = enqueue_many(store, 3), b"t" * 16
    store.claim(PARTITION, 0)
    unknown(proxy, lambda: far.claim(PARTITION, 3, token))
    assert far.queries.leased_under(PARTITION, token) == ids


def test_a_cancel_whose_answer_was_lost_has_happened_once(
    store: RedisStore, proxy: Proxy, far: RedisStore
) -> None:
    message_id = enqueue(store)
    store.cancel_in(PARTITION, [b"x" * 16])
    unknown(proxy, lambda: far.cancel_in(PARTITION, [message_id]))
    assert far.cancel_in(PARTITION, [message_id]) == ["NOT_FOUND"]
    assert ends(store) == [(message_id, "cancelled")]


def test_a_reclaim_whose_answer_was_lost_has_happened_once(
    store: RedisStore, proxy: Proxy, far: RedisStore
) -> None:
    lease = claim(store)
    store.reclaim(PARTITION)
    end_leases(store)
    unknown(proxy, lambda: far.reclaim(PARTITION))
    assert far.reclaim(PARTITION)[:2] == ([], [])
    assert claim(store, lease.id).attempts.crashes == 1


def test_silence_is_unknown_after_the_timeout(
    store: RedisStore, proxy: Proxy, far: RedisStore
) -> None:
    proxy.mode = "black_hole"
    with pytest.raises(OutcomeUnknown, match="broke before the answer came"):
        enqueue(far)
    proxy.mode = "forward"
    assert waiting(store) == {}
    assert enqueue(far) in waiting(store)


def test_connections_that_broke_while_idle_are_made_anew(proxy: Proxy, far: RedisStore) -> None:
    proxy.cut()
    enqueue(far)


def test_a_server_that_went_down_is_unavailable(proxy: Proxy, far: RedisStore) -> None:
    proxy.refuse()
    proxy.cut()
    with pytest.raises(StoreUnavailable, match="Nothing was changed"):
        enqueue(far)


# The table, for what servers do not do on demand


CASES = [
    (redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory"), StoreLoading),
    (redis.ResponseError("LOADING Redis is loading the dataset in memory"), StoreLoading),
    (redis.ResponseError("MISCONF Redis is configured to save RDB snapshots, but"), StoreReadOnly),
    (redis.exceptions.ReadOnlyError("You can't write against a read only replica."), StoreReadOnly),
    (
        redis.ResponseError(
            "user_script: -OOM command not allowed when used memory > 'maxmemory'."
        ),
        StoreFull,
    ),
    (redis.exceptions.ClusterDownError("The cluster is down"), StoreUnavailable),
    (redis.exceptions.MasterDownError("Link with MASTER is down"), StoreUnavailable),
    (
        redis.exceptions.TryAgainError("Multiple keys request during rehashing of slot"),
        StoreUnavailable,
    ),
    (redis.exceptions.MovedError("12182 127.0.0.1:7002"), StoreUnavailable),
    (redis.ConnectionError("max number of clients reached"), StoreUnavailable),
    (redis.exceptions.MaxConnectionsError("Too many connections"), StoreUnavailable),
    (
        redis.ConnectionError("Error -2 connecting to nowhere:6379. Name or service not known."),
        StoreUnavailable,
    ),
    (redis.TimeoutError("Timeout connecting to server"), StoreUnavailable),
    (redis.sentinel.MasterNotFoundError("No master found for 'mymaster'"), StoreUnavailable),
    (
        RedisClusterException("Redis Cluster cannot be connected. Please provide at least one"),
        StoreUnavailable,
    ),
    (SlotNotCoveredError('Slot "5" is not covered by the cluster.'), StoreUnavailable),
    (redis.TimeoutError("Timeout reading from 127.0.0.1:6379"), OutcomeUnknown),
    (redis.ConnectionError("Connection closed by server."), OutcomeUnknown),
    (
        redis.ConnectionError(
            "Error while reading from 127.0.0.1:6379 : (104, 'Connection reset by peer')"
        ),
        OutcomeUnknown,
    ),
    (redis.ResponseError("ERR user_script:12: attempt to index a nil value"), StoreError),
    (redis.DataError("Invalid input of type: 'NoneType'."), StoreError),
]


@pytest.mark.parametrize(
    ("error", "kind"), CASES, ids=lambda case: getattr(case, "__name__", str(case)[:30])
)
def test_every_error_has_one_meaning(error: Exception, kind: type[DelayQError]) -> None:
    translated = translate(error, "redis://:***@host")
    assert type(translated) is kind
    assert str(error).rstrip(".") in str(translated) and "redis://:***@host" in str(translated)


def test_a_call_that_broke_is_unknown_even_when_the_cluster_is_then_not_found() -> None:
    cases = {
        "Connection closed by server.": OutcomeUnknown,
        "Error 111 connecting to h:1.": StoreUnavailable,
    }
    for text, kind in cases.items():
        try:
            try:
                raise redis.ConnectionError(text)
            except redis.ConnectionError:
                raise RedisClusterException("Redis Cluster cannot be connected.") from ValueError()
        except RedisClusterException as error:
            assert type(translate(error, "here")) is kind
