"""Tells OpenLineage when a job begins and how it ends: what it reads and writes, and how much.

Only where OpenLineage is configured by its own environment variables (jobs.py looks at them) and
its client is installed (extra `openlineage`). An event that cannot be sent fails no job.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from .. import __version__
from .params import Database, Params, Report, Tell

PRODUCER = f"https://pypi.org/project/django-delayq/{__version__}"
#: The namespace of the jobs, unless OPENLINEAGE_NAMESPACE names another.
NAMESPACE = "django_delayq"


class DatasetName(NamedTuple):
    """A data set as OpenLineage names it."""

    namespace: str
    name: str


class JobRun:
    """What a job fills in while it runs."""

    report: Report | None = None


@contextmanager
def lineage_of(name: str, params: Params, tell: Tell) -> Iterator[JobRun]:
    """Tell the beginning and the end of a job that runs within."""
    run = JobRun()
    try:
        events = _RunEvents(name, params, tell)
    except ImportError:
        tell(
            "OpenLineage is configured, but its client is not installed: "
            "pip install 'django-delayq[openlineage]'."
        )
        yield run
        return
    events.send("START")
    try:
        yield run
    except BaseException as error:
        events.send("ABORT" if isinstance(error, KeyboardInterrupt) else "FAIL", error=str(error))
        raise
    events.send("COMPLETE", report=run.report)


class _RunEvents:
    """Those of one run."""

    def __init__(self, name: str, params: Params, tell: Tell) -> None:
        from openlineage.client import OpenLineageClient, event_v2

        self._client, self._kinds, self._tell = OpenLineageClient(), event_v2, tell
        self._name, self._run_id = f"pipeline.{name}", str(uuid4())
        self._inputs, self._outputs = data_sets(name, params)

    def send(self, state: str, *, report: Report | None = None, error: str = "") -> None:
        """An event. An error of sending is told, and raised to nobody."""
        kinds = self._kinds
        try:
            event = kinds.RunEvent(
                eventTime=datetime.now(tz=timezone.utc).isoformat(),
                eventType=kinds.RunState[state],
                producer=PRODUCER,
                run=kinds.Run(self._run_id, self._facets(report, error)),
                job=kinds.Job(os.environ.get("OPENLINEAGE_NAMESPACE", NAMESPACE), self._name),
                inputs=[kinds.InputDataset(*one) for one in self._inputs],
                outputs=[kinds.OutputDataset(*one) for one in self._outputs],
            )
            self._client.emit(event)
        except Exception as failed:  # whatever its transport raises
            self._tell(f"The event {state} was not sent to OpenLineage: {failed}")

    def _facets(self, report: Report | None, error: str) -> dict[str, Any]:
        import attr
        from openlineage.client.facet_v2 import RunFacet, error_message_run

        facets: dict[str, Any] = {}
        if error:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(error, "python")
        if report is not None:
            figures = msgspec.to_builtins(report.figures, enc_hook=str)
            facet = attr.make_class("ReportRunFacet", ["code", "figures", "problems"], (RunFacet,))
            facets["delayq_report"] = facet(int(report.code), figures, report.problems)
        return facets


def data_sets(name: str, params: Params) -> tuple[Sequence[DatasetName], Sequence[DatasetName]]:
    """What a job reads, and what it writes."""
    from ..models import Forecast, TaskDay, TopicHour
    from .lake.lake import FIGURE_TABLES, FOLDER

    given, database = params.job, params.database
    archive, outbox = (_table(database, table) for table in (database.table, database.outbox))
    hours, days, forecast = (
        _table(database, model._meta.db_table) for model in (TopicHour, TaskDay, Forecast)
    )
    lake = _place(params.lake.uri)
    from_archive = given.get("source") == "archive"
    copies = [_place(f"{params.lake.uri}/{FOLDER}/{name}") for name in FIGURE_TABLES]
    queue = DatasetName("redis", str(params.redis.options.get("PREFIX", "delayq")))
    letters = lake if given.get("source") == "lake" else archive
    source = _table(database, str(given.get("source", "")))
    if given.get("format") in ("parquet", "csv", "json"):
        source = _place(str(given["source"]))
    sets: dict[str, tuple[Sequence[DatasetName], Sequence[DatasetName]]] = {
        "export": ([archive], [lake]),
        "stats": (
            [archive if from_archive else lake],
            [hours, days, *([] if from_archive else copies)],
        ),
        "check": ([hours], []),
        "forecast": ([queue, outbox], [forecast]),
        "audit": ([queue, outbox, archive, *([lake] if lake.name else [])], []),
        "schedule": ([source], [queue]),
        "replay": ([letters], [queue]),
    }
    return sets.get(name, ([], []))


def _table(database: Database, table: str) -> DatasetName:
    if database.vendor == "sqlite":
        return DatasetName("file", f"{database.name}/{table}")
    ports = {"postgresql": "5432", "mysql": "3306"}
    scheme = {"postgresql": "postgres"}.get(database.vendor, database.vendor)
    port = database.port or ports.get(database.vendor, "")
    schema = "public." if database.vendor == "postgresql" else ""
    return DatasetName(
        f"{scheme}://{database.host or 'localhost'}:{port}", f"{database.name}.{schema}{table}"
    )


def _place(uri: str) -> DatasetName:
    """s3://bucket/path is the path in the bucket; a path is a file."""
    scheme, found, rest = uri.partition("://")
    if not found:
        return DatasetName("file", uri)
    bucket, _, path = rest.partition("/")
    return DatasetName(f"{scheme}://{bucket}", path or "/")
