"""The stream takes what is settled to the lake as it comes, by the commits of the export."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.db import connections
from pyspark.testing import assertDataFrameEqual

from django_delayq.pipeline.errors import LakeConflict, LakeError, Refused
from django_delayq.pipeline.export import export, stream
from django_delayq.pipeline.export.checkpoint import Checkpoint
from django_delayq.pipeline.lake.lake import Commit, Lake
from django_delayq.pipeline.options import StreamOptions
from django_delayq.pipeline.params import Database, Report, Secret
from django_delayq.pipeline.sources.archive import read_archive
from django_delayq.pipeline.sources.lake_files import read_lake
from tests.pipeline.rows import make_odd_rows, make_rows

Stream = Callable[..., Report]


@pytest.fixture
def stream_now(spark: Any, parameters: Any) -> Stream:
    """Runs the stream with these options; all that is in the archive is settled."""

    def run(*, lake: str = "", dry_run: bool = False, **options: Any) -> Report:
        more = {"lake": lake} if lake else {}
        params = parameters(job={"settle": 0, **options}, dry_run=dry_run, **more)
        return stream.run(spark, params, print)

    return run


def ids_in(spark: Any, lake: str) -> list[int]:
    """Each as often as it is there."""
    return sorted(row.id for row in read_lake(spark, Lake(lake), ["id"]).collect())


@pytest.mark.databases
def test_the_lake_has_every_row_as_sql_has_it(
    spark: Any, parameters: Any, stream_now: Stream, lake: str
) -> None:
    ids = make_odd_rows()
    report = stream_now(batch=20)
    assert (report.figures["rows"], report.figures["batches"]) == (len(ids), -(-len(ids) // 20))
    assert (report.figures["last_id"], report.figures["last_id"]) == (ids[-1], Lake(lake).last_id)
    assertDataFrameEqual(
        read_lake(spark, Lake(lake)), read_archive(spark, parameters().database, (0, ids[-1]))
    )


def test_an_empty_archive_makes_no_commit(stream_now: Stream, lake: str) -> None:
    assert stream_now().figures["rows"] == 0
    assert Lake(lake).commits() == []


def test_it_goes_on_where_it_ended_and_nothing_new_makes_no_commit(
    spark: Any, stream_now: Stream, lake: str
) -> None:
    old = make_rows(3)
    stream_now()
    assert stream_now().figures["batches"] == 0
    new = make_rows(2)
    assert stream_now().figures["rows"] == 2
    assert ids_in(spark, lake) == old + new
    assert len(Lake(lake).commits()) == 2


def test_what_the_export_has_taken_before_and_between_is_not_taken_again(
    spark: Any, parameters: Any, stream_now: Stream, lake: str
) -> None:
    ids = []
    for _ in range(2):
        ids += make_rows(3)
        export.run(spark, parameters(job={"settle": 0, "batch": 2}), print)
        ids += make_rows(1)
        assert stream_now().figures["rows"] == 1
    assert ids_in(spark, lake) == ids


def test_a_batch_that_comes_again_adds_nothing(spark: Any, stream_now: Stream, lake: str) -> None:
    ids = make_rows(5)
    stream_now(batch=2)
    for path in (Path(lake, "_stream", "commits", name) for name in ("2", ".2.crc")):
        path.unlink()  # as if it had died after the lake's commit
    assert stream_now(batch=2).figures["rows"] == 0
    assert ids_in(spark, lake) == ids


def test_another_writer_in_the_middle_of_a_batch_is_no_harm(
    spark: Any, stream_now: Stream, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = make_rows(5)
    append, calls = stream.append, []

    def after_another(*arguments: Any, **settle: Any) -> Any:
        calls.append(arguments[3])
        if len(calls) == 1:
            append(*arguments[:3], (0, ids[1]), print, **settle)
        return append(*arguments, **settle)

    monkeypatch.setattr(stream, "append", after_another)
    assert stream_now().figures["rows"] == 3
    assert calls == [(0, ids[4]), (ids[1], ids[4])]
    assert ids_in(spark, lake) == ids


@pytest.mark.parametrize("error", [LakeError("files are lost"), LakeConflict("again and again")])
def test_what_goes_wrong_in_a_batch_is_raised_as_it_is(
    stream_now: Stream, lake: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rows(2)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch, pytest.raises(type(error), match=str(error)):
        patch.setattr(stream, "append", fail)
        stream_now()
    assert stream_now().figures["rows"] == 2


def test_with_an_interval_it_takes_what_comes_and_ends_after_its_batch_on_sigterm(
    spark: Any, stream_now: Stream, lake: str
) -> None:
    ids = make_rows(3)
    helper = threading.Thread(target=_more_rows_and_then_the_end, args=(lake, ids))
    helper.start()
    before = signal.getsignal(signal.SIGTERM)
    report = stream_now(interval=0.2)
    helper.join()
    assert ids_in(spark, lake) == ids
    assert (report.figures["rows"], report.figures["batches"]) == (5, 2)
    assert signal.getsignal(signal.SIGTERM) == before
    assert stream_now().figures["rows"] == 0


def test_sigterm_ends_it_before_the_next_batch(
    spark: Any, stream_now: Stream, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = make_rows(5)
    append = stream.append

    def told_to_end(*arguments: Any, **settle: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return append(*arguments, **settle)

    with monkeypatch.context() as patch:
        patch.setattr(stream, "append", told_to_end)
        assert stream_now(batch=2).figures["rows"] == 2
    assert ids_in(spark, lake) == ids[:2]
    assert stream_now(batch=2).figures["rows"] == 3
    assert ids_in(spark, lake) == ids


def _more_rows_and_then_the_end(lake: str, ids: list[int]) -> None:
    try:
        _wait_for(lake, 1)
        ids += make_rows(2)
        _wait_for(lake, 2)
    finally:
        connections.close_all()
        os.kill(os.getpid(), signal.SIGTERM)


def _wait_for(lake: str, commits: int) -> None:
    until = time.monotonic() + 60
    while len(Lake(lake).commits()) < commits and time.monotonic() < until:
        time.sleep(0.1)


def test_a_dry_run_says_what_would_be_taken(stream_now: Stream, lake: str) -> None:
    ids = make_rows(3)
    stream_now()
    new = make_rows(2)
    figures = stream_now(dry_run=True).figures
    assert figures == {"rows": 2, "last_id": ids[-1], "settled_id": new[-1]}
    assert len(Lake(lake).commits()) == 1


# Refused


def test_a_checkpoint_of_another_lake_is_refused(stream_now: Stream, tmp_path: Path) -> None:
    make_rows(2)
    elsewhere = str(tmp_path / "checkpoint")
    stream_now(checkpoint=elsewhere)
    with pytest.raises(Refused, match="checkpoint of another lake") as refused:
        stream_now(checkpoint=elsewhere, lake=str(tmp_path / "other"))
    assert f"Remove the directory {elsewhere}" in str(refused.value)


def test_a_checkpoint_that_is_ahead_of_its_lake_is_refused_and_without_it_nothing_is_lost(
    spark: Any, stream_now: Stream, lake: str
) -> None:
    ids = make_rows(3)
    stream_now()
    offset = Path(lake, "_stream", "offsets", "0")
    offset.write_text(
        offset.read_text().replace(f'{{"id": {ids[-1]}}}', f'{{"id": {ids[-1] + 7}}}')
    )
    with pytest.raises(Refused, match=f"up to id {ids[-1] + 7:,}, but it ends at {ids[-1]:,}"):
        stream_now()
    Path(lake, "_stream").rename(f"{lake}.checkpoint")
    ids += make_rows(1)
    assert stream_now().figures["rows"] == 1
    assert ids_in(spark, lake) == ids


@pytest.mark.parametrize("name", ["offsets/0", "delayq.json"])
def test_a_checkpoint_that_cannot_be_read_is_refused(
    stream_now: Stream, lake: str, name: str
) -> None:
    make_rows(1)
    stream_now()
    Path(lake, "_stream", name).write_text("v1\n{}\nnonsense")
    with pytest.raises(Refused, match=f"_stream/{name} cannot be read"):
        stream_now()


def test_a_lake_that_went_is_refused(stream_now: Stream, lake: str) -> None:
    make_rows(1)
    stream_now()
    Path(lake, "commits", "000000001.json").unlink()
    with pytest.raises(Refused, match="has 0 commits, but this database saw 1"):
        stream_now()


def test_a_lake_that_shrinks_while_it_runs_is_refused(tmp_path: Path) -> None:
    lake, options = Lake(tmp_path), StreamOptions()
    lake.commit(Commit(seq=1, kind="append", lo=0, hi=5, rows=0, signature=""))
    nowhere = Database(engine="django.db.backends.sqlite3", name="nowhere", table="t")
    copier = stream._Copier(nowhere, options, lake, Checkpoint(tmp_path / "_stream"), print)
    Path(tmp_path, "commits", "000000001.json").unlink()
    with pytest.raises(Refused, match="held the archive up to id 5, and now to 0 only"):
        copier._bring_to(9, None)


def test_no_secret_is_in_the_checkpoint(
    spark: Any, parameters: Any, lake: str, tmp_path: Path
) -> None:
    make_rows(2)
    secret = tmp_path / "canary-file"
    secret.write_text("canary-password")
    params = parameters(job={"settle": 0})
    database = msgspec.structs.replace(params.database, password=Secret(f"file:{secret}"))
    assert (
        stream.run(spark, msgspec.structs.replace(params, database=database), print).figures["rows"]
        == 2
    )
    written = [path for path in Path(lake).rglob("*") if path.is_file()]
    assert written and not [path for path in written if b"canary" in path.read_bytes()]
