"""Real servers, each kind started once; every test has a prefix of its own."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import TransactionTestCase
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from django_delayq import delayed_task
from django_delayq.archive import archiver
from django_delayq.core.conf import parse_settings
from django_delayq.operators import walk
from django_delayq.operators.bulk_runner import BulkRunner
from django_delayq.store import finished, get_store
from django_delayq.store.connection import open_client
from django_delayq.store.keys import wakeups_channel
from django_delayq.store.store import RedisStore
from django_delayq.tasks import naming, registry
from tests.databases.partitioned import partition_now
from tests.hands import Hands
from tests.servers import Server, binary_of, launcher

hypothesis_settings.register_profile(
    "tests",
    derandomize=True,  # the same examples in every run: a red build is red again on a laptop
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
hypothesis_settings.load_profile("tests")


@pytest.fixture(scope="session", autouse=True)
def quick_flush() -> None:
    """Tables are emptied after a test with transactions by DELETE, not by Django's flush: that also
    makes all content types and permissions anew, and takes 60 to 200 ms for each of hundreds of
    tests."""
    TransactionTestCase._fixture_teardown = _empty_tables  # type: ignore[method-assign]


def _empty_tables(case: Any) -> None:
    for alias in case._databases_names(include_mirrors=False):
        connection = connections[alias]
        there = set(connection.introspection.table_names())
        with (
            connection.constraint_checks_disabled(),
            transaction.atomic(using=alias),
            connection.cursor() as cursor,
        ):
            for model in reversed(apps.get_models(include_auto_created=True)):
                table = model._meta.db_table
                if model._meta.app_label not in ("contenttypes", "auth") and table in there:
                    cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """DELAYQ_TEST_PARTITIONED=1: the archive of PostgreSQL has a partition for each month, the last
    one and the next ones."""
    if os.environ.get("DELAYQ_TEST_PARTITIONED", "0") == "1":
        with django_db_blocker.unblock():
            partition_now()
    yield
    with django_db_blocker.unblock():
        left = _sessions_left()
    assert not left, f"a thread has left its connection open; what it did last: {left}"


def _sessions_left() -> list[str]:
    """The last statements of other sessions in the test database of PostgreSQL, which cannot be
    dropped then."""
    if connection.vendor != "postgresql":
        return []
    with connection.cursor() as cursor:
        for _ in range(20):
            cursor.execute(
                "SELECT state || chr(58) || chr(32) || query FROM pg_stat_activity WHERE datname = current_database() "
                "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            if not (left := [query for (query,) in cursor.fetchall()]):
                break
            time.sleep(0.1)
    return left


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
    client = open_client(parse_settings({"REDIS": server.url}))
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
    naming.kept_names.clear()
    store = get_store()
    yield store
    store.close()


@pytest.fixture
def raising(settings: Any) -> None:
    """What Redis cannot take is an error, and not the outbox's. For usefixtures(): it comes before
    `delayq`."""
    settings.DELAYQ = {**settings.DELAYQ, "ON_REDIS_ERROR": "raise"}


@pytest.fixture
def split(settings: Any, delayq: RedisStore) -> Callable[[int], RedisStore]:
    """Gives the topic "crowd" another number of partitions, as a deploy would."""

    def raise_to(count: int) -> RedisStore:
        settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": count}}}
        return get_store()

    return raise_to


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A registry that forgets what the test declares."""
    monkeypatch.setattr(registry, "by_name", dict(registry.by_name))
    monkeypatch.setattr(registry, "by_code", dict(registry.by_code))
    return registry.by_name


@pytest.fixture
def gather_cards(declared: dict[str, Any]) -> Any:
    """A batch task with a secret argument, for one test: nobody could search for an argument in the
    others."""
    from tests.app.batch_tasks import note

    options: dict[str, Any] = {"batch": 500, "secret": ("arg1",), "max_attempts": 1}
    return delayed_task(name="gather_cards", topic="gathers", **options)(note)


@pytest.fixture
def nothing_recurs(declared: dict[str, Any]) -> dict[str, Any]:
    """The same, without the recurring tasks of other modules."""
    for name in registry.recurring_tasks():
        del declared[name]
    return declared


@pytest.fixture
def quiet() -> Iterator[None]:
    """Logging, signals and what tasks have seen are as before, whatever run_delayq does in this
    process."""
    from tests.app.tasks import seen

    seen.clear()
    logger = logging.getLogger("delayq")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))


@pytest.fixture
def run_delayq(
    delayq: RedisStore, transactional_db: None
) -> Iterator[Callable[..., tuple[str, str]]]:
    """Runs the command, archiver and all; gives what it wrote to stdout and stderr."""
    before = set(threading.enumerate())

    def call(*args: str, **options: Any) -> tuple[str, str]:
        out, err = StringIO(), StringIO()
        call_command("run_delayq", *args, stdout=out, stderr=err, **options)
        return out.getvalue(), err.getvalue()

    yield call
    delayq.client.redis.publish(wakeups_channel(delayq.client.prefix), "the end")
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("delayq"):
            thread.join(5)


@pytest.fixture
def hands(
    delayq: RedisStore, transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hands]:
    """A worker with its services, driven by hand. Nothing has to be waited for."""
    from tests.app.tasks import seen

    seen.clear()
    monkeypatch.setattr(archiver, "GATHER", 0.0)
    monkeypatch.setattr(archiver, "TAKE_OVER_INTERVAL", 0.0)
    monkeypatch.setattr(finished, "TAKE_OVER_AFTER_MS", 0)
    yield Hands(delayq)


@pytest.fixture
def runner(hands: Hands) -> BulkRunner:
    """Runs bulk operations, one at each call."""
    return BulkRunner(hands.store, "first")


@pytest.fixture
def other(hands: Hands) -> BulkRunner:
    """The same in another process."""
    return BulkRunner(hands.store, "other")


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks change a few rows in each transaction."""
    from tests.bulk_hands import BATCH

    monkeypatch.setattr(walk, "BATCH", BATCH)
