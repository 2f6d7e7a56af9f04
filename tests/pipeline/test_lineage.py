"""Events of jobs for OpenLineage, by its own client."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_delayq.core.exceptions import StoreUnavailable
from django_delayq.pipeline import lineage
from django_delayq.pipeline.jobs import Start, run_job
from django_delayq.pipeline.lineage import DatasetName
from django_delayq.pipeline.params import Database, Params
from tests.app.tasks import record
from tests.faults import unreachable


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the client writes its events."""
    path = tmp_path / "events.jsonl"
    transport = {"type": "file", "log_file_path": str(path), "append": True}
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(transport))
    return path


def events(log: Path) -> list[Any]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_job_tells_its_beginning_and_its_end(
    log: Path, parameters: Callable[..., Params]
) -> None:
    record.using(delay=60).enqueue_many([(1,), (2,)])
    run_job("forecast", parameters(), Start(), bool)
    start, end = events(log)
    assert [one["eventType"] for one in (start, end)] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == end["run"]["runId"]
    assert (end["job"]["namespace"], end["job"]["name"]) == ("django_delayq", "pipeline.forecast")
    report = end["run"]["facets"]["delayq_report"]
    assert (report["code"], report["figures"]["waiting"]) == (0, 2)
    assert [one["name"].endswith("delayq_forecast") for one in end["outputs"]] == [True]
    assert "redis" in {one["namespace"] for one in end["inputs"]}


def test_a_job_that_fails_tells_why(log: Path, parameters: Callable[..., Params]) -> None:
    params = parameters()
    with unreachable(), pytest.raises(StoreUnavailable):
        run_job("forecast", params, Start(), bool)
    _, end = events(log)
    assert end["eventType"] == "FAIL"
    assert end["run"]["facets"]["errorMessage"]["message"]


def test_an_event_that_cannot_be_sent_fails_no_job(
    parameters: Callable[..., Params], monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = {"type": "http", "url": "http://127.0.0.1:9", "timeout": 1, "retry": {"total": 0}}
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(transport))
    told: list[str] = []
    report = run_job("forecast", parameters(), Start(), lambda line, *more: told.append(line))
    assert report.figures["waiting"] == 0
    assert [line for line in told if "START was not sent to OpenLineage" in line]


def test_without_the_client_the_extra_is_named(
    log: Path, parameters: Callable[..., Params], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    told: list[str] = []
    run_job("forecast", parameters(), Start(), lambda line, *more: told.append(line))
    assert "django-delayq[openlineage]" in told[0] and not log.exists()


@pytest.mark.parametrize(
    "variables", [{}, {"OPENLINEAGE_DISABLED": "true", "OPENLINEAGE_URL": "http://127.0.0.1:1"}]
)
def test_where_it_is_not_configured_nothing_is_imported(
    parameters: Callable[..., Params], monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, lineage.__name__)
    assert run_job("forecast", parameters(), Start(), print).figures
    assert lineage.__name__ not in sys.modules


def test_data_sets_have_the_names_of_openlineage() -> None:
    database = Database(
        engine="django.db.backends.postgresql", name="shop", table="archive", host="db"
    )
    assert lineage._table(database, "archive") == DatasetName(
        "postgres://db:5432", "shop.public.archive"
    )
    assert lineage._place("s3://bucket/a/lake") == DatasetName("s3://bucket", "a/lake")
    assert lineage._place("/data/lake") == DatasetName("file", "/data/lake")
    job = {"source": "/data/rows", "format": "csv"}
    params = Params(database=database, job=job)
    assert lineage.data_sets("schedule", params) == (
        [DatasetName("file", "/data/rows")],
        [DatasetName("redis", "delayq")],
    )
