"""Tells OpenLineage when a job begins and how it ends: what it reads and writes, and how much.

Only where OpenLineage is configured by its own environment variables (jobs.py looks at them) and
its client is installed (extra `openlineage`). An event that cannot be sent fails no job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import NamedTuple
from uuid import uuid4

import msgspec

from .. import __version__
from ..core.job_report import Report, Tell
from .params import Database, Params

PRODUCER = f"https://pypi.org/project/django-delayq/{__version__}"
#: The namespace of the jobs, unless OPENLINEAGE_NAMESPACE names another.
NAMESPACE = "django_delayq"


class DatasetName(NamedTuple):
    """A data set as OpenLineage names it."""

    namespace: str
    name: str


def with_lineage(name: str, params: Params, tell: Tell, work: Callable[[], Report]) -> Report:
    """Run a job, and tell its beginning and its end."""
    try:
        send = _sender(name, params, tell)
    except ImportError:
        tell(
            "OpenLineage is configured, but its client is not installed: "
            "pip install 'django-delayq[openlineage]'."
        )
        return work()
    send("START")
    try:
        report = work()
    except BaseException as error:
        send("ABORT" if isinstance(error, KeyboardInterrupt) else "FAIL", error=str(error))
        raise
    send("COMPLETE", report)
    return report


def _sender(name: str, params: Params, tell: Tell) -> Callable[..., None]:
    """What sends the events of one run."""
    import attr
    from openlineage.client import OpenLineageClient, event_v2
    from openlineage.client.facet_v2 import RunFacet, error_message_run

    client, run_id = OpenLineageClient(), str(uuid4())
    namespace = os.environ.get("OPENLINEAGE_NAMESPACE", NAMESPACE)
    inputs, outputs = data_sets(name, params)
    report_facet = attr.make_class("ReportRunFacet", ["code", "figures", "problems"], (RunFacet,))

    def send(state: str, report: Report | None = None, error: str = "") -> None:
        """An error of sending is told, and raised to nobody."""
        facets: dict[str, RunFacet] = {}
        try:
            if error:
                facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(error, "python")
            if report is not None:
                figures = msgspec.to_builtins(report.figures, enc_hook=str)
                facets["delayq_report"] = report_facet(int(report.code), figures, report.problems)
            event = event_v2.RunEvent(
                eventTime=datetime.now(tz=timezone.utc).isoformat(),
                eventType=event_v2.RunState[state],
                producer=PRODUCER,
                run=event_v2.Run(run_id, facets),
                job=event_v2.Job(namespace, f"pipeline.{name}"),
                inputs=[event_v2.InputDataset(*one) for one in inputs],
                outputs=[event_v2.OutputDataset(*one) for one in outputs],
            )
            client.emit(event)
        except Exception as failed:  # whatever its transport raises
            tell(f"The event {state} was not sent to OpenLineage: {failed}")

    return send


def data_sets(name: str, params: Params) -> tuple[Sequence[DatasetName], Sequence[DatasetName]]:
    """What a job reads, and what it writes."""
    from ..models import Forecast, TaskDay, TopicHour
    from .lake.lake import FIGURE_TABLES, FOLDER

    given, database = params.job, params.database
    lake, archive = _place(params.lake.uri), _table(database, database.table)
    outbox = _table(database, database.outbox)
    hours, days, forecast = (
        _table(database, model._meta.db_table) for model in (TopicHour, TaskDay, Forecast)
    )
    copies = [_place(f"{params.lake.uri}/{FOLDER}/{name}") for name in FIGURE_TABLES]
    queue = DatasetName("redis", str(params.redis.options.get("PREFIX", "delayq")))
    named = str(given.get("source", ""))
    is_path = given.get("format") in ("parquet", "csv", "json")
    in_sql = [hours, days]
    sets: dict[str, tuple[Sequence[DatasetName], Sequence[DatasetName]]] = {
        "export": ([archive], [lake]),
        "stats": ([archive], in_sql) if named == "archive" else ([lake], [*in_sql, *copies]),
        "check": ([hours], []),
        "forecast": ([queue, outbox], [forecast]),
        "audit": ([queue, outbox, archive, *([lake] if lake.name else [])], []),
        "schedule": ([_place(named) if is_path else _table(database, named)], [queue]),
        "replay": ([lake if named == "lake" else archive], [queue]),
    }
    return sets[name]


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
