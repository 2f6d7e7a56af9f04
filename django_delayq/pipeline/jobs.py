"""The jobs: each module has run(spark, params, tell), which gives a Report."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .params import Params, Report, Tell, ignore
from .session import check_session

#: Name of a job -> what it does, in a line.
JOBS = {
    "export": "copy finished messages from the archive to the lake, now or at an interval",
    "stats": "compute counts and histograms per hour and day from the lake",
    "forecast": "count what will fall due, from Redis and the outbox",
    "audit": "compare Redis, outbox, archive and lake, and repair what differs",
    "schedule": "enqueue a message per row of a file, a table or a query",
    "replay": "enqueue dead letters again",
}

_MODULES = {
    "export": ".export.export",
    "stats": ".stats.stats",
    "forecast": ".forecast.forecast",
    "audit": ".audit.audit",
    "schedule": ".bulk_load.schedule",
    "replay": ".bulk_load.replay",
}


def run(name: str, spark: Any, params: Params, tell: Tell = ignore) -> Report:
    """Run one of JOBS in this session. Raises Refused and other DelayQErrors: then nothing is half
    done."""
    check_session(spark)
    report: Report = import_module(_MODULES[name], __package__).run(spark, params, tell)
    return report
