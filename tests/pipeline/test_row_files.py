"""Files of rows without Spark: the same rows as Spark reads, with the line of each."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from django_delayq.pipeline import schemas
from django_delayq.pipeline.bulk_load import row_files
from django_delayq.pipeline.bulk_load.row_files import open_rows
from django_delayq.pipeline.bulk_load.row_messages import CORRUPT
from django_delayq.pipeline.job_errors import Refused


def read(path: Path, kind: str) -> list[tuple[int, dict[str, Any]]]:
    """Line and values of each row, without what is null."""
    found = []
    for rows, lines in open_rows(str(path), kind).batches():
        for line, row in zip(lines, rows.to_pylist(), strict=True):
            found.append((line, {name: value for name, value in row.items() if value is not None}))
    return found


def test_csv_has_the_line_of_each_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(
        b'\xef\xbb\xbfk,note\r\n1,"two\nlines, ""quoted"""\r\n\r\nshort\r\n2,""\r\n3,\r\n4,b,c\r\n'
        b"5,\xff\r\n6,last\r\n7,a,b"
    )
    assert read(path, "csv") == [
        (2, {"k": "1", "note": 'two\nlines, "quoted"'}),
        (5, {CORRUPT: "short"}),
        (6, {"k": "2", "note": ""}),
        (7, {"k": "3"}),
        (8, {CORRUPT: "4,b,c"}),
        (9, {CORRUPT: r"b'\xff'"}),
        (10, {"k": "6", "note": "last"}),
        (11, {CORRUPT: "7,a,b"}),
    ]


def test_a_csv_of_many_blocks_keeps_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows = [f'{n},"a\nb {"x" * 90}"' if n % 7 else f"{n},x,y" for n in range(40_000)]
    path.write_text("k,note\n" + "\n".join(rows))
    found = read(path, "csv")
    assert len(found) == 40_000
    text = path.read_text().splitlines()
    for line, row in found:
        start = row.get("k") or row[CORRUPT].partition(",")[0]
        assert text[line - 1].startswith(f"{start},")


def test_json_lines_keep_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"k": 1, "a": 1e3}\n\n[1]\r\n{"k": "x", "b": null}\n{"k": "\xff"}'
    )
    assert read(path, "json") == [
        (1, {"k": "1", "a": "1e3"}),
        (3, {CORRUPT: "[1]"}),
        (4, {"k": '"x"', "b": "null"}),
        (5, {CORRUPT: '{"k": "\\xff"}'}),
    ]


def test_parquet_keeps_its_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "BATCH", 2)
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"k": pa.array([1, 2, 3], pa.int16())}), path)
    file = open_rows(str(path), "parquet")
    assert (file.schema.field("k").type, file.size) == (pa.int16(), 3)
    assert read(path, "parquet") == [(1, {"k": 1}), (2, {"k": 2}), (3, {"k": 3})]


def test_large_rows_are_read_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_files, "BYTES", 1_000)
    monkeypatch.setattr(row_files, "BATCH", 100)
    texts = [*("x" * size for size in (10, 2_000, 400, 400, 400)), *("y" for _ in range(200))]
    as_json, as_parquet = tmp_path / "rows.jsonl", tmp_path / "rows.parquet"
    as_json.write_text("".join(f'{{"k": "{text}"}}\n' for text in texts))
    parquet.write_table(pa.table({"k": texts}), as_parquet)
    for path, kind, quote in ((as_json, "json", '"'), (as_parquet, "parquet", "")):
        found = list(open_rows(str(path), kind).batches())
        assert [line for part in found for line in part.lines] == list(range(1, 206))
        assert [row for part in found for row in part.rows["k"].to_pylist()] == [
            f"{quote}{text}{quote}" for text in texts
        ]
        assert all(len(part.rows) == 1 or part.rows.nbytes <= 2_000 for part in found)
        assert max(len(part.rows) for part in found) > 20


def test_categories_of_pandas_are_their_values(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    columns = {"k": pa.array(["a", "b", "a"]), "n": pa.array([1, None, 1])}
    parquet.write_table(
        pa.table({name: c.dictionary_encode() for name, c in columns.items()}), path
    )
    assert open_rows(str(path), "parquet").schema.types == [pa.string(), pa.int64()]
    wanted = [{"k": "a", "n": 1}, {"k": "b"}, {"k": "a", "n": 1}]
    assert [row for _, row in read(path, "parquet")] == wanted


def test_times_that_spark_writes_are_in_utc(tmp_path: Path) -> None:
    when = datetime(2033, 1, 1, 0, 0, 0, 1, tzinfo=timezone.utc)
    naive = pa.timestamp("us")
    table = pa.table(
        {"at": pa.array([when, None], schemas.TIME), "bare": pa.array([when, None], naive)}
    )
    for name, options in (("spark", {"use_deprecated_int96_timestamps": True}), ("plain", {})):
        path = tmp_path / f"{name}.parquet"
        parquet.write_table(table, path, **options)
        file = open_rows(str(path), "parquet")
        assert file.schema.field("at").type == schemas.TIME
        ((rows, _),) = file.batches()
        assert rows.schema == file.schema
        assert rows.column("at").to_pylist() == [when, None]
    assert open_rows(str(path), "parquet").schema.field("bare").type == naive


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.parquet", b"PAR1", "cannot be read: .*[Pp]arquet"),
        ("x.csv", b"", "cannot be read: .*[Ee]mpty"),
        ("x.csv", b"k,k\n1,2", "each by another name"),
        ("x.csv", b"k,\n1,2", "each by another name"),
        ("x.json", b'{"_corrupt_record": 1}', "rename it"),
        ("none.csv", None, "No such file"),
    ],
)
def test_what_is_no_such_file_is_refused(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Refused, match=words):
        open_rows(str(path), row_files.ENDINGS[path.suffix])
