"""The commits of a lake decide what is in it, and a lake that lies is refused."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from django_delayq.pipeline.job_errors import LakeConflict, LakeError
from django_delayq.pipeline.lake.lake import Commit, Digest, Lake
from tests.hands import together

Add = Callable[..., Commit]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A lake whose name has what Spark and others take for a pattern."""
    return tmp_path / "la [k] e{1,2}*"


@pytest.fixture
def add(path: Path) -> Add:
    """Appends a batch of rows, or replaces files: add(count, dt="...")."""
    return lambda count, **more: add_batch(Lake(path), count, **more)


def add_batch(lake: Lake, count: int, dt: str = "2026-11-20", **more: Any) -> Commit:
    lo = lake.last_id
    ids = list(range(lo + 1, lo + count + 1))
    attempt = lake.attempt(lo, lo + count)
    file = attempt / f"dt={dt}" / "part-0.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(pa.table({"id": ids, "topic": ["orders"] * count}), file)
    files = lake.files_of({file: Digest(count)})
    plain = {
        "kind": "append",
        "lo": lo,
        "hi": lo + count,
        "rows": count,
        "signature": str(sum(ids)),
        "files": files,
    }
    return lake.add(Commit(seq=0, **{**plain, **more}))


def rewrite(commit: Path, **fields: Any) -> None:
    """As somebody would with an editor."""
    commit.write_text(json.dumps({**json.loads(commit.read_text()), **fields}))


def commit_file(path: Path, seq: int = 1) -> Path:
    return path / "commits" / f"{seq:09d}.json"


# Reading


def test_a_lake_that_is_not_there_is_empty(path: Path) -> None:
    lake = Lake(path)
    assert (lake.commits(), lake.files(), lake.paths(), lake.last_id) == ([], [], [], 0)
    assert not path.exists()


def test_commits_follow_one_another(path: Path, add: Add) -> None:
    add(3)
    add(2)
    first, second = Lake(path).commits()
    assert [(c.seq, c.lo, c.hi) for c in (first, second)] == [(1, 0, 3), (2, 3, 5)]
    assert Lake(path).last_id == 5


def test_pandas_and_arrow_read_what_counts_and_nothing_else(path: Path, add: Add) -> None:
    add(3, dt="2026-11-19")
    add(2)
    stump = Lake(path).attempt(5, 9) / "dt=2026-11-20"
    stump.mkdir(parents=True)
    (stump / "part-0.parquet").write_bytes(b"")
    assert sorted(pd.read_parquet(Lake(path).paths())["id"]) == [1, 2, 3, 4, 5]
    assert ds.dataset(Lake(path).paths(since="2026-11-20")).to_table()["id"].to_pylist() == [4, 5]
    assert len(Lake(path).paths(until="2026-11-19")) == 1
    assert Lake(path).paths("2026-11-21", "2026-11-30") == []


def test_spark_reads_a_path_that_looks_like_a_pattern(spark: Any, path: Path, add: Add) -> None:
    from django_delayq.pipeline.lake.reader import read_lake

    add(3)
    assert sorted(row.id for row in read_lake(spark, Lake(path), ["id", "topic"]).collect()) == [
        1,
        2,
        3,
    ]


def test_a_lake_without_rows_has_the_columns_of_the_archive(spark: Any, path: Path) -> None:
    from django_delayq.pipeline import schemas
    from django_delayq.pipeline.lake.reader import read_lake

    assert read_lake(spark, Lake(path)).columns == schemas.ARCHIVE.names
    assert read_lake(spark, Lake(path), ["topic", "id"]).columns == ["topic", "id"]


def test_replaced_files_do_not_count(path: Path, add: Add) -> None:
    old = add(3).files[0].path
    add(2)
    compacted = add(3, kind="compact", lo=0, hi=3, removes=[old])
    assert {file.path for file in Lake(path).files()} == {Lake(path).commits()[1].files[0].path,
                                                          compacted.files[0].path}  # fmt: skip
    assert Lake(path).last_id == 5


# Lies


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"rows": 4}, "add up to another number"),
        ({"seq": 2}, "should be commit 1"),
        ({"format": 2}, "has format 2"),
        ({"lo": 1}, "the one before ended at 0"),
        ({"hi": 0}, "the one before ended at 0"),
        ({"kind": "drop"}, "cannot be read as a commit"),
        ({"rows": -3}, "cannot be read as a commit"),
        ({"removes": ["data/x"]}, "removes a file that is not there"),
        (
            {"files": [{"path": "../x.parquet", "rows": 3, "bytes": 1, "dt": "2026-11-20"}]},
            "outside",
        ),
        ({"files": [{"path": "commits/x", "rows": 3, "bytes": 1, "dt": "2026-11-20"}]}, "outside"),
        (
            {"files": [{"path": "/etc/passwd", "rows": 3, "bytes": 1, "dt": "2026-11-20"}]},
            "outside",
        ),
        (
            {"files": [{"path": "data/x", "rows": 3, "bytes": 1, "dt": "yesterday"}]},
            "cannot be read as a commit",
        ),
    ],
)
def test_a_commit_that_contradicts_itself_is_refused(
    path: Path, add: Add, fields: Any, says: str
) -> None:
    add(3)
    rewrite(commit_file(path), **fields)
    with pytest.raises(LakeError, match=says):
        Lake(path).paths()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
