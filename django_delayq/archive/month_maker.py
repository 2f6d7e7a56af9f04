"""Makes the partitions of coming months in time, where the archive is partitioned."""

from __future__ import annotations

import logging
from typing import Any

from django.db import ProgrammingError, connections

from ..core.conf import get_settings
from ..core.database import reached
from ..core.exceptions import ArchiveBusy
from ..core.service import Service
from ..store.store import RedisStore
from .months import make_months

logger = logging.getLogger("delayq.worker")

#: Seconds between two looks.
INTERVAL = 3600.0
#: SQLSTATE of a change by a role that does not own the table.
_NOT_OWNER = "42501"


class MonthMaker(Service):
    """Runs in each process that archives into PostgreSQL. One of them makes months at a time."""

    name = "month maker"
    interval = INTERVAL

    def __init__(self, store: RedisStore) -> None:
        super().__init__()
        self._store = store
        self._warned = False
        self.made = 0

    @property
    def figures(self) -> dict[str, Any]:
        """Partitions that were made here."""
        return {"made": self.made}

    def run_once(self) -> float:
        """Make what is missing. A month that cannot be made is no loss: its rows come into the
        default partition, and move when it is made.

        Raises StoreUnavailable and DatabaseUnavailable: the service tries again.
        """
        if not self._store.workers.acquire_lock("month-maker", int(INTERVAL * 900)):
            return self.interval
        try:
            with reached():
                made = self._make()
        except ArchiveBusy as error:
            logger.warning("the months of the archive are made later: %s", error)
            return self.interval
        finally:
            # Else each process would hold one for an hour.
            connections[get_settings().database].close()
        self.made += len(made)
        if made:
            logger.info("the archive has new partitions: %s", ", ".join(made))
        return self.interval

    def _make(self) -> list[str]:
        try:
            return make_months(connections[get_settings().database])
        except ProgrammingError as error:
            if getattr(error.__cause__, "sqlstate", "") != _NOT_OWNER:
                raise
        if not self._warned:
            self._warned = True
            logger.warning(
                "the archive lacks partitions of coming months, and this user of the database does "
                "not own its table: run manage.py delayq partition-archive as the owner each month"
            )
        return []
