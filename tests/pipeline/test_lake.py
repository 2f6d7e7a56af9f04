"""The log of the table decides what is in a lake, and a lake that lies is refused. No Spark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from django_delayq.pipeline.job_errors import LakeConflict, LakeError
from django_delayq.pipeline.lake import files as module
from django_delayq.pipeline.lake.files import Store, read_file, write_rows
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.params import Secret, Storage
from tests.hands import together
from tests.pipeline.lakes import add, batch_of, ids_in, rows_of

DAY = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


@pytest.fixture(params=["path", "s3"])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Storage:
    """A path whose name has what Spark and others take for a pattern, and a bucket."""
    if request.param == "path":
        return Storage(str(tmp_path / "la [k] e{1,2}*"))
    monkeypatch.setenv("KEY_OF_TEST", "hidden")
    secrets = {"AWS_SECRET_ACCESS_KEY": Secret("env:KEY_OF_TEST")}
    return Storage(f"s3://shop/{tmp_path.name}", request.getfixturevalue("bucket"), secrets)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lake"


# Reading


def test_a_lake_that_is_not_there_is_empty(path: Path) -> None:
    lake = Lake(path)
    assert (lake.exists, lake.version, lake.files(), lake.last_id) == (False, -1, [], 0)
    assert (lake.appended(-1), lake.replaced(), lake.tidy(0)) == ([], 0, 0)
    assert not path.exists()


def test_batches_follow_one_another(storage: Storage) -> None:
    lake = Lake(storage)
    add(lake, 3)
    add(lake, 2, DAY + timedelta(days=1))
    assert (lake.last_id, Lake(storage).last_id) == (5, 5)
    assert [(file.dt, file.rows, file.lowest, file.highest) for file in Lake(storage).files()] == [
        (date(2026, 11, 20), 3, 1, 3),
        (date(2026, 11, 21), 2, 4, 5),
    ]
    assert ids_in(Lake(storage)) == [1, 2, 3, 4, 5]
    first, second = lake.appended(-1)
    assert [(one.version, one.lo, one.hi, one.rows) for one in (first, second)] == [
        (1, 0, 3, 3),
        (2, 3, 5, 2),
    ]
    assert second.by.endswith(f":{os.getpid()}")


def test_files_are_chosen_by_date_and_by_id(path: Path) -> None:
    lake = Lake(path)
    for number in range(4):
        add(lake, 10, DAY + timedelta(days=number))
    assert [file.lowest for file in lake.files(since="2026-11-21", until="2026-11-22")] == [11, 21]
    assert [file.lowest for file in lake.files(ids=(10, 11))] == [11]
    assert [file.lowest for file in lake.files(ids=(9, 11))] == [1, 11]
    assert lake.files(ids=(40, 99)) == []
    assert lake.uris(until="2026-11-20") == [f"{path}/{lake.files()[0].path}"]


def test_the_end_of_a_file_is_never_rounded_down(path: Path) -> None:
    lake = Lake(path)
    odd = datetime(2026, 11, 20, 23, 59, 59, 999_001, tzinfo=timezone.utc)
    add(lake, 1, odd)
    (file,) = Lake(path).files()
    exact = round(odd.timestamp() * 1e6)
    assert file.oldest <= exact <= file.newest <= exact + 1_000


# Exactly once


def test_of_two_writers_of_one_batch_one_is_refused_and_told_who_was_first(
    storage: Storage,
) -> None:
    lake = Lake(storage)
    add(lake, 3)
    stale = Lake(storage)
    add(lake, 2)
    for hi in (5, 9):
        with pytest.raises(LakeConflict, match=rf"up to id 5 at version 2.*:{os.getpid()}, "):
            stale_copy = Lake(storage) if stale.last_id == 5 else stale
            stale_copy.append([], (3, hi))
    assert (Lake(storage).last_id, len(ids_in(Lake(storage)))) == (5, 5)


def test_a_fresh_writer_with_an_old_version_is_refused(storage: Storage) -> None:
    lake = Lake(storage)
    add(lake, 3)
    add(lake, 3)
    with pytest.raises(LakeConflict, match="do not follow"):
        Lake(storage).append([], (3, 6))
    with pytest.raises(LakeConflict, match="do not follow"):
        Lake(storage).append([], (6, 6))
    assert Lake(storage).last_id == 6


def test_of_many_writers_at_once_one_appends_and_the_others_hear_it(storage: Storage) -> None:
    add(Lake(storage), 1)
    lakes = [Lake(storage) for _ in range(6)]

    def write(lake: Lake) -> str:
        try:
            return f"version {lake.append([], (1, 4))}"
        except LakeConflict:
            return "conflict"

    said = sorted(together(*[lambda lake=lake: write(lake) for lake in lakes]))
    assert said == [*["conflict"] * 5, "version 2"]


def test_many_processes_may_make_the_table_at_once(storage: Storage) -> None:
    lakes = [Lake(storage) for _ in range(4)]
    together(*[lake.create for lake in lakes])
    assert len({lake.table_id for lake in lakes}) == 1


# Replacing


def test_a_replacement_is_one_commit_and_happens_once(storage: Storage) -> None:
    lake = Lake(storage)
    add(lake, 3)
    add(lake, 2)
    (first, second) = lake.files()
    other = Lake(storage)
    new = rows_of(lake, [1, 2, 3, 4, 5])
    lake.replace("compact", [first, second], new)
    assert ids_in(Lake(storage)) == [1, 2, 3, 4, 5]
    with pytest.raises(LakeConflict, match="replaced already"):
        other.replace("repair", [first], rows_of(other, [1]))
    with pytest.raises(LakeConflict, match="replaced already"):
        Lake(storage).replace("repair", [first], rows_of(other, [1]))
    assert ids_in(Lake(storage)) == [1, 2, 3, 4, 5]
    assert Lake(storage).last_id == 5


@pytest.mark.parametrize("stale", ["append", "compact", "erase"])
def test_what_does_not_meet_goes_together(storage: Storage, stale: str) -> None:
    lake = Lake(storage)
    add(lake, 3)
    add(lake, 3)
    (first, second) = lake.files()
    late = Lake(storage)  # its snapshot is older than the next two commits
    if stale == "append":
        lake.replace("compact", [first], rows_of(lake, [1, 2, 3]))
        add(late, 2)
        assert ids_in(Lake(storage)) == [1, 2, 3, 4, 5, 6, 7, 8]
        return
    add(lake, 2)
    lake.replace("repair", [first], rows_of(lake, [1, 2]))
    late.replace("erase" if stale == "erase" else "compact", [second], rows_of(late, [4, 6]))
    assert ids_in(Lake(storage)) == [1, 2, 4, 6, 7, 8]


def test_a_retention_drops_days_and_is_remembered(storage: Storage) -> None:
    lake = Lake(storage)
    for number in range(3):
        add(lake, 2, DAY + timedelta(days=number))
    assert lake.retained_since is None
    assert [file.dt.day for file in lake.retain(date(2026, 11, 22))] == [20, 21]
    assert lake.retain(date(2026, 11, 22)) == []
    assert ids_in(Lake(storage)) == [5, 6]
    assert (Lake(storage).retained_since, Lake(storage).last_id) == (date(2026, 11, 22), 6)


# Lies


def test_a_missing_file_and_a_truncated_one_are_noticed(storage: Storage) -> None:
    lake = Lake(storage)
    add(lake, 300)
    store, (file,) = Store(storage), lake.files()
    place = store.place(file.path)
    with store.fs.open_input_file(place) as whole:
        content = whole.read()
    with store.fs.open_output_stream(place) as out:
        out.write(content[:-100])
    with pytest.raises(LakeError, match="cannot be read"):
        list(read_file(store, file))
    store.fs.delete_file(place)
    with pytest.raises(LakeError, match="cannot be read"):
        list(read_file(store, file))


def test_a_damaged_page_is_noticed(path: Path) -> None:
    lake = Lake(path)
    add(lake, 3_000)
    (file,) = lake.files()
    content = bytearray((path / file.path).read_bytes())
    content[len(content) // 3] ^= 0xFF
    (path / file.path).write_bytes(content)
    with pytest.raises(LakeError, match="cannot be read"):
        list(read_file(Store(lake.storage), file))


def test_a_file_with_other_rows_than_the_log_says_is_noticed(path: Path) -> None:
    lake = Lake(path)
    add(lake, 3)
    (file,) = lake.files()
    pq.write_table(pq.read_table(path / file.path).slice(1), path / file.path)
    with pytest.raises(LakeError, match="has 2 rows, the log of the lake says 3"):
        list(read_file(Store(lake.storage), file))


def test_a_log_that_cannot_be_read_is_refused(path: Path) -> None:
    add(Lake(path), 3)
    (path / "_delta_log" / f"{1:020d}.json").write_bytes(b"{nothing")
    with pytest.raises(LakeError, match="log of the lake"):
        Lake(path).files()


def test_a_file_that_does_not_hold_what_was_written_is_not_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(path)
    lake.create()
    write = pq.ParquetWriter.write_table

    def forge(writer: Any, rows: pa.Table, **options: Any) -> None:
        at = rows.schema.get_field_index("body")
        forged = pa.array(["forged"] * rows.num_rows, pa.string())
        write(writer, rows.set_column(at, rows.schema.field(at), forged), **options)

    monkeypatch.setattr(module.parquet.ParquetWriter, "write_table", forge)
    with pytest.raises(LakeError, match="does not hold the rows that were written"):
        rows_of(lake, [1, 2])


def test_a_number_that_is_none_is_equal_to_itself(path: Path) -> None:
    lake = Lake(path)
    lake.create()
    assert [file.rows for file in rows_of(lake, [1], run_ms=float("nan"))] == [1]


# SIGKILL

_APPEND = """
import sys
from tests.pipeline.lakes import add
from django_delayq.pipeline.lake.lake import Lake
add(Lake(sys.argv[1]), 3)
"""


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
@pytest.mark.parametrize("made", [False, True])
def test_killed_exactly_at_the_commit_all_or_nothing_is_there(path: Path, made: bool) -> None:
    """delta-rs commits by linkat: the first one makes the table, unless it is there, and another
    one appends."""
    if made:
        Lake(path).create()
    trace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=linkat"]
    inject = ["-e", "inject=linkat:signal=SIGKILL:when=1"]
    child = [sys.executable, "-c", _APPEND, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([*trace, *inject, *child], env=environment, timeout=100, check=False)
    assert ended.returncode != 0
    lake = Lake(path)
    assert (lake.last_id, ids_in(lake)) in ((0, []), (3, [1, 2, 3]))
    add(lake, 3)
    assert ids_in(Lake(path)) == list(range(1, Lake(path).last_id + 1))
    written = len(list(path.glob("dt=*/*.parquet")))
    assert Lake(path).tidy(0) == written - len(Lake(path).files())


# Tidying up


def test_old_files_go_and_young_ones_stay(storage: Storage) -> None:
    lake = Lake(storage)
    add(lake, 3)
    (old,) = lake.files()
    lake.replace("compact", [old], rows_of(lake, [1, 2, 3]))
    orphan = rows_of(lake, [9])  # as a killed task leaves it
    assert lake.tidy(86_400) == 0
    assert lake.replaced() == 1
    assert lake.tidy(0) == 2
    left = Store(storage).fs.get_file_info(Store(storage).place(orphan[0].path))
    assert left.type.name == "NotFound"
    assert ids_in(Lake(storage)) == [1, 2, 3]
    assert Lake(storage).last_id == 3


def test_a_reader_that_began_before_keeps_its_files(path: Path) -> None:
    lake = Lake(path)
    add(lake, 3)
    reader = Lake(path)
    lake.replace("compact", lake.files(), rows_of(lake, [1, 2, 3]))
    lake.tidy(86_400)
    assert ids_in(reader) == [1, 2, 3]


def test_drafts_of_killed_commits_go(path: Path) -> None:
    lake = Lake(path)
    add(lake, 1)
    draft = path / "_delta_log" / f"{9:020d}.json#1"
    draft.write_text("{}")
    lake.tidy(60)
    assert draft.exists()
    os.utime(draft, (time.time() - 100,) * 2)
    lake.tidy(60)
    assert not draft.exists()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_thousand_commits_lose_and_double_nothing(storage: Storage) -> None:
    commits = 2_000 if storage.is_local else 50  # each takes S3 a dozen calls
    lake = Lake(storage)
    lake.create()
    store = Store(lake.storage)
    for number in range(commits):
        ids = (number * 2, number * 2 + 2)
        lake.append(list(write_rows(store, [batch_of([ids[0] + 1, ids[1]])], f"f{number}")), ids)
        if number % (commits // 5) == commits // 5 - 1:
            small = [file for file in lake.files() if file.rows == 2]
            lake.replace("compact", small, rows_of(lake, range(small[0].lowest, ids[1] + 1)))
            lake.tidy(86_400)
    again = Lake(storage)
    assert (again.last_id, ids_in(again)) == (2 * commits, list(range(1, 2 * commits + 1)))
    assert again.version >= commits
