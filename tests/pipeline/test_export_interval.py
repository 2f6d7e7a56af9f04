"""`export --interval` takes what is settled as it comes, and ends after its batch."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections

from django_delayq.core.job_report import Report
from django_delayq.pipeline.export import export
from django_delayq.pipeline.job_errors import LakeError
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.lake.lake_source import read_lake
from tests.pipeline.rows import make_rows

Export = Callable[..., Report]


@pytest.fixture
def export_at_intervals(spark: Any, parameters: Any) -> Export:
    """Runs the export again and again; all that is in the archive is settled."""

    def run(**options: Any) -> Report:
        params = parameters(job={"settle": 0, "interval": 0.2, **options})
        return export.run(spark, params, print)

    return run


def ids_in(spark: Any, lake: str) -> list[int]:
    """Each as often as it is there."""
    return sorted(row.id for row in read_lake(spark, Lake(lake), ["id"]).collect())


def wait_for_commits(lake: str, count: int) -> None:
    until = time.monotonic() + 60
    while Lake(lake).version < count and time.monotonic() < until:
        time.sleep(0.05)


@contextmanager
def meanwhile(action: Callable[[], object]) -> Iterator[None]:
    """Does this in a thread, and then ends the export by SIGTERM."""

    def act() -> None:
        try:
            action()
        finally:
            connections.close_all()
            os.kill(os.getpid(), signal.SIGTERM)

    helper = threading.Thread(target=act)
    helper.start()
    yield
    helper.join()


def test_it_takes_what_comes_until_sigterm(
    spark: Any, export_at_intervals: Export, lake: str
) -> None:
    ids = make_rows(3)

    def more() -> None:
        wait_for_commits(lake, 1)
        ids.extend(make_rows(2))
        wait_for_commits(lake, 2)

    before = signal.getsignal(signal.SIGTERM)
    with meanwhile(more):
        report = export_at_intervals()
    assert ids_in(spark, lake) == ids
    assert (report.figures["rows"], report.figures["batches"]) == (5, 2)
    assert report.figures["last_id"] == ids[-1]
    assert [row["rows"] for row in report.rows] == [3, 2]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_batch_end_and_begins_no_other(
    spark: Any,
    export_at_intervals: Export,
    lake: str,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = make_rows(5)
    append = export.append

    def interrupted(*arguments: Any, **settle: Any) -> Any:
        os.kill(os.getpid(), number)
        return append(*arguments, **settle)

    with monkeypatch.context() as patch:
        patch.setattr(export, "append", interrupted)
        assert export_at_intervals(batch=2).figures["rows"] == 2
    assert ids_in(spark, lake) == ids[:2]


def test_what_another_export_takes_meanwhile_is_not_taken_again(
    spark: Any, export_at_intervals: Export, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = make_rows(5)
    append, calls = export.append, []

    def after_another(*arguments: Any, **settle: Any) -> Any:
        calls.append(arguments[3])
        if len(calls) == 1:
            append(*arguments[:3], (0, ids[1]), print, **settle)
        return append(*arguments, **settle)

    monkeypatch.setattr(export, "append", after_another)
    with meanwhile(lambda: wait_for_commits(lake, 2)):
        assert export_at_intervals().figures["rows"] == 3
    assert calls == [(0, ids[4]), (ids[1], ids[4])]
    assert ids_in(spark, lake) == ids


def test_what_goes_wrong_ends_it(
    export_at_intervals: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rows(2)

    def fail(*_: Any, **__: Any) -> None:
        raise LakeError("files are lost")

    monkeypatch.setattr(export, "append", fail)
    with pytest.raises(LakeError, match="files are lost"):
        export_at_intervals()
