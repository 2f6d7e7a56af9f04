"""Runs every store test against each kind of server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq.conf import parse_settings
from django_delayq.store.connection import connect
from tests.servers import Server, require


@pytest.fixture(scope="session", params=["redis7", "valkey", "redis62", "cluster"])
def server_kind(request: pytest.FixtureRequest) -> str:
    require(request.param)
    return str(request.param)


# Fixtures of their own: those of tests/conftest.py may be there already, with a server of another kind.


@pytest.fixture(scope="session")
def server(servers: Callable[[str], Server], server_kind: str) -> Server:
    return servers(server_kind)


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[Any]:
    client = connect(parse_settings({"REDIS": server.url}))
    yield client
    client.close()
