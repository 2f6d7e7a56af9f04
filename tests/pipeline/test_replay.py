"""The job replay: dead letters run again, once each, and SQL says which message replays which."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import msgspec
import pytest
from django.db import connection
from django.utils import timezone as django_timezone

from django_delayq.core.exceptions import LoadLost
from django_delayq.core.message import Record, decode_body, key_id, limit_id, new_id, task_code
from django_delayq.models import ArchivedMessage, OperatorAction
from django_delayq.pipeline.bulk_load import message_frames, replay
from django_delayq.pipeline.job_errors import Refused
from django_delayq.pipeline.jobs import run
from django_delayq.pipeline.params import ParameterSpec, Params, Storage, TaskSpec
from django_delayq.store import keys
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from tests.app.tasks import record

pytestmark = [pytest.mark.databases, pytest.mark.timeout(300)]

TASK = TaskSpec(
    name="tests.app.tasks.record", topic="crowd", ttr_ms=60_000,
    parameters=[ParameterSpec(name="amount", kind="both"), ParameterSpec(name="note", kind="both", required=False)],
)  # fmt: skip
LONG_AGO = datetime(2026, 1, 5, 10, 0, tzinfo=timezone.utc)
BODY = '{"args":[9007199254740993,1.0],"kwargs":{}}'

Job = Callable[..., Any]


def dead(**fields: Any) -> ArchivedMessage:
    """A dead letter of some time ago."""
    key = fields.get("key", "")
    identity = key_id("crowd", key) if key else new_id()
    number = ArchivedMessage.objects.count()
    given = {
        "message_id": UUID(bytes=identity), "enqueued_at": LONG_AGO + timedelta(seconds=number), "topic": "crowd",
        "partition": 0, "task": TASK.name, "key": "", "state": "dead", "reason": "", "body": BODY, "headers": "",
        "priority": 1, "ttr_ms": 60_000, "due_at": LONG_AGO, "finished_at": LONG_AGO, "error_class": "Timeout",
        "archived_at": LONG_AGO,
    }  # fmt: skip
    return ArchivedMessage.objects.create(**given | fields)


@pytest.fixture
def crowd(split: Callable[[int], RedisStore], transactional_db: None) -> RedisStore:
    return split(2)


@pytest.fixture
def job(spark: Any, crowd: RedisStore, parameters: Callable[..., Params]) -> Job:
    def start(*, params: dict[str, Any] | None = None, **options: Any) -> Any:
        given = {
            "job": "again",
            "tasks": [msgspec.to_builtins(TASK)],
            "by": "anna",
            "reason": "fixed",
            "splits": 2,
        }
        return run("replay", spark, parameters(job={**given, **options}, **params or {}))

    return start


def live(store: RedisStore) -> dict[int | None, Record]:
    """Record of each message by its origin."""
    found = {}
    for number in range(2):
        for raw in store.client.redis.hgetall(
            keys.partition_keys(store.client.prefix, Partition("crowd", number))[4]
        ).values():
            one = Record.decode(raw)
            found[decode_body(one.flags, one.body, b"").replay_of] = one
    return found


def left_alone(report: Any) -> dict[str, int]:
    return {row["left alone"]: row["rows"] for row in report.rows}


def marks() -> dict[int, UUID | None]:
    return dict(
        ArchivedMessage.objects.filter(replayed_at__isnull=False).values_list("pk", "replayed_by")
    )


def test_a_replay_is_under_the_limit_of_its_task(job: Job, crowd: RedisStore) -> None:
    limited = msgspec.structs.replace(TASK, limit=limit_id(TASK.name))
    other = msgspec.structs.replace(TASK, name="tests.app.tasks.noop")
    one, two = dead(priority=2), dead(task=other.name)
    job(tasks=msgspec.to_builtins([limited, other]))
    records = live(crowd)
    assert (records[one.pk].limit, records[one.pk].priority) == (limit_id(TASK.name), 2)
    assert records[two.pk].limit == b""
    assert [records[row.pk].task_code for row in (one, two)] == [
        task_code(row.task) for row in (one, two)
    ]


def test_a_dead_letter_becomes_a_message_as_it_was(job: Job, crowd: RedisStore) -> None:
    plain = dead(priority=2, ttr_ms=90_000, max_attempts=9, headers='{"a":"b"}')
    keyed = dead(key="käse", body='{"args":[],"kwargs":{"amount":"x"}}')
    report = job(delay_ms=3_600_000)
    found = live(crowd)
    one = found[plain.pk]
    body = decode_body(one.flags, one.body, b"")
    assert json.dumps(body.args) == "[9007199254740993, 1.0]"
    assert (body.headers, body.max_attempts, body.key) == ({"a": "b"}, 9, None)
    assert (int(one.priority), one.ttr_ms, one.task_code) == (2, 90_000, task_code(TASK.name))
    other = decode_body(0, found[keyed.pk].body, b"")
    assert (other.kwargs, other.key) == ({"amount": "x"}, "käse")
    links = marks()
    assert links[keyed.pk] == keyed.message_id and links[plain.pk] == UUID(
        bytes=key_id("again\0crowd", str(plain.pk))
    )
    figures = report.figures
    assert (figures["to replay"], figures["added"], figures["marked"], figures["key live"]) == (
        2,
        2,
        2,
        0,
    )
    action = OperatorAction.objects.get()
    assert (action.action, action.operator, action.reason, action.count) == (
        "replay",
        "anna",
        "fixed",
        2,
    )
    assert action.finished_at and action.job == "again"

    again = job(delay_ms=3_600_000)
    assert left_alone(again) == {"already replayed": 2}
    assert len(live(crowd)) == 2


@pytest.mark.long
def test_what_is_no_case_for_a_replay_is_left_alone_and_counted(
    job: Job, crowd: RedisStore
) -> None:
    cases = {
        "unknown task": dead(task="gone.task"),
        "unknown topic": dead(topic="gone"),
        "undecodable": dead(body='{"record":"aGk="}'),
        "redacted": dead(body='{"args":[1],"kwargs":{},"redaction":"done"}'),
        "discarded": dead(discarded_at=django_timezone.now()),
        "already replayed": dead(replayed_at=django_timezone.now(), replayed_by=UUID(int=5)),
        "arguments refused": dead(body='{"args":[],"kwargs":{"amonut":1}}'),
        "newer one with this key": dead(key="k"),
    }
    newest = dead(key="k")
    dead(state="acked")
    dead(key="another", message_id=UUID(bytes=new_id()))  # its id is not that of its key
    dead(body='{"args":[1,2,3],"kwargs":{}}')  # the task takes two
    dead(body=f'{{"args":[{"[" * 5_000 + "]" * 5_000}],"kwargs":{{}}}}')  # deeper than Python reads
    dead(body='{"args":[1e400],"kwargs":{}}')  # no worker can read it
    dead(headers='{"a":1}')  # nor this
    report = job()
    assert left_alone(report) == {
        **dict.fromkeys(cases, 1),
        "undecodable": 3,
        "arguments refused": 4,
    }
    assert set(live(crowd)) == {newest.pk}
    assert set(marks()) == {newest.pk, cases["already replayed"].pk}


@pytest.mark.long
def test_only_a_task_with_args_takes_more_than_its_parameters(job: Job, crowd: RedisStore) -> None:
    more = [*TASK.parameters, ParameterSpec(name="more", kind="rest", required=False)]
    open_task = msgspec.structs.replace(TASK, name="tests.app.tasks.noop", parameters=more)
    body = '{"args":[1,2,3],"kwargs":{}}'
    dead(body=body)
    taken = dead(task=open_task.name, body=body)
    report = job(tasks=msgspec.to_builtins([TASK, open_task]))
    assert left_alone(report) == {"arguments refused": 1}
    assert set(live(crowd)) == {taken.pk}


def test_an_older_letter_of_a_key_is_not_replayed_when_the_newest_was(
    job: Job, crowd: RedisStore
) -> None:
    dead(key="k")
    dead(key="k", replayed_at=django_timezone.now(), replayed_by=UUID(int=5))
    assert left_alone(job()) == {"already replayed": 1, "newer one with this key": 1}
    assert live(crowd) == {}


@pytest.mark.long
def test_a_key_that_is_live_is_kept_and_its_origin_stays_open(job: Job, crowd: RedisStore) -> None:
    kept, free = dead(key="busy"), dead(key="free")
    record.using(topic="crowd", key="busy", delay=900).enqueue(5)
    report = job()
    assert (report.figures["added"], report.figures["key live"], report.figures["marked"]) == (
        1,
        1,
        1,
    )
    assert set(marks()) == {free.pk}
    theirs = live(crowd)[None]
    assert decode_body(theirs.flags, theirs.body, b"").args == [5]
    record.using(topic="crowd").cancel(key="busy")
    again = job()
    assert (again.figures["added"], again.figures["key live"]) == (0, 1)
    assert kept.pk not in marks()
    assert job(job="next").figures["added"] == 1
    assert set(marks()) == {kept.pk, free.pk}


@pytest.mark.long
def test_a_job_that_was_killed_before_it_marked_marks_the_rest(
    job: Job, crowd: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    origins = {dead().pk for _ in range(7)}
    monkeypatch.setattr(replay, "BATCH", 3)
    real = replay.mark_replayed
    calls = []

    def killed(rows: Any, given: Any) -> int:
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(rows, given)

    with monkeypatch.context() as patch:
        patch.setattr(replay, "mark_replayed", killed)
        with pytest.raises(KeyboardInterrupt):
            job()
    assert len(live(crowd)) == 7 and len(marks()) == 3
    late = dead()  # not of this job
    with monkeypatch.context() as patch:
        patch.setattr(replay, "SETTLE", 0.0)
        report = job()
    assert (report.figures["added"], report.figures["added before"], report.figures["marked"]) == (
        0,
        4,
        4,
    )
    assert set(marks()) == origins and late.pk not in live(crowd)
    action = OperatorAction.objects.get()
    assert action.count == 7


@pytest.mark.long
def test_a_job_that_was_killed_behind_its_last_mark_ends_when_it_is_repeated(
    job: Job, crowd: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead()
    with monkeypatch.context() as patch:
        patch.setattr(OperatorAction, "finish", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            job()
    job(params={"dry_run": True})
    assert OperatorAction.objects.get().finished_at is None
    assert job().figures["to replay"] == 0
    action = OperatorAction.objects.get()
    assert action.finished_at and action.count == 1


@pytest.mark.long
def test_a_database_may_end_the_connection_while_spark_is_at_work(
    job: Job, crowd: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no connections that somebody else could end")
    origin, ended = dead(), []
    own, end = "SELECT connection_id()", "KILL {}"
    if connection.vendor == "postgresql":
        own, end = "SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"

    def ending(function: Callable[..., Any]) -> Callable[..., Any]:
        def ends(*given: Any) -> Any:
            done = function(*given)
            with connection.cursor() as cursor, closing(connection.copy()) as other:
                cursor.execute(own)
                other.cursor().execute(end.format(cursor.fetchone()[0]))
            ended.append(function)
            return done

        return ends

    monkeypatch.setattr(replay, "_read", ending(replay._read))
    monkeypatch.setattr(message_frames, "write", ending(message_frames.write))
    assert job().figures["marked"] == 1
    assert set(marks()) == {origin.pk} and len(ended) == 2


@pytest.mark.long
def test_a_repetition_needs_no_memory_for_what_is_sent(
    job: Job, crowd: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f'{{"args":["{"x" * 60_000}"],"kwargs":{{}}}}'
    origins = {dead(body=body).pk for _ in range(40)}
    with monkeypatch.context() as patch:
        patch.setattr(replay, "_mark_origins", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            job()
    redis = crowd.client.redis
    redis.config_set("maxmemory", redis.info("memory")["used_memory"] + 2_000_000)
    try:
        with pytest.raises(Refused, match=r"takes about 2\.4 MB"):
            job(job="next")
        assert job().figures["marked"] == 40
    finally:
        redis.config_set("maxmemory", 0)
    assert set(marks()) == origins


@pytest.mark.long
def test_an_origin_whose_message_redis_loses_while_they_are_marked_stays_open(
    job: Job, crowd: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    origins = {dead(key="busy").pk, *(dead().pk for _ in range(6))}
    record.using(topic="crowd", key="busy", delay=900).enqueue(5)
    real = replay.mark_replayed

    def fails_over(rows: Any, given: Any) -> int:
        crowd.client.redis.flushdb()
        return real(rows, given)

    with monkeypatch.context() as patch:
        patch.setattr(replay, "BATCH", 3)
        patch.setattr(replay, "mark_replayed", fails_over)
        with pytest.raises(LoadLost):
            job()
    before = set(marks())
    assert len(before) == 2  # of three, and one is kept
    job()
    assert set(live(crowd)) == origins - before and set(marks()) == origins


@pytest.mark.long
def test_what_the_fence_skipped_unsent_is_never_marked(job: Job, crowd: RedisStore) -> None:
    known = {dead().pk for _ in range(4)}
    other = {dead(task="test.later").pk for _ in range(12)}
    assert job().figures["marked"] == 4
    later = [
        msgspec.to_builtins(one) for one in (TASK, msgspec.structs.replace(TASK, name="test.later"))
    ]
    with pytest.raises(
        Refused, match=r"letters was 4 and is 16.*another name, and give it only these"
    ):
        job(tasks=later)
    assert set(live(crowd)) == set(marks()) == known
    assert job(job="next", tasks=later).figures["added"] == 12
    assert set(live(crowd)) == set(marks()) == known | other


@pytest.mark.long
def test_a_letter_that_is_discarded_between_two_runs_lets_the_rest_go_on(
    job: Job, crowd: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newest, other = dead(key="k"), dead(key="k"), dead()
    with monkeypatch.context() as patch:
        patch.setattr(replay, "_mark_origins", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            job()
    ArchivedMessage.objects.filter(pk=newest.pk).update(discarded_at=django_timezone.now())
    assert job().figures["marked"] == 1
    assert set(marks()) == {other.pk} and older.pk not in live(crowd)


@pytest.mark.parametrize(
    "options",
    [
        {"where": "rand() < 0.5"},
        {"edits": {"amount": "rand()"}},
        {"where": "'now' = key or finished_at < Now() - interval 1 hour"},
        {"where": "finished_at < date 'today'"},
        {"edits": {"amount": "unix_timestamp( )"}},
    ],
)
def test_what_another_run_would_select_otherwise_is_refused(
    job: Job, crowd: RedisStore, options: Any
) -> None:
    dead()
    with pytest.raises(Refused, match="another value each time"):
        job(**options)
    assert live(crowd) == {}


def test_a_period_is_found_also_without_time_zones(crowd: RedisStore, settings: Any) -> None:
    inside = dead()
    dead(finished_at=LONG_AGO + timedelta(hours=2))
    settings.USE_TZ = False
    found = replay.ids_of_open(
        LONG_AGO - timedelta(hours=1), LONG_AGO + timedelta(hours=1), "crowd", 10**12
    )
    assert found == (inside.pk - 1, inside.pk)


def test_only_ids_from_the_first_open_letter_on_are_read(crowd: RedisStore) -> None:
    def ids() -> tuple[int, int]:
        return replay.ids_of_open(None, None, "", 10**12)

    assert replay.ids_of_open(None, None, "", 77) == (0, 77)
    closed = dead(replayed_at=django_timezone.now(), replayed_by=UUID(int=5))
    assert ids() == (closed.pk - 1, closed.pk)
    dead(state="acked")
    first, last = dead(), dead(discarded_at=django_timezone.now())
    dead(state="acked")
    assert ids() == (first.pk - 1, last.pk)


@pytest.mark.long
def test_texts_and_comments_may_speak_of_the_present(job: Job, crowd: RedisStore) -> None:
    one = dead(key="now()")
    job(where="key = 'now()' and error_class != \"it\\'s now\" -- and not now")
    assert set(live(crowd)) == {one.pk}


@pytest.mark.long
def test_a_condition_chooses_and_edits_change(job: Job, crowd: RedisStore) -> None:
    wanted = dead(body='{"args":[9007199254740993],"kwargs":{"note":{"x":1.0}}}')
    dead(error_class="Other")
    dead(body='{"args":[5],"kwargs":{}}')
    where = "error_class = 'Timeout' and try_variant_get(args[0], '$', 'bigint') > 5"
    edits = {"amount": "variant_get(args[0], '$', 'bigint') + 1"}
    report = job(where=where, edits=edits)
    assert report.figures["added"] == 1
    body = decode_body(0, live(crowd)[wanted.pk].body, b"")
    assert (body.args, json.dumps(body.kwargs)) == ([9007199254740994], '{"note": {"x": 1.0}}')
    with pytest.raises(Refused, match="where was"):
        job(where="true", edits=edits)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"where": "nothing = 1"}, "condition 'nothing = 1' does not fit.*nothing"),
        ({"where": "error_class ="}, "does not fit"),
        ({"edits": {"amuont": "1"}}, "'amuont' fits no task"),
        (
            {"edits": {"amount": "finished_at"}},
            "edit of 'amount' is of type timestamp.*ISO 8601",
        ),
        ({"edits": {"amount": "args[0]"}}, "variant.*variant_get"),
        ({"where": "id = 1; id = 2"}, r"does not fit: \[PARSE_SYNTAX_ERROR"),
        ({"where": "replayed_at is null"}, "condition 'replayed_at is null' does not fit"),
        ({"edits": {"amount": "standing"}}, "edit amount='standing' does not fit"),
        ({"edits": {"amount": "max(id)"}}, "not a value of one letter"),
        ({"edits": {"amount": "explode(array(1, 2))"}}, "not a value of one letter"),
        ({"edits": {"amount": "nothing"}}, "edit amount='nothing' does not fit"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_start(
    job: Job, crowd: RedisStore, options: Any, words: str
) -> None:
    dead()
    with pytest.raises(Refused, match=words):
        job(params={"lake": Storage()}, **options)
    assert (live(crowd), marks()) == ({}, {})


def test_a_dry_run_counts_and_changes_nothing(job: Job, crowd: RedisStore) -> None:
    dead()
    dead(task="gone.task")
    before = crowd.client.redis.keys(f"{crowd.client.prefix}:*")
    report = job(params={"dry_run": True})
    assert report.figures == {"selected": 2, "to replay": 1} and left_alone(report) == {
        "unknown task": 1
    }
    assert (crowd.client.redis.keys(f"{crowd.client.prefix}:*"), marks()) == (before, {})
    assert not OperatorAction.objects.exists()


@pytest.mark.long
def test_nothing_dead_is_nothing_to_do(job: Job, crowd: RedisStore) -> None:
    assert job().figures == {"selected": 0, "to replay": 0}


@pytest.mark.long
def test_the_lake_is_asked_for_content_and_sql_for_what_became_of_it(
    job: Job, crowd: RedisStore, spark: Any, parameters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, pruned, closed = dead(), dead(), dead()
    run("export", spark, parameters(job={"settle": 0}))
    pruned.delete()
    ArchivedMessage.objects.filter(pk=closed.pk).update(discarded_at=django_timezone.now())
    report = job(
        source="lake", params={"since": "2026-01-05T09:00:00Z", "until": "2026-01-05T11:00:00Z"}
    )
    assert left_alone(report) == {"no longer in the archive": 1, "discarded": 1}
    assert set(live(crowd)) == set(marks()) == {origin.pk}
