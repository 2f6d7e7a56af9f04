"""The services that join Redis with the database, and who hosts them: a worker, or `run_delayq
--archiver` alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.apps import apps
from django.db import Error, connections

from ..archive.archiver import Archiver
from ..core.conf import get_settings
from ..core.exceptions import ConfigurationError
from ..core.service import Service
from ..operators.bulk_runner import BulkRunner
from ..outbox.reconciler import Reconciler
from ..outbox.relay import Relay
from ..stats.stats_service import Statistician
from ..stats.unserved import UnservedWatch
from ..store.store import RedisStore
from ..worker.worker import Worker

logger = logging.getLogger("delayq.worker")

#: Seconds between two looks of an archiver that nobody tells when messages end.
LOOK = 0.5


def beside(worker: Worker) -> Sequence[Service]:
    """In a worker's process: told when messages end, and modest while tasks run."""
    store, name = worker.shared.store, worker.shared.name

    def tasks_run() -> bool:
        return bool(worker.shared.held)

    bulk = BulkRunner(store, name, tasks_run=tasks_run)
    statistician = Statistician(store, tasks_run=tasks_run)
    archiver = Archiver(store, name, tasks_run=tasks_run)
    return archiver, Relay(store), Reconciler(store), bulk, statistician, UnservedWatch(store)


def alone(store: RedisStore, name: str) -> Sequence[Service]:
    """In a process of their own."""
    return (
        Archiver(store, name, interval=LOOK),
        Relay(store),
        Reconciler(store),
        BulkRunner(store, name),
        Statistician(store),
        UnservedWatch(store),
    )


def check_tables() -> None:
    """Raise ConfigurationError when the database lacks our tables. One that is away is no reason
    not to start."""
    alias = get_settings().database
    if alias not in connections:
        raise ConfigurationError(f'DELAYQ["DATABASE"] is {alias!r}, which is not in DATABASES.')
    try:
        with connections[alias].cursor() as cursor:
            there = set(connections[alias].introspection.table_names(cursor))
    except Error as error:
        logger.warning("database %r does not answer; the archive waits for it: %s", alias, error)
        connections[alias].close()
        return
    models = [
        model for model in apps.get_app_config("django_delayq").get_models() if model._meta.managed
    ]
    if missing := sorted({model._meta.db_table for model in models} - there):
        option = "" if alias == "default" else f" --database {alias}"
        raise ConfigurationError(
            f"Database {alias!r} has no table {', '.join(missing)}. Run: manage.py migrate "
            f"django_delayq{option} (or "
            "start with --no-archiver when another process archives)."
        )
