"""Worker processes are forked: none of them may use a connection of the parent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from django.db import connection

from django_delayq.core import connections as module
from django_delayq.core.connections import close_before_fork

pytestmark = [pytest.mark.databases, pytest.mark.django_db(transaction=True)]


def test_a_connection_is_closed() -> None:
    connection.ensure_connection()
    if connection.vendor == "sqlite":
        pytest.skip("the test database is in memory, and stays open")
    close_before_fork()
    assert connection.connection is None


def test_a_pool_is_closed_with_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL has pools")
    pytest.importorskip("psycopg_pool")
    pooled = connection.copy("pooled")
    pooled.settings_dict["OPTIONS"] = {**pooled.settings_dict["OPTIONS"], "pool": True}
    monkeypatch.setattr(
        module, "connections", SimpleNamespace(all=lambda initialized_only: [pooled])
    )
    pooled.ensure_connection()
    pool = pooled.pool
    close_before_fork()
    assert pool.closed
    pooled.ensure_connection()  # as a child does
    assert pooled.pool is not pool and pooled.is_usable()
    close_before_fork()
