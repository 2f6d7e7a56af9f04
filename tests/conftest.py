"""Real servers, each kind started once; every test has a prefix of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from django_delayq.conf import parse_settings
from django_delayq.store import get_store
from django_delayq.store.connection import connect
from django_delayq.store.redis import RedisStore
from tests.servers import Server, binary_of, launcher

hypothesis_settings.register_profile(
    "tests",
    derandomize=True,  # the same examples in every run: a red build is red again on a laptop
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
hypothesis_settings.load_profile("tests")


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], Server]]:
    """Gives the running server of a kind; starts it at the first use."""
    with ExitStack() as stack:
        running: dict[str, Server] = {}

        def server(kind: str) -> Server:
            if kind not in running:
                running[kind] = stack.enter_context(launcher(kind))
            return running[kind]

        yield server


@pytest.fixture(scope="session")
def server_kind() -> str:
    """One kind; tests/store/conftest.py has all of them."""
    return "redis7" if binary_of("redis7") else "valkey"


@pytest.fixture(scope="session")
def server(servers: Callable[[str], Server], server_kind: str) -> Server:
    return servers(server_kind)


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[Any]:
    """One connected client per server: a cluster's client is slow to make."""
    client = connect(parse_settings({"REDIS": server.url}))
    yield client
    client.close()


@pytest.fixture
def prefix() -> str:
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def store(server: Server, client: Any, prefix: str) -> RedisStore:
    """A store whose keys no other test sees."""
    return RedisStore(client, parse_settings({"REDIS": server.url, "PREFIX": prefix}))


@pytest.fixture
def delayq(settings: Any, server: Server, prefix: str) -> Iterator[RedisStore]:
    """The whole package works on a real server: `get_store()` and every public call."""
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": server.url, "PREFIX": prefix}
    store = get_store()
    yield store
    store.close()
