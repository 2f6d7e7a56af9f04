"""manage.py delayq send --file: a message for each row of a file, once, without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from django.core.management import CommandError, call_command
from pyarrow import parquet

from django_delayq import topic_stats
from django_delayq.core.message import Record, decode_body, key_id
from django_delayq.pipeline.bulk_load import row_files, send_file
from django_delayq.pipeline.sinks import loader
from django_delayq.store import keys
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from tests.app.tasks import crowd as task
from tests.killed import run_killed

pytestmark = pytest.mark.django_db(transaction=True)

CROWD, ROWS, PARTITIONS = "tests.app.tasks.crowd", 3_000, 3


@pytest.fixture
def crowd(split: Callable[[int], RedisStore]) -> RedisStore:
    return split(PARTITIONS)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """A Parquet file."""
    path = tmp_path / "night.parquet"
    table = pa.table({"k": [f"order:{n}" for n in range(ROWS)], "number": range(ROWS)})
    parquet.write_table(table, path)
    return str(path)


def send(path: str, *more: str, name: str = CROWD) -> Any:
    """What the command says, as JSON."""
    out = StringIO()
    given = ("--file", path, *(("--key", "k") if "--key" not in more else ()), *more, "--json")
    call_command("delayq", "send", name, *given, stdout=out, stderr=StringIO())
    return json.loads(out.getvalue())


def refused(*args: str) -> str:
    with pytest.raises(CommandError) as caught:
        call_command("delayq", "send", *args, stdout=StringIO(), stderr=StringIO())
    assert caught.value.returncode == 2
    return str(caught.value)


def counts(data: Any) -> tuple[int, ...]:
    return tuple(data[name] for name in ("added", "live already", "added before"))


def bodies(store: RedisStore) -> dict[bytes, Any]:
    """What waits in the topic crowd."""
    found = {}
    for number in range(PARTITIONS):
        key = keys.partition_keys(store.client.prefix, Partition("crowd", number))[4]
        for identity, raw in store.client.redis.hgetall(key).items():
            record = Record.decode(raw)
            found[identity] = decode_body(record.flags, record.body, b"")
    return found


def finish(store: RedisStore, most: int) -> int:
    """Run so many of each partition."""
    done = 0
    for number in range(PARTITIONS):
        partition = Partition("crowd", number)
        leases = store.claim(partition, most).leases
        store.ack(partition, [(lease, b"{}") for lease in leases])
        done += len(leases)
    return done


def test_each_row_becomes_a_message_once(crowd: RedisStore, rows: str) -> None:
    assert counts(send(rows)) == (ROWS, 0, 0)
    found = bodies(crowd)
    assert set(found) == {key_id("crowd", f"order:{n}") for n in range(ROWS)}
    body = found[key_id("crowd", "order:7")]
    assert (body.kwargs, body.key) == ({"number": 7}, "order:7")
    done = finish(crowd, 100)
    assert counts(send(rows)) == (0, 0, ROWS)
    assert len(bodies(crowd)) == ROWS - done


def test_what_is_live_under_its_key_stays(crowd: RedisStore, rows: str) -> None:
    task.using(key="order:5", delay=900).enqueue(-1)
    assert counts(send(rows)) == (ROWS - 1, 1, 0)
    assert bodies(crowd)[key_id("crowd", "order:5")].args == [-1]


@pytest.mark.long
@pytest.mark.parametrize("call", [1, 2, 6], ids=lambda call: f"call {call}")
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_after_kill_9_the_same_command_sends_the_rest(
    crowd: RedisStore, rows: str, call: int, before: bool
) -> None:
    code = f"""
from django.core.management import call_command
from django_delayq.pipeline.sinks import loader
from tests.app import tasks

