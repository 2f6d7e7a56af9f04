"""Runs every store test against each kind of server."""

from __future__ import annotations

import pytest

# As fixtures of their own: those of tests/conftest.py may be there already, with a server of
# another kind.
from tests.conftest import client, server  # noqa: F401
from tests.servers import require


@pytest.fixture(scope="session", params=["redis7", "valkey", "redis62", "cluster"])
def server_kind(request: pytest.FixtureRequest) -> str:
    require(request.param)
    return str(request.param)
