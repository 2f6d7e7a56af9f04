"""connection_pool.py: connections are used again, and made anew when nobody can trust them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.credentials import UsernamePasswordCredentialProvider

from django_delayq.core.conf import parse_settings
from django_delayq.store.client import Read
from django_delayq.store.connection import open_client
from django_delayq.store.connection_pool import ConnectionPool, hang_up
from django_delayq.store.keys import partition_keys
from django_delayq.store.store import RedisStore
from tests.servers import SINGLE, Server
from tests.store.factories import PARTITION, outgoing, send

#: The client of a cluster has a pool for each node.
pytestmark = pytest.mark.parametrize("server_kind", SINGLE, indirect=True, scope="session")


@pytest.fixture
def pool(server: Server) -> Iterator[ConnectionPool]:
    client = open_client(parse_settings({"REDIS": server.url}))
    yield client.connection_pool
    client.close()


def ping(pool: ConnectionPool) -> Any:
    """The connection that has answered; it is given back."""
    connection = pool.get_connection()
    connection.send_command("PING")
    assert connection.read_response() == b"PONG"
    pool.release(connection)
    return connection


def test_an_idle_connection_is_used_again(pool: ConnectionPool) -> None:
    first = ping(pool)
    sock = first._sock
    assert ping(pool) is first and first._sock is sock
    assert (len(pool._available_connections), len(pool._in_use_connections)) == (1, 0)


def test_each_caller_has_a_connection_of_its_own(pool: ConnectionPool) -> None:
    first, second = pool.get_connection(), pool.get_connection()
    assert first is not second
    for connection in (first, second, first):  # the second time it is not taken back again
        pool.release(connection)
    assert len(pool._available_connections) == 2


def test_a_connection_that_the_server_has_closed_is_made_anew(
    pool: ConnectionPool, client: Any
) -> None:
    connection = pool.get_connection()
    connection.send_command("CLIENT", "ID")
    client.client_kill_filter(_id=connection.read_response())
    pool.release(connection)
    ping(pool)


def test_an_answer_that_nobody_has_read_is_not_that_of_the_next_call(pool: ConnectionPool) -> None:
    connection = pool.get_connection()
    connection.send_command("ECHO", "left behind")
    while not connection.can_read(1):
        pass
    pool.release(connection)
    ping(pool)


def test_a_connection_in_use_is_made_anew_after_a_hang_up(pool: ConnectionPool) -> None:
    connection = pool.get_connection()
    sock = connection._sock
    hang_up(pool, in_use=False)
    pool.release(connection)
    assert ping(pool)._sock is not sock


class Interrupt(BaseException):
    """As a Ctrl-C, or a time limit by a signal."""


@pytest.mark.parametrize("call", ["script", "command", "several reads"])
def test_the_answer_of_a_call_that_was_interrupted_is_not_that_of_the_next(
    store: RedisStore, server: Server, client: Any, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    ours = RedisStore(None, store.client.settings)
    first, second = outgoing(body=b"first"), outgoing(body=b"second")
    send(ours, first, second)
    messages = partition_keys(store.client.prefix, PARTITION)[4]
    records = client.hgetall(messages)

    def record_of(message_id: bytes) -> bytes:
        if call == "script":
            (found,) = ours.queries.find(PARTITION, [message_id])
            return found.record if found else b""
        if call == "command":
            return ours.client.command("HGET", messages, message_id)
        return ours.client.read_all([Read("HGET", None, (messages, message_id))] * 2)[1]

    def interrupted(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise Interrupt

    assert record_of(first.id) == records[first.id]
    client.execute_command("CLIENT", "PAUSE", 100, "ALL")
    with monkeypatch.context() as patch:
        patch.setattr(redis.connection.AbstractConnection, "read_response", interrupted)
        with pytest.raises(Interrupt):
            record_of(first.id)
    assert record_of(second.id) == records[second.id]
    ours.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_has_connections_of_its_own(pool: ConnectionPool) -> None:
    before = ping(pool)
    child = os.fork()
    if not child:
        code = 1
        try:
            code = int(ping(pool) is before)
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert ping(pool) is before


def test_redis_py_hears_of_each_release_where_passwords_change(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[Any] = []
    provider = UsernamePasswordCredentialProvider()
    pool = ConnectionPool.from_url(server.url, credential_provider=provider)
    monkeypatch.setattr(redis.ConnectionPool, "release", lambda self, one: released.append(one))
    connection = pool.make_connection()
    pool._in_use_connections.add(connection)
    pool.release(connection)
    assert released == [connection]