killing(loader.Loader, "_send", {call}, before={before})
call_command("delayq", "send", {CROWD!r}, "--file", {rows!r}, "--key", "k")
"""
    run_killed(code, TOPICS={"crowd": {"partitions": PARTITIONS}})
    stats = topic_stats("crowd")
    sent = stats.backlog + stats.delayed
    assert sent < ROWS
    finished = finish(crowd, 50)
    added, live, before_it = counts(send(rows))
    assert (added + before_it, live) == (ROWS, 0)
    assert len(bodies(crowd)) == ROWS - finished
    assert counts(send(rows)) == (0, 0, ROWS)


def test_all_texts_of_a_column_may_be_more_than_2_gib() -> None:
    """Else Arrow takes no rows of it: "offset overflow". A file of that size would take minutes
    here. These are the bodies, but also the name of the topic for each row."""
    small = {pa.string(), pa.binary()}
    assert [field.name for field in send_file.READ if field.type in small] == []


def test_a_quote_that_is_not_closed_in_a_large_file_is_refused_in_our_words(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('k,number\n1,1\n2,"' + "x" * 3 * row_files.MOST_CSV_ROW)
    assert "a row has more than 4,194,304 bytes, or a quote is not closed" in refused(
        CROWD, "--file", str(path), "--key", "k"
    )


@pytest.mark.parametrize("call", [4, 30], ids=["within a split", "after a partition"])
def test_what_redis_loses_meanwhile_is_said_and_sent_again(
    crowd: RedisStore, rows: str, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    send_part, calls = loader.Loader._send, count(1)
    keys_of_first = f"{crowd.client.prefix}:{{crowd:0}}:*"

    def lose_before(self: Any, *part: Any) -> None:
        if next(calls) == call:
            crowd.client.redis.delete(*crowd.client.redis.scan_iter(keys_of_first))
        send_part(self, *part)

    with monkeypatch.context() as patch:
        patch.setattr(loader, "BATCH", 50)
        patch.setattr(loader.Loader, "_send", lose_before)
        with pytest.raises(CommandError, match=r"lost messages.*the same job again adds the rest"):
            send(rows)
    assert len(bodies(crowd)) < ROWS
    added, live, before_it = counts(send(rows))
    assert (added + before_it, live) == (ROWS, 0)
    assert len(bodies(crowd)) == ROWS


def test_another_file_under_the_same_name_is_refused(crowd: RedisStore, rows: str) -> None:
    send(rows)
    parquet.write_table(pa.table({"k": ["new"], "number": [1]}), rows)
    assert "rows was 3000 and is 1" in refused(CROWD, "--file", rows, "--key", "k")
    assert counts(send(rows, "--job", "other")) == (1, 0, 0)


def test_rows_that_cannot_be_messages_are_told_with_their_lines(
    crowd: RedisStore, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,number\na,1\nb,x\nc,2\nc,3\nshort\n\n,4\nd,5\n")
    words = refused(CROWD, "--file", str(path), "--key", "id")
    assert "5 of 7 rows cannot be messages, and nothing was enqueued" in words
    assert "line 3, row 'b': number is x, and the task takes int" in words
    assert bodies(crowd) == {}
    for added, passed in ((2, 0), (0, 2)):
        sent = send(str(path), "--key", "id", "--rejects", str(tmp_path / "bad"))
        assert (sent["refused"], counts(sent)) == (5, (added, 0, passed))
    lines = (tmp_path / "bad" / "rows.rejects.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "line": 3,
            "reason": "number is x, and the task takes int",
            "row": {"id": "b", "number": "x"},
        },
        {
            "line": 4,
            "reason": "its key stands 2 times in the source",
            "row": {"id": "c", "number": "2"},
        },
        {
            "line": 5,
            "reason": "its key stands 2 times in the source",
            "row": {"id": "c", "number": "3"},
        },
        {"line": 6, "reason": "it cannot be read", "row": {"_corrupt_record": "short"}},
        {"line": 8, "reason": "its key is null", "row": {"number": "4"}},
    ]


def test_a_dry_run_counts_and_changes_nothing(crowd: RedisStore, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"k": "1", "number": 1}\n{"k": "2", "number": "x"}\n')
    before = crowd.client.redis.keys(f"{crowd.client.prefix}:*")
    found = send(str(path), "--dry-run")
    assert (found["rows"], found["refused"], found["messages"]) == (2, 1, 1)
    assert found["refused_rows"] == [
        {"line": 2, "key": "2", "reason": 'number is "x", and the task takes int'}
    ]
    assert crowd.client.redis.keys(f"{crowd.client.prefix}:*") == before


def test_due_times_columns_and_delays(crowd: RedisStore, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,n,at\n007,12,2033-01-01T01:00:00+01:00\n")
    sent = send(str(path), "--key", "id", "--due", "at", "--column", "number=n", "--no-keyed")
    assert counts(sent) == (1, 0, 0)
    (body,) = bodies(crowd).values()
    assert (body.kwargs, body.key) == ({"number": 12}, None)
    lanes = [
        crowd.client.redis.zrange(lane, 0, -1, withscores=True)
        for number in range(PARTITIONS)
        for lane in keys.partition_keys(crowd.client.prefix, Partition("crowd", number))[:3]
    ]
    assert [due for lane in lanes for _, due in lane] == [1_988_150_400_000.0]


def test_a_file_without_rows_sends_nothing(crowd: RedisStore, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("k,number\n")
    assert counts(send(str(path))) == (0, 0, 0)


@pytest.mark.parametrize("text", ["", "[1]\nno JSON\n"])
def test_file_without_any_row_says_that_it_has_none(
    crowd: RedisStore, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    words = refused(CROWD, "--file", str(path), "--key", "k")
    assert "The source has no row with columns." in words and "_corrupt" not in words


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--key", "k", "7"), "leave --values out"),
        (("--key", "k", "--topic", "x"), "leave --topic out"),
        ((), "--key has to name the column"),
        (("--key", "k", "--due", "at", "--delay", "5m"), "contradict"),
        (("--key", "kk"), "no column 'kk' for the key. Did you mean k"),
        (("--key", "k", "--job", "a b"), "cannot name a job"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    crowd: RedisStore, rows: str, more: tuple[str, ...], words: str
) -> None:
    first = ("7",) if "7" in more else ()
    rest = [one for one in more if one != "7"]
    assert words in refused(CROWD, *first, "--file", rows, *rest)
    assert bodies(crowd) == {}


def test_rejects_do_not_replace_the_source(crowd: RedisStore, tmp_path: Path) -> None:
    path = tmp_path / "j.rejects.jsonl"
    path.write_text('{"k": "1", "number": 1}')
    given = ("--key", "k", "--job", "j", "--rejects", str(tmp_path))
    assert "which is the source" in refused(CROWD, "--file", str(path), *given)


def test_options_of_rows_need_a_file_and_an_ending(crowd: RedisStore, tmp_path: Path) -> None:
    assert "--due is about the rows of a --file" in refused(CROWD, "7", "--due", "at")
    path = tmp_path / "rows.txt"
    path.write_text("k,number\n1,2\n")
    assert "give --format" in refused(CROWD, "--file", str(path), "--key", "k")
    assert counts(send(str(path), "--format", "csv")) == (1, 0, 0)


def test_where_bodies_are_encrypted_a_file_is_refused(
    crowd: RedisStore, rows: str, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "ENCRYPTION_KEYS": ["A" * 43]}
    assert "in plain text" in refused(CROWD, "--file", rows, "--key", "k")


def test_without_pyarrow_the_extra_is_named(
    crowd: RedisStore, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "django_delayq.pipeline.bulk_load.row_files", None)
    assert "django-delayq[arrow]" in refused(CROWD, "--file", rows, "--key", "k")


def test_progress_tells_rows_and_messages(crowd: RedisStore, rows: str) -> None:
    from django_delayq.pipeline.bulk_load.task_specs import spec_of
    from django_delayq.pipeline.params import ScheduleOptions

    seen: list[tuple[str, int, int]] = []
    options = ScheduleOptions(
        job="night", task=spec_of(CROWD), source=rows, format="parquet", key="k"
    )
    send_file.send_file(crowd, options, lambda *step: seen.append(step))
    assert (f"{ROWS:,} rows read", ROWS, ROWS) in seen
    assert seen[-1][1:] == (seen[-1][1], ROWS) and 0 < seen[-1][1] <= ROWS


def test_it_needs_no_spark() -> None:
    code = (
        "import sys; import django_delayq.pipeline.bulk_load.send_file; "
        "print({'pyspark', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run(
        (sys.executable, "-c", code), capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.strip() == "set()"
