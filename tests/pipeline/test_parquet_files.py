"""Rows that are copied to Parquet while they are read: all of them, by date, and no file before it
is whole."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from django_delayq.pipeline import schemas
from django_delayq.pipeline.sinks import parquet_files

SCHEMA = schemas.chosen(schemas.ARCHIVE, ["id", "topic", "finished_at"])
EVENING = datetime(2026, 11, 18, 23, 59, 59, 999_998, tzinfo=timezone.utc)


def batch(*rows: tuple[int, str, datetime]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA
    )


BATCHES = [
    batch((1, "orders", EVENING), (2, "mail", EVENING + timedelta(microseconds=1))),
    batch(
        (3, "orders", EVENING + timedelta(microseconds=2)),
        (4, "orders", EVENING - timedelta(hours=1)),
    ),
]


def files(attempt: Path) -> dict[str, list[int]]:
    """The ids in each file that a reader would find."""
    found = sorted(attempt.glob("**/*.parquet"))
    return {
        str(path.relative_to(attempt)): parquet.ParquetFile(path).read()["id"].to_pylist()
        for path in found
    }


def test_the_batches_pass_and_their_rows_lie_sorted_under_their_dates(tmp_path: Path) -> None:
    assert list(parquet_files.copied(iter(BATCHES), tmp_path, "part-0-4")) == BATCHES
    assert files(tmp_path) == {
        "dt=2026-11-18/part-0-4.parquet": [2, 4, 1],
        "dt=2026-11-19/part-0-4.parquet": [3],
    }
    table = parquet.ParquetFile(tmp_path / "dt=2026-11-18/part-0-4.parquet").read()
    assert table.schema.equals(SCHEMA)
    assert table["finished_at"].to_pylist()[2] == EVENING


def test_without_rows_there_is_no_file(tmp_path: Path) -> None:
    assert list(parquet_files.copied(iter([]), tmp_path / "attempt", "part")) == []
    assert list(parquet_files.copied(iter([batch()]), tmp_path / "attempt", "part")) == [batch()]
    assert not (tmp_path / "attempt").exists()


def test_many_bytes_are_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "CHUNK", 1)
    list(parquet_files.copied(iter(BATCHES), tmp_path, "part"))
    assert files(tmp_path) == {
        "dt=2026-11-18/part-1.parquet": [4], "dt=2026-11-18/part.parquet": [2, 1], "dt=2026-11-19/part-1.parquet": [3],
    }  # fmt: skip


@pytest.mark.long
def test_a_thousand_dates_take_no_more_open_files_than_one(tmp_path: Path) -> None:
    rows = batch(*((day, "orders", EVENING - timedelta(days=day)) for day in range(1_100)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        list(parquet_files.copied(iter([rows]), tmp_path, "part"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(files(tmp_path)) == 1_100


def test_until_the_last_batch_is_taken_no_reader_finds_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files, "CHUNK", 1)
    reading = parquet_files.copied(iter(BATCHES), tmp_path, "part")
    next(reading), next(reading)
    assert files(tmp_path) == {}
    assert [path.suffix for path in tmp_path.glob("dt=*/*")] == [parquet_files.UNFINISHED]
    assert list(reading) == []
    assert len(files(tmp_path)) == 3
    assert not list(tmp_path.glob(f"**/*{parquet_files.UNFINISHED}"))


def test_a_reader_that_fails_or_is_left_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files, "CHUNK", 1)

    def failing() -> Iterator[pa.RecordBatch]:
        yield from BATCHES
        raise ConnectionError

    with pytest.raises(ConnectionError):
        list(parquet_files.copied(failing(), tmp_path, "part"))
    left = parquet_files.copied(iter(BATCHES), tmp_path, "part")
    next(left), next(left)
    left.close()
    assert not list(tmp_path.glob("dt=*/*"))


def test_the_first_of_two_tries_of_a_task_stays(tmp_path: Path) -> None:
    one, other = (parquet_files.copied(iter(BATCHES), tmp_path, "part") for _ in range(2))
    next(one)
    list(other)
    before = {path: path.stat().st_ino for path in tmp_path.glob("dt=*/*")}
    list(one)
    assert {path: path.stat().st_ino for path in tmp_path.glob("dt=*/*")} == before
    assert len(before) == 2


def test_what_a_killed_task_has_left_is_tidied_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files, "CHUNK", 1)
    attempt = tmp_path / "0-4.abc"
    killed = parquet_files.copied(iter(BATCHES), attempt, "part")
    next(killed), next(killed)  # and no end
    list(parquet_files.copied(iter(BATCHES), attempt, "part"))
    whole = files(attempt)
    parquet_files.tidy(tmp_path, older_than=60)
    assert len(list(attempt.glob("dt=*/*"))) == len(whole) + 1
    parquet_files.tidy(tmp_path, older_than=0)
    assert (len(list(attempt.glob("dt=*/*"))), files(attempt)) == (len(whole), whole)
