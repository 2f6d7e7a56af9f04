"""The services that need the database, and the check that its tables are there. `run_delayq` starts
them in a worker's process, or alone with --archiver."""

from __future__ import annotations

import logging

from django.apps import apps
from django.db import Error, connections

from ..archive.archiver import IDLE, Archiver
from ..archive.month_maker import MonthMaker
from ..archive.retention import Retention
from ..core.conf import get_settings
from ..core.exceptions import ConfigurationError
from ..core.service import Service
from ..operators.bulk_runner import BulkRunner
from ..outbox.reconciler import Reconciler
from ..outbox.relay import Relay
from ..outbox.ticker import Ticker
from ..stats.stats_service import StatsService
from ..stats.unserved import UnservedWatch
from ..store.store import RedisStore
from ..tasks import registry
from ..worker.worker import Worker

logger = logging.getLogger("delayq.worker")

#: Seconds between two polls of an archiver that no worker wakes when messages end.
POLL = 0.5


def sql_services(store: RedisStore, name: str, worker: Worker | None = None) -> tuple[Service, ...]:
    """The services that need the database, for a worker's process or for a process of their own.

    In a worker's process the worker wakes them when messages end, and they do little while tasks
    run.
    """

    def tasks_run() -> bool:
        return worker is not None and bool(worker.shared.held)

    alerters: tuple[Service, ...] = ()
    if get_settings().alerts:
        from ..stats.alerts.alerter import Alerter

        alerters = (Alerter(store),)
    in_postgresql = connections[get_settings().database].vendor == "postgresql"
    tickers = (Ticker(store),) if registry.recurring_tasks() else ()
    return (
        Archiver(store, name, tasks_run=tasks_run, interval=IDLE if worker else POLL),
        Relay(store),
        Reconciler(store),
        BulkRunner(store, name, tasks_run=tasks_run),
        StatsService(store, tasks_run=tasks_run),
        UnservedWatch(store),
        *alerters,
        *tickers,
        *((MonthMaker(store),) if in_postgresql else ()),
        *((Retention(store, tasks_run=tasks_run),) if get_settings().archive_retention else ()),
    )


def check_tables() -> None:
    """Raise ConfigurationError when the database lacks our tables.

    A database that is away does not stop the worker: the services wait for it.
    """
    alias = get_settings().database
    if alias not in connections:
        raise ConfigurationError(
            f'DELAYQ["DATABASE"] is {alias!r}, which is not in DATABASES. Add it there, or name '
            "another database."
        )
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
            f"django_delayq{option}. Or start with --no-archiver when another process archives."
        )
