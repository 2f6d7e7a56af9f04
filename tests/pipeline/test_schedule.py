"""The job schedule: each row becomes one message, once, whatever is killed and however often it is
repeated."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from django.contrib.auth.models import User
from django.db import connection
from pyspark.errors import PythonException
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from django_delayq import topic_stats
from django_delayq.core.exceptions import (
    ConfigurationError,
    DelayQError,
    FenceChanged,
    StoreUnavailable,
)
from django_delayq.core.message import Record, decode_body, key_id
from django_delayq.models import OutboxMessage
from django_delayq.pipeline import schemas
from django_delayq.pipeline.bulk_load import loads, message_frames, messages, schedule
from django_delayq.pipeline.bulk_load.messages import LoadTotals
from django_delayq.pipeline.bulk_load.row_files import open_rows
from django_delayq.pipeline.bulk_load.row_messages import CORRUPT
from django_delayq.pipeline.bulk_load.schedule_source import WHOLE_FILES, read_source
from django_delayq.pipeline.bulk_load.send_file import send_file
from django_delayq.pipeline.job_errors import Refused, cause
from django_delayq.pipeline.jobs import run
from django_delayq.pipeline.params import (
    Database,
    ParameterSpec,
    Params,
    Redis,
    ScheduleOptions,
    Secret,
    TaskSpec,
)
from django_delayq.pipeline.session import configured
from django_delayq.pipeline.sinks import loader
from django_delayq.pipeline.sinks.loader import Loader, LoadSpec, Pace
from django_delayq.pipeline.sinks.queue_sink import QueueSink, QueueWriter, WrittenMessages
from django_delayq.pipeline.source_options import encoded
from django_delayq.store import get_store, keys
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from tests.pipeline.failing_writers import FailingWriter
from tests.store.factories import full

#: A test that times out in the middle of a call leaves Spark's session useless for those after it.
pytestmark = pytest.mark.timeout(300)

ROWS = 1_000
PARTITIONS = 3
TASK = TaskSpec(
    name="tests.app.tasks.record", topic="crowd", ttr_ms=60_000,
    parameters=[ParameterSpec(name="number", kind="both", annotation="int"), ParameterSpec(name="note", kind="both",
                                                                                           required=False)],
)  # fmt: skip
DATABASE = Database(engine="", name="", table="")
FAR = datetime(2033, 1, 1, tzinfo=timezone.utc)

Job = Callable[..., Any]


@pytest.fixture
def crowd(split: Callable[[int], RedisStore]) -> RedisStore:
    return split(PARTITIONS)


@pytest.fixture
def parquet(spark: Any, tmp_path: Path) -> str:
    path = str(tmp_path / "rows")
    frame = spark.range(ROWS).selectExpr(
        "cast(id AS string) AS k", "id AS number", "concat('n', id) AS note"
    )
    frame.write.parquet(path)
    return path


@pytest.fixture
def job(spark: Any, crowd: RedisStore, parameters: Callable[..., Params]) -> Job:
    def start(source: str, *, dry_run: bool = False, **options: Any) -> Any:
        given = {
            "job": "night",
            "task": msgspec.to_builtins(TASK),
            "source": source,
            "format": "parquet",
            "key": "k",
        }
        return run("schedule", spark, parameters(job={**given, **options}, dry_run=dry_run))

    return start


def live(store: RedisStore) -> dict[bytes, tuple[float, Record]]:
    """Due time (ms) and record of everything in the topic."""
    found = {}
    for number in range(max(store.partitions.counts("crowd"))):
        names = keys.partition_keys(store.client.prefix, Partition("crowd", number))
        records = store.client.redis.hgetall(names[4])
        for lane in names[:3]:
            for identity, due in store.client.redis.zrange(lane, 0, -1, withscores=True):
                found[identity] = (due, Record.decode(records[identity]))
    return found


def counts(report: Any) -> tuple[int, ...]:
    return tuple(report.figures[name] for name in ("added", "live already", "added before"))


def finish(store: RedisStore, count: int) -> None:
    """Run so many."""
    left = count
    for number in range(PARTITIONS):
        partition = Partition("crowd", number)
        for lease in store.claim(partition, min(500, left)).leases:
            store.ack(partition, [(lease, b"{}")])
            left -= 1


def test_each_row_becomes_a_message_once(job: Job, crowd: RedisStore, parquet: str) -> None:
    report = job(parquet)
    assert counts(report) == (ROWS, 0, 0)
    found = live(crowd)
    assert set(found) == {key_id("crowd", str(number)) for number in range(ROWS)}
    _, record = found[key_id("crowd", "7")]
    body = decode_body(record.flags, record.body, b"")
    assert (body.kwargs, body.key) == ({"number": 7, "note": "n7"}, "7")
    assert topic_stats("crowd").backlog + topic_stats("crowd").delayed == ROWS

    finish(crowd, 400)
    again = job(parquet)
    assert counts(again) == (0, 0, ROWS)
    assert len(live(crowd)) == ROWS - 400


@pytest.mark.long
def test_a_job_that_was_broken_off_adds_the_rest(
    job: Job, crowd: RedisStore, parquet: str, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schedule, "WRITER", FailingWriter)
        with pytest.raises(
            DelayQError, match=r"machine has gone.*of 1,000 messages were added.*adds the rest"
        ):
            job(parquet, delay_ms=3_600_000)
    dues = {identity: due for identity, (due, _) in live(crowd).items()}
    assert 0 < len(dues) < ROWS
    finish(crowd, 0)
    report = job(parquet, delay_ms=3_600_000)
    added, refused, skipped = counts(report)
    # Tasks that ran beside the one that failed may have gone on for a moment after the job had
    # ended.
    assert (added + skipped, refused) == (ROWS, 0) and len(dues) <= skipped < ROWS
    assert len(live(crowd)) == ROWS
    # The delay counts from the first start.
    assert len({due for due, _ in live(crowd).values()}) == 1


@pytest.mark.long
def test_another_source_under_the_same_name_is_refused(
    job: Job, crowd: RedisStore, parquet: str, spark: Any
) -> None:
    job(parquet)
    spark.createDataFrame([("new", 1, "x")], "k string, number bigint, note string").write.mode(
        "append"
    ).parquet(parquet)
    before = live(crowd)
    with pytest.raises(Refused, match=r"rows was 1000 and is 1001.*another name"):
        job(parquet)
    with pytest.raises(Refused, match=r"delay_ms was 0 and is 5"):
        job(parquet, delay_ms=5)
    assert live(crowd) == before
    assert counts(job(parquet, job="other")) == (1, ROWS, 0)


@pytest.mark.long
def test_another_topic_of_the_task_under_the_same_name_is_refused(
    job: Job, crowd: RedisStore, parquet: str
) -> None:
    job(parquet)
    moved = {**msgspec.to_builtins(TASK), "topic": "default"}
    for keyed in (True, False):
        with pytest.raises(Refused, match=r"topic was crowd and is default"):
            job(parquet, task=moved, keyed=keyed)
    assert topic_stats("default").backlog == 0


def test_a_folder_for_rejects_that_has_something_else_is_left_alone(
    job: Job, parquet: str, tmp_path: Path
) -> None:
    for name in ("thesis.doc", ".thesis"):
        precious = tmp_path / "bad" / "night.rejects" / name
        precious.parent.mkdir(parents=True, exist_ok=True)
        precious.write_text("years of work")
        with pytest.raises(Refused, match=rf"night\.rejects.*did not write {name}"):
            job(parquet, rejects=str(tmp_path / "bad"))
        assert precious.exists()
        precious.rename(tmp_path / name)
    for source in (str(tmp_path / "bad" / "night.rejects"), str(tmp_path / "bad")):
        with pytest.raises(Refused, match=r"and the source is"):
            job(source, rejects=str(tmp_path / "bad"))


@pytest.mark.long
def test_more_partitions_between_two_runs_are_refused(
    job: Job, split: Callable[[int], RedisStore], parquet: str
) -> None:
    job(parquet)
    split(PARTITIONS + 1)
    with pytest.raises(Refused, match=r"partitions was 3 and is 4"):
        job(parquet)


@pytest.mark.long
def test_a_key_that_is_live_is_kept_also_in_an_old_partition(
    job: Job, split: Callable[[int], RedisStore], parquet: str
) -> None:
    from tests.app.tasks import record

    split(1)
    ours = [record.using(topic="crowd", key=str(n), delay=900).enqueue(-1) for n in range(5)]
    store = split(PARTITIONS)
    assert counts(job(parquet)) == (ROWS - 5, 5, 0)
    for handle in ours:
        places = [
            store.queries.find(Partition("crowd", n), [handle.identity])[0]
            for n in range(PARTITIONS)
        ]
        (found,) = [one for one in places if one]
        assert decode_body(0, found.record[23:], b"").args == [-1]
    assert counts(job(parquet)) == (0, 0, ROWS)


@pytest.mark.long
def test_a_dry_run_counts_and_changes_nothing(
    job: Job, crowd: RedisStore, spark: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "some")
    rows = [("1", 1), ("2", None), ("2", 3)]
    spark.createDataFrame(rows, "k string, number bigint").write.parquet(path)
    before = crowd.client.redis.keys(f"{crowd.client.prefix}:*")
    report = job(path, dry_run=True)
    assert report.figures == {"rows": 3, "refused": 2, "messages": 1}
    assert {row["key"] for row in report.rows} == {"2"}
    assert crowd.client.redis.keys(f"{crowd.client.prefix}:*") == before


@pytest.mark.long
def test_bad_rows_refuse_the_job_or_go_to_the_rejects(
    job: Job, crowd: RedisStore, spark: Any, tmp_path: Path
) -> None:
    path, rejects = str(tmp_path / "some"), tmp_path / "rejects"
    spark.createDataFrame(
        [("1", 1), ("2", None), (None, 3)], "k string, number bigint"
    ).write.parquet(path)
    with pytest.raises(Refused, match=r"2 of 3 rows cannot be messages.*row '2': number is null"):
        job(path)
    assert live(crowd) == {}
    for added in (1, 0):
        assert counts(job(path, rejects=str(rejects)))[0] == added
    lines = [
        line
        for file in rejects.glob("night.rejects/*.json")
        for line in file.read_text().splitlines()
    ]
    found = sorted((json.loads(line) for line in lines), key=str)
    assert found == [
        {"reason": "its key is null", "row": {"number": 3}},
        {"reason": "number is null, and the task takes int", "row": {"k": "2"}},
    ]


@pytest.mark.long
def test_csv_and_json_lines(job: Job, crowd: RedisStore, tmp_path: Path) -> None:
    csv, lines = tmp_path / "rows.csv", tmp_path / "rows.jsonl"
    csv.write_text(
        'k,number,note,at\n007,12,"a ""b""\nc, '
        'd",2033-01-01T01:00:00+01:00\nshort,1\n8,x,,2033-01-01T00:00Z\n'
    )
    report = job(str(csv), format="csv", due="at", rejects=str(tmp_path / "rejects"))
    assert (report.figures["rows"], report.figures["refused"], report.figures["added"]) == (3, 2, 1)
    due, record = live(crowd)[key_id("crowd", "007")]
    assert list(decode_body(record.flags, record.body, b"").kwargs.values()) == [12, 'a "b"\nc, d']
    assert due == FAR.timestamp() * 1000

    lines.write_text(
        '\ufeff{"k": "a", "number": 5, "note": ["x", {"y": null}]}\nnot json\n \t\n'
        '{"k": "b", "number": 6}\n'
    )
    report = job(str(lines), format="json", job="lines", rejects=str(tmp_path / "rejects"))
    assert (report.figures["refused"], report.figures["added"]) == (1, 2)
    _, record = live(crowd)[key_id("crowd", "a")]
    assert decode_body(record.flags, record.body, b"").kwargs["number"] == 5


@pytest.mark.long
def test_what_stands_in_a_json_line_arrives(job: Job, crowd: RedisStore, tmp_path: Path) -> None:
    notes = {
        "a": '{"a": 1}', "b": '{"a":1.0,"b":null}', "c": "5", "d": '"5"', "e": "123456789012345678901234567890",
        "f": '["1e3",1e3,"\\u00e9",{"z":[],"a":{}}]', "g": "null", "h": '"x, \\"y\\""',
    }  # fmt: skip
    lines = [
        f'{{"number": {at}, "k": "{key}", "note": {note}}}'
        for at, (key, note) in enumerate(notes.items())
    ]
    wrong = [
        '{"k": "m"}',
        '{"k": 1.5, "number": 1}',
        '{"k": "s", "number": "1"}',
        '{"k": "n", "number": NaN}',
        "[1]",
    ]
    lines += ['{"k": 8, "number": 8}', "", *wrong]
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(lines))
    report = job(str(path), format="json", rejects=str(tmp_path / "bad"))
    assert (report.figures["refused"], report.figures["added"]) == (5, 9)
    found = live(crowd)
    for key, note in notes.items():
        assert f'"note":{note}' in found[key_id("crowd", key)][1].body.decode()
    _, record = found[key_id("crowd", "8")]
    assert decode_body(record.flags, record.body, b"").kwargs == {
        "number": 8
    }  # the task has its default
    rows = [
        json.loads(line)
        for file in tmp_path.glob("bad/*/*.json")
        for line in file.read_text().splitlines()
    ]
    assert sorted((one["reason"], json.dumps(one["row"])) for one in rows) == [
        ("it cannot be read", json.dumps({"_corrupt_record": "[1]"})),
        ("it cannot be read", json.dumps({"_corrupt_record": '{"k": "n", "number": NaN}'})),
        ("its key is neither text nor a whole number", '{"k": 1.5, "number": 1}'),
        ("number is \"1\", and the task takes int", '{"k": "s", "number": "1"}'),
        ("number is missing", '{"k": "m"}'),
    ]  # fmt: skip


def test_fields_that_spark_takes_for_one_are_refused(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"k": 1, "number": 1}\n{"K": 1, "number": 1}')
    with pytest.raises(Refused, match="for one column: K, k"):
        job(str(path), format="json")


def test_sources_that_cannot_be_read_are_refused(job: Job, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"cannot be read as parquet.*PATH_NOT_FOUND"):
        job(str(tmp_path / "none"))
    with pytest.raises(Refused, match=r"cannot name a job"):
        job("x", job="a night")


@pytest.mark.long
@pytest.mark.databases
def test_a_table_and_a_query_are_read_and_nothing_else(job: Job, crowd: RedisStore) -> None:
    joined = datetime(2033, 1, 1, 0, 0, 0, 1, tzinfo=timezone.utc)
    User.objects.bulk_create(
        User(username=f"u{n}", first_name="é'\n", date_joined=joined) for n in range(25)
    )
    table = User._meta.db_table
    columns = {"number": "id", "note": "first_name"}
    report = job(table, format="table", key="username", columns=columns, due="date_joined")
    assert counts(report) == (25, 0, 0)
    due, record = live(crowd)[key_id("crowd", "u7")]
    body = decode_body(record.flags, record.body, b"")
    assert body.kwargs["note"] == "é'\n"
    assert due == FAR.timestamp() * 1000 + 1
    query = f"SELECT id AS number, username AS k FROM {table} WHERE username <> 'a;b' ORDER BY id;"
    assert counts(job(query, format="query", job="query", keyed=False)) == (25, 0, 0)
    empty = job(
        f"SELECT id AS number, username AS k FROM {table} WHERE id < 0", format="query", job="empty"
    )
    assert empty.figures["rows"] == 0
    User.objects.all().delete()


@pytest.mark.databases
@pytest.mark.parametrize(
    "query", ["DELETE FROM auth_user", "SELECT 1; DELETE FROM auth_user", "", "VACUUM"]
)
def test_only_a_select_is_a_query(job: Job, query: str) -> None:
    with pytest.raises(Refused, match=r"not a single SELECT"):
        job(query, format="query")


@pytest.mark.databases
def test_a_query_cannot_write(job: Job) -> None:
    User.objects.create(username="still here")
    table = User._meta.db_table
    writes = {
        "postgresql": f"WITH gone AS (DELETE FROM {table} RETURNING id) SELECT id AS number, 'x' AS k FROM gone",
        "sqlite": f"WITH x AS (SELECT 1) DELETE FROM {table}",
        "mysql": f"WITH x AS (SELECT 1 AS id) DELETE {table} FROM {table} JOIN x USING (id)",
    }
    with pytest.raises(Exception, match=r"(?i)read.?only|syntax|data-modifying"):
        job(writes[connection.vendor], format="query")
    assert User.objects.filter(username="still here").delete()[0] == 1


@pytest.mark.long
def test_a_load_that_redis_has_no_room_for_is_refused(
    job: Job, crowd: RedisStore, parquet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads, "_memory", lambda store: [(0, 10**9), (90_150_000, 95_000_000)])
    with pytest.raises(
        Refused,
        match=r"about 0\.2 MB of Redis' memory \(1,000 messages on 2 nodes\), and 0\.1 MB are free of 95 MB",
    ):
        job(parquet)
    assert live(crowd) == {}
    monkeypatch.undo()
    report = job(parquet)
    assert "Redis has no maxmemory" in report.problems[0]


def test_the_memory_is_that_of_the_server(crowd: RedisStore) -> None:
    ((used, most),) = loads._memory(crowd)
    assert used > 100_000 and most == 0
    assert loads.check_memory(crowd, LoadTotals(10, 100, ""), 10, 3) == ""


@pytest.mark.long
def test_a_redis_that_is_full_loses_nothing(
    job: Job, crowd: RedisStore, parquet: str, server: Any
) -> None:
    with full(server), pytest.raises(DelayQError):
        job(parquet)
    assert live(crowd) == {}
    assert counts(job(parquet)) == (ROWS, 0, 0)


def test_a_refusal_within_a_load_stays_one(crowd: RedisStore) -> None:
    fences = loads.Fences(crowd, "night", [Partition("crowd", 0)])
    for refusal in (FenceChanged("another load"), ConfigurationError("no secret"), Refused("no")):
        with pytest.raises(type(refusal)), fences.reporting({"new": 0}, 5):
            raise refusal
    with (
        pytest.raises(DelayQError, match="boo 0 of 5 messages were added"),
        fences.reporting({"new": 0}, 5),
    ):
        raise DelayQError("boo")


# Without Spark


def rows_of(frame: Any) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


#: Files whose rows Spark's own reader, or lines that end at each CR, would make otherwise.
CSV_FILES = {
    "CR LF within quotes": b'k,note\r\n1,"a\r\nb"\r\n2,"c\nd"\r\n',
    "several line ends": b"k,note\r\n1,a\n2,b\r3,c\r\n",
    "CR alone": b"k,note\r1,a\r2,b\r",
    "not UTF-8": b"k,note\n1,a\xff\n2,\xc3\xa9\n\xff,x\n3,\xed\xa0\x80\n4,\xef\xbf\xbd\n",
    "nothing but commas": b"k,note\n1,a\n,\n\n2,\n,\n",
    "quotes in the middle": b'k,note\n1,"a"b\n2,a"b"c\n3,"a\\"b"\n4,"a" \n',
    "NUL": b"k,note\n1,\0\0\n",
    "names that differ in case": b"k,note,Note\n1,a,b\n",
    "a mark of UTF-8": b'\xef\xbb\xbf"k",note\n1,""\n2\n3,a,b\n',
    "nothing but names": b"k,note\n",
}
JSON_FILES = {
    "CR as a blank": b'{"k": 1}\r\n{"k":\r2}\r\n{"k": 3}\r{"k": 4}\n[1]\r\n',
    "not UTF-8": b'{"k": "\xff"}\n{"k": "\xc3\xa9"}\n',
}


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        *(pytest.param("csv", content, id=f"csv: {name}") for name, content in CSV_FILES.items()),
        *(
            pytest.param("json", content, id=f"json: {name}")
            for name, content in JSON_FILES.items()
        ),
    ],
)
def test_one_process_and_spark_read_the_same(
    spark: Any, tmp_path: Path, kind: Any, content: bytes
) -> None:
    path = tmp_path / "rows"
    path.write_bytes(content)
    options = ScheduleOptions(job="night", task=TASK, source=str(path), format=kind, key="k")
    with configured(spark, WHOLE_FILES):
        found = rows_of(read_source(spark, options, DATABASE))
    file = open_rows(str(path), kind)
    alone = [row for rows, _ in file.batches() for row in rows.to_pylist()]
    unread = [row.pop(CORRUPT) is None for row in alone]
    assert [row.pop(CORRUPT) is None for row in found] == unread
    assert found == alone


def test_spark_leaves_each_file_of_csv_whole(spark: Any, tmp_path: Path) -> None:
    names = [f"{folder}/{name}" for folder in ("dt=01", "dt=02") for name in ("a", "b")]
    for number, name in enumerate(names):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("k,note\n" + f'{number},"a\nb"\n' * 100)
    (tmp_path / "dt=02" / "empty").touch()
    options = ScheduleOptions(job="night", task=TASK, source=str(tmp_path), format="csv", key="k")
    small = {"spark.sql.files.maxPartitionBytes": "500", "spark.sql.files.openCostInBytes": "0"}
    with configured(spark, small):
        with configured(spark, WHOLE_FILES):
            found = rows_of(read_source(spark, options, DATABASE).distinct())
        # A file that is cut is an error, and no other rows.
        with pytest.raises(Exception, match="has to be read whole"):
            read_source(spark, options, DATABASE).collect()
    rest = {CORRUPT: None, "note": "a\nb"}
    wanted = [{"k": str(number), "dt": name[3:5]} | rest for number, name in enumerate(names)]
    assert sorted(found, key=lambda row: row["k"]) == wanted


def test_files_of_csv_with_other_columns_are_refused(job: Job, tmp_path: Path) -> None:
    for name, columns in (("a", "k,number"), ("b", "number,k")):
        (tmp_path / name).write_text(f"{columns}\n1,2\n")
    with pytest.raises(PythonException) as caught:
        job(str(tmp_path), format="csv")
    error = cause(caught.value)
    assert isinstance(error, Refused)
    assert "has the columns" in str(error)


def test_text_that_is_not_utf_8_is_a_row_that_both_refuse(
    job: Job, crowd: RedisStore, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"k,number,note\n1,1,a\xff\n2,2,b\n")
    with pytest.raises(Refused, match="row None: it cannot be read"):
        job(str(path), format="csv")
    options = ScheduleOptions(job="night", task=TASK, source=str(path), format="csv", key="k")
    with pytest.raises(Refused, match="line 2, row None: it cannot be read"):
        send_file(crowd, options, lambda *step: None)
    assert live(crowd) == {}


@pytest.mark.parametrize(
    ("rows", "line"),
    [('1,1,a\n2,2,"b\n3,3,c\n', 3), ('1,1,"a\nb"\n2,"2,\n3,3,c\n', 4), ('1,1,a\n2,2,"', 3)],
)
def test_a_quote_that_is_not_closed_hides_no_rows(
    job: Job, crowd: RedisStore, tmp_path: Path, rows: str, line: int
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"k,number,note\n{rows}")
    what = f"a quote is not closed, in line {line} or after it"
    with pytest.raises(PythonException) as caught:
        job(str(path), format="csv")
    error = cause(caught.value)
    assert isinstance(error, Refused)
    assert what in str(error)
    options = ScheduleOptions(job="night", task=TASK, source=str(path), format="csv", key="k")
    with pytest.raises(Refused, match=what):
        send_file(crowd, options, lambda *step: None)
    assert live(crowd) == {}


@pytest.mark.long
def test_one_process_and_spark_make_the_same_of_csv(
    job: Job, crowd: RedisStore, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(
        b'\xef\xbb\xbfk,number,note\r\n1,1,""\r\n2,2,\r\n\r\n3,3,"a ""b""\r\n, c"\r\n,,\r\n'
    )
    assert counts(job(str(path), format="csv")) == (3, 0, 0)
    notes = {
        key: decode_body(record.flags, record.body, b"").kwargs["note"]
        for key, (_, record) in live(crowd).items()
    }
    assert notes == {
        key_id("crowd", key): note for key, note in (("1", ""), ("2", None), ("3", 'a "b"\r\n, c'))
    }
    options = ScheduleOptions(job="night", task=TASK, source=str(path), format="csv", key="k")
    assert counts(send_file(crowd, options, lambda *step: None)) == (0, 0, 3)


@pytest.mark.long
def test_one_process_and_spark_go_on_where_the_other_has_stopped(
    job: Job, crowd: RedisStore, parquet: str, tmp_path: Path
) -> None:
    def alone(name: str, source: str) -> Any:
        options = ScheduleOptions(job=name, task=TASK, source=source, format="parquet", key="k")
        return counts(send_file(crowd, options, lambda *step: None))

    (file,) = Path(parquet).glob("part-00001-*.parquet")
    assert counts(job(str(file))) == (500, 0, 0)
    assert alone("night", str(file)) == (0, 0, 500)
    assert alone("morning", str(file)) == (0, 500, 0)
    finish(crowd, 100)
    assert counts(job(str(file), job="morning")) == (0, 0, 500)
    with pytest.raises(Refused, match=r"hash was .* and is"):
        alone("night", str(next(Path(parquet).glob("part-00000-*.parquet"))))


# The sink


def message_batch(places: list[tuple[str, int, int, bytes]]) -> pa.RecordBatch:
    """Messages of a topic, a partition, a split and an id."""
    rows = [(*place, None, "", messages.header(TASK), "[1]") for place in places]
    columns = dict(zip(schemas.MESSAGES.names, map(list, zip(*rows, strict=True)), strict=True))
    return pa.RecordBatch.from_pydict(columns, schemas.MESSAGES)


@pytest.mark.parametrize("where", ["bulk_load.load", "find_many"])
def test_a_call_that_cannot_be_sent_is_sent_again(
    split: Callable[[int], RedisStore], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    split(1)
    get_store().partitions.counts("crowd")
    store = split(PARTITIONS)
    monkeypatch.setattr(loader, "WAIT", 0.0)
    load, broken = store.bulk_load.load, []

    def breaks(send: Callable[..., Any]) -> Callable[..., Any]:
        def sent(*arguments: Any) -> Any:
            broken.append(where)
            if len(broken) < 3:
                raise StoreUnavailable("restarts")
            return send(*arguments)

        return sent

    if where == "find_many":
        monkeypatch.setattr(store, "find_many", breaks(store.find_many))
    else:
        monkeypatch.setattr(store.bulk_load, "load", lambda *given: breaks(load(*given)))
    batch = message_batch([("crowd", 1, 0, bytes([number]) * 16) for number in range(3)])
    done = Loader(store, spec()).run(iter([batch]))
    assert (done.rows, len(live(store)), len(broken) >= 3) == (3, 3, True)


def test_two_splits_have_a_call_on_their_way_and_a_split_never_two(
    crowd: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, on_their_way, seen = crowd.bulk_load.load, list[int](), set[tuple[int, ...]]()

    def watched(partition: Any, given: Any, split: int, *rest: Any) -> Callable[[], Any]:
        begin = load(partition, given, split, *rest)

        def begun() -> Callable[[], Any]:
            on_their_way.append(split)
            seen.add(tuple(sorted(on_their_way)))
            read = begin()
            return lambda: (on_their_way.remove(split), read())[1]

        return begun

    monkeypatch.setattr(crowd.bulk_load, "load", watched)
    batches = [
        message_batch([("crowd", 1, split, bytes([number, split]) * 8) for split in order])
        for number, order in enumerate([(0, 1), (1, 0), (0,), (0,)])
    ]
    assert Loader(crowd, spec()).run(iter(batches)).rows == len(live(crowd)) == 6
    assert (seen, on_their_way) == ({(0,), (0, 1)}, [])


def test_a_partition_that_a_topic_has_not_is_no_place(crowd: RedisStore) -> None:
    rows = {name: [None] for name in schemas.MESSAGES.names}
    rows |= {
        "topic": ["crowd"],
        "partition": [7],
        "split": [0],
        "id": [b"1" * 16],
        "header": [b"h"],
        "body": ["[]"],
    }
    batch = pa.RecordBatch.from_pydict(rows, schemas.MESSAGES)
    with pytest.raises(DelayQError, match=r"crowd.*7.*does not exist"):
        Loader(crowd, spec()).run(iter([batch]))
    assert live(crowd) == {}


def frame_of(spark: Any, count: int = 3) -> Any:
    rows = [
        ("crowd", 0, 0, bytes([number]) * 16, None, "", messages.header(TASK), f"[{number}]")
        for number in range(count)
    ]
    return spark.createDataFrame(rows, from_arrow_schema(schemas.MESSAGES)).coalesce(1)


def spec(**rest: Any) -> LoadSpec:
    return LoadSpec(**{"job": "mine", "fingerprint": "{}", "tasks": {}, "due_ms": 5} | rest)


def options_of(params: Params, given: LoadSpec) -> dict[str, str]:
    return {
        "redis": encoded(params.redis),
        "load": encoded(given),
    }


@pytest.mark.long
def test_a_frame_of_messages_can_be_written_by_hand(
    spark: Any, crowd: RedisStore, parameters: Callable[..., Params]
) -> None:
    params = parameters()
    spark.dataSource.register(QueueSink)
    frame_of(spark).write.format("delayq").options(**options_of(params, spec(rows=3))).mode(
        "append"
    ).save()
    assert {due for due, _ in live(crowd).values()} == {5.0}
    with pytest.raises(Exception, match=r"DelayQError: 3 messages were written of 4"):
        frame_of(spark).write.format("delayq").options(**options_of(params, spec(rows=4))).mode(
            "append"
        ).save()


@pytest.mark.parametrize(
    ("columns", "mode", "given", "words"),
    [
        (
            ["id", "body"],
            "append",
            {"redis": "{}", "load": "{}"},
            "no topic, partition, split.*job schedule",
        ),
        (schemas.MESSAGES.names, "overwrite", {"redis": "{}", "load": "{}"}, r"mode\('append'\)"),
        (schemas.MESSAGES.names, "append", {"redis": "{}"}, "`load` is missing"),
        (schemas.MESSAGES.names, "append", {"redis": "{"}, "`redis` cannot be read"),
    ],
)
def test_what_is_no_frame_of_messages_is_refused(
    columns: list[str], mode: str, given: Any, words: str
) -> None:
    schema = StructType(
        [field for field in from_arrow_schema(schemas.MESSAGES) if field.name in columns]
    )
    with pytest.raises((Refused, ConfigurationError), match=words):
        QueueSink(given).writer(schema, mode == "overwrite")


def test_a_split_in_two_tasks_is_an_error() -> None:
    writer = QueueWriter(Redis(Secret("")), spec())
    one, other = (
        WrittenMessages(splits=[("crowd", 0, 1)], rows=1),
        WrittenMessages(splits=[("crowd", 0, 2)], rows=1),
    )
    writer.commit([one, other, None])
    with pytest.raises(DelayQError, match="written by two tasks") as failed:
        writer.commit([one, other, one])
    assert not isinstance(failed.value, Refused)  # messages were written


def test_the_pace_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("time.sleep", sleep)
    pace = Pace(100.0)
    for _ in range(5):
        pace.wait()
        pace.count(pace.batch)
    assert (pace.batch, now[0]) == (100, 4.0)
    for _ in range(50):  # what the fence skips
        pace.wait()
        pace.count(0)
    assert now[0] == 5.0
    now[0] = 60.0
    for _ in range(2):  # what was not sent in time is not caught up with
        pace.wait()
        pace.count(100)
    assert now[0] == 61.0
    assert (Pace(None).batch, Pace(0.2).batch, Pace(5000).batch) == (500, 1, 500)


def test_the_rate_is_shared(spark: Any) -> None:
    frame = spark.range(1)
    assert message_frames.share(frame, None, 8) is None
    assert message_frames.share(frame, 100, 8) == 50  # of two cores
    assert message_frames.share(frame, 100, 1) == 100
    growing: Any = SimpleNamespace(
        sparkSession=SimpleNamespace(
            conf={"spark.dynamicAllocation.enabled": "true"}, sparkContext=spark.sparkContext
        )
    )
    assert message_frames.share(growing, 100, 3) == pytest.approx(100 / 3)


def test_the_tasks_follow_the_cluster_and_not_the_partitions(spark: Any) -> None:
    assert message_frames.tasks_of(spark.range(1), 4_000) == 4
    assert message_frames.tasks_of(spark.range(1), 3) == 3


@pytest.mark.long
def test_a_rate_is_kept_by_the_job(job: Job, spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "few")
    spark.range(60).selectExpr("cast(id AS string) AS k", "id AS number").write.parquet(path)
    begun = datetime.now(tz=timezone.utc)
    assert counts(job(path, max_per_second=40, splits=1)) == (60, 0, 0)
    assert datetime.now(tz=timezone.utc) - begun >= timedelta(seconds=0.4)
    assert get_store() and not OutboxMessage.objects.exists()
