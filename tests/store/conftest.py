"""Runs the store's tests against each kind of server: all of them on one, the contract on the others."""

from __future__ import annotations

import pytest

# As fixtures of their own: those of tests/conftest.py may be there already, with a server of
# another kind.
from tests.conftest import client, server  # noqa: F401
from tests.servers import require

KINDS = ["redis7", "valkey", "redis62", "cluster"]


@pytest.fixture(scope="session", params=KINDS)
def server_kind(request: pytest.FixtureRequest) -> str:
    require(request.param)
    return str(request.param)


@pytest.fixture
def histories(server_kind: str) -> int:
    """How many histories a state machine lives through."""
    return 40 if server_kind == KINDS[0] else 100


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test` leaves to `make test-all` and `make test-long`.

    On the other servers the contract is enough: the first test of each file, which is that of the
    transition itself. The random walks through the states take long there.
    """
    first: dict[str, str] = {}
    for item in items:
        kind = item.callspec.params.get("server_kind") if hasattr(item, "callspec") else None
        name = getattr(item, "originalname", item.name)
        if kind not in KINDS:
            continue
        contract = first.setdefault(item.path.name, name) == name
        if kind != KINDS[0] and not contract:
            item.add_marker(pytest.mark.elsewhere)
        elif kind != KINDS[0] and item.path.name.endswith("_machine.py"):
            item.add_marker(pytest.mark.long)