def test_a_commit_that_is_no_json_is_refused(path: Path, add: Add, content: bytes) -> None:
    add(3)
    commit_file(path).write_bytes(content)
    with pytest.raises(LakeError, match="cannot be read as a commit"):
        Lake(path).commits()


def test_a_missing_commit_is_noticed(path: Path, add: Add) -> None:
    for _ in range(3):
        add(1)
    commit_file(path, 2).unlink()
    with pytest.raises(LakeError, match="should be commit 2"):
        Lake(path).commits()


def test_a_gap_between_batches_is_noticed(path: Path, add: Add) -> None:
    add(1)
    add(1)
    rewrite(commit_file(path, 2), lo=5, hi=6)
    with pytest.raises(LakeError, match="ids 5 to 6, the one before ended at 1"):
        Lake(path).commits()


def test_a_missing_file_and_one_of_another_size_are_noticed(path: Path, add: Add) -> None:
    file = Path(Lake(path).root, add(3).files[0].path)
    with file.open("ab") as end:
        end.write(b"x")
    with pytest.raises(LakeError, match="bytes, its commit says"):
        Lake(path).paths()
    file.unlink()
    with pytest.raises(LakeError, match="is missing, but a commit names it"):
        Lake(path).paths()


def test_a_compaction_may_not_change_the_number_of_rows(path: Path, add: Add) -> None:
    old = add(3).files[0].path
    with pytest.raises(LakeError, match="compacts 3 rows and has 2"):
        add(2, kind="compact", removes=[old])
    assert len(Lake(path).commits()) == 1


# Writing


def test_one_of_two_writers_has_the_number(path: Path, add: Add) -> None:
    commit = add(3)
    with pytest.raises(LakeConflict, match="is there already"):
        Lake(path).commit(msgspec.structs.replace(commit, lo=3, hi=6))
    assert [p.name for p in (path / "commits").iterdir()] == ["000000001.json"]


def test_a_commit_whose_answer_was_lost_has_succeeded(
    path: Path, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS repeats the call, and the second one finds the name taken by the first."""
    link = os.link

    def twice(*names: Any) -> None:
        link(*names)
        link(*names)

    monkeypatch.setattr(os, "link", twice)
    assert add(3).seq == 1
    assert Lake(path).last_id == 3


def test_an_attempt_that_a_commit_names_is_never_removed(
    path: Path, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(path)
    other = lake.attempt(3, 6)
    other.mkdir()
    attempt = path / "data" / add(3).files[0].path.split("/")[1]
    assert (lake.drop(attempt), lake.drop(other)) == (False, True)
    monkeypatch.setattr(
        lake, "abandoned", lambda older_than: iter([attempt])
    )  # committed since it was looked for
    assert lake.sweep(0) == 0
    assert len(Lake(path).paths()) == 1 and not other.exists()


def test_of_many_writers_at_once_one_appends_and_the_others_hear_it(path: Path) -> None:
    def write() -> str:
        try:
            commit = Commit(seq=0, kind="append", lo=0, hi=3, rows=0, signature="0")
            return f"commit {Lake(path).add(commit).seq}"
        except LakeConflict:
            return "conflict"

    assert sorted(together(*[write] * 8)) == ["commit 1", *["conflict"] * 7]


def test_a_compaction_and_an_append_at_once_both_count(path: Path, add: Add) -> None:
    old = add(3)
    empty = Commit(seq=0, kind="append", lo=3, hi=9, rows=0, signature="0")
    new = Lake(path).attempt(0, 3) / "dt=2026-11-20" / "a.parquet"
    new.parent.mkdir(parents=True)
    new.write_bytes(b"abc")
    files = Lake(path).files_of({new: Digest(3)})
    compaction = msgspec.structs.replace(
        old, kind="compact", files=files, removes=[old.files[0].path]
    )
    together(*[lambda commit=commit: Lake(path).add(commit) for commit in (empty, compaction)])
    assert sorted(commit.kind for commit in Lake(path).commits()[1:]) == ["append", "compact"]
    with pytest.raises(LakeConflict, match="replaced already"):
        Lake(path).add(compaction)


# Tidying up


def test_only_old_attempts_that_no_commit_names_are_swept(path: Path, add: Add) -> None:
    lake = Lake(path)
    live = add(3).files[0].path
    abandoned, fresh = lake.attempt(3, 6), lake.attempt(3, 7)
    for attempt in (abandoned, fresh):
        (attempt / "_temporary" / "0").mkdir(parents=True)
    for found in [abandoned, *abandoned.rglob("*")]:
        os.utime(found, (time.time() - 100,) * 2)
    (path / "data" / "notes of somebody").mkdir()
    assert lake.sweep(50) == 1
    assert not abandoned.exists()
    assert (
        fresh.exists() and (path / live).exists() and (path / "data" / "notes of somebody").exists()
    )
    assert lake.sweep(0) == 1
    assert (path / live).exists() and not fresh.exists()


def test_replaced_files_go_after_the_grace(path: Path, add: Add) -> None:
    old = path / add(3).files[0].path
    add(3, kind="compact", lo=0, hi=3, removes=[str(old.relative_to(path))])
    assert Lake(path).sweep(100) == 0
    assert old.exists()
    assert Lake(path).sweep(0) == 1
    assert not old.exists()
    assert len(Lake(path).paths()) == 1
