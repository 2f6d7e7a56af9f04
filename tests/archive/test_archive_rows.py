"""The row that each end of a message becomes, column by column."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection

from django_delayq import delayed_task, purge_topic
from django_delayq.archive import archive_rows
from django_delayq.archive.archive_rows import COLUMNS, LAST_MS, forms_of
from django_delayq.core.conf import get_settings
from django_delayq.core.message import STAMP, Record, encode_header, encode_record
from django_delayq.core.times import from_ms, stored_ms
from django_delayq.models import ArchivedMessage
from django_delayq.store import keys
from django_delayq.tasks import registry
from tests.app.sql_tasks import fail
from tests.app.tasks import act, close_order, noop, record
from tests.hands import (
    DAY,
    DEFAULT,
    ORDERS,
    PAST,
    Hands,
    end_lease,
    make_due,
    only_row,
    put_entry,
    stored_record,
)
from tests.worker.moving import LONG_AGO

pytestmark = pytest.mark.databases

NOW_US = 1_763_632_200_123_456
UNICODE = "naïve 雪 🎈"


def body(row: ArchivedMessage) -> Any:
    return json.loads(row.body)


def test_every_column_of_an_acked_message(hands: Hands) -> None:
    handle = close_order.using(
        key="order 8", delay=1.5, priority="low", ttr=7, headers={"trace": "x"}, max_attempts=9
    )
    sent = handle.enqueue(7, reason="late")
    due_at = sent.due_at
    assert due_at is not None
    stored = sent.get()
    assert stored is not None
    make_due(sent)
    (lease,) = hands.claim(ORDERS)
    hands.run(lease)
    hands.archive()
    row = only_row()
    assert row.message_id == uuid.UUID(sent.id)
    assert row.enqueued_at == from_ms(Record.decode(lease.record).enqueued_at_us / 1000)
    assert row.enqueued_at == stored.enqueued_at
    assert (row.topic, row.partition, row.task, row.key) == (
        "orders",
        0,
        "tests.app.tasks.close_order",
        "order 8",
    )
    assert (row.state, row.reason, row.error_class, row.error_message, row.traceback) == (
        "acked",
        "",
        "",
        "",
        "",
    )
    assert row.body == '{"args":[7],"kwargs":{"reason":"late"}}'
    assert (row.headers, row.priority, row.ttr_ms, row.max_attempts) == (
        '{"trace":"x"}',
        2,
        7_000,
        9,
    )
    assert (row.attempts, row.crashes, row.history, row.worker) == (1, 0, "", "host:1:hands")
    assert row.due_at == from_ms(int(PAST))
    assert row.started_at is not None and row.run_ms is not None and row.lateness_ms is not None
    started_ms = row.started_at.timestamp() * 1000
    assert row.lateness_ms == pytest.approx(started_ms - 1e12, abs=0.01)
    assert 0 < row.run_ms < 5_000
    assert row.enqueued_at < row.started_at <= row.finished_at + timedelta(milliseconds=5)
    assert (row.replay_of, row.replayed_by, row.replayed_at, row.discarded_at) == (
        None,
        None,
        None,
        None,
    )


def test_all_columns_of_the_model_are_written_or_an_operators_or_the_databases() -> None:
    fields = {field.name for field in ArchivedMessage._meta.local_fields}
    assert fields - set(COLUMNS) == {
        "id",
        "replayed_by",
        "replayed_at",
        "discarded_at",
        "archived_at",
    }


def test_a_row_says_when_the_database_took_it(hands: Hands) -> None:
    began = datetime.now(tz=timezone.utc)
    record.enqueue(1)
    hands.work()
    hands.archive()
    assert abs(only_row().archived_at - began) < timedelta(seconds=30)


def test_a_dead_message_has_its_error(hands: Hands) -> None:
    fail.enqueue("unicode")
    hands.work()
    hands.archive()
    row = only_row()
    assert (row.state, row.reason, row.error_class) == ("dead", "failed", "ValueError")
    assert row.error_message == UNICODE
    assert row.traceback.startswith("Traceback") and row.traceback.rstrip().endswith(
        f"ValueError: {UNICODE}"
    )


def test_errors_are_bounded(hands: Hands) -> None:
    fail.enqueue("long")
    fail.enqueue("deep")
    hands.work()
    deep, long = sorted(hands.archive(), key=lambda row: row.error_message)
    assert long.error_message == "x" * 2_000
    assert len(deep.traceback) == 16_000
    assert deep.traceback.rstrip().endswith("RuntimeError: at the bottom")


def test_a_retried_message_has_a_line_for_each_run(hands: Hands) -> None:
    handle = act.using(max_attempts=2).enqueue("fail")
    modes = keys.Partition("modes", 0)
    hands.work(modes)
    make_due(handle)
    hands.work(modes)
    hands.archive()
    row = only_row()
    (line,) = map(json.loads, row.history.splitlines())
    assert (line["outcome"], line["error"], line["worker"]) == (
        "retried",
        "ValueError: it failed",
        "host:1:hands",
    )
    assert (row.state, row.attempts) == ("dead", 2)
    assert row.started_at is not None
    first_started = from_ms(line["started_ms"])
    assert row.started_at <= first_started + timedelta(
        milliseconds=1
    )  # ours is in whole ms, rounded up
    assert first_started < row.finished_at


def test_a_rejected_message_says_why(hands: Hands) -> None:
    fail.enqueue("reject")
    hands.work()
    hands.archive()
    row = only_row()
    assert (row.state, row.reason, row.error_class) == ("dead", "no such order", "")


def test_a_poisonous_message_has_its_crashes(hands: Hands) -> None:
    handle = noop.enqueue()
    for _ in range(3):
        (lease,) = hands.claim()
        end_lease(hands.store, lease)
        if handle.get():
            make_due(handle)
    hands.archive()
    row = only_row()
    assert (row.state, row.reason, row.attempts, row.crashes) == ("dead", "poison", 3, 3)
    assert [json.loads(line)["outcome"] for line in row.history.splitlines()] == ["crashed"] * 3
    assert (row.run_ms, row.lateness_ms, row.worker) == (None, None, "")


def test_what_never_ran_has_no_start(hands: Hands) -> None:
    record.using(delay=DAY).enqueue("cancelled").cancel()
    record.using(delay=DAY).enqueue("purged")
    purge_topic("default")
    record.using(due_at=LONG_AGO, expires=1).enqueue("expired")
    hands.claim()
    found = hands.archive()
    assert [(row.state, row.reason) for row in found] == [
        ("cancelled", "cancelled"),
        ("cancelled", "purged"),
        ("expired", "expired"),
    ]
    assert [body(row)["args"] for row in found] == [["cancelled"], ["purged"], ["expired"]]
    assert {(row.started_at, row.attempts, row.run_ms) for row in found} == {(None, 0, None)}


def test_an_unknown_task_has_the_name_that_its_producer_gave(hands: Hands) -> None:
    @delayed_task(name="tests.gone")
    def gone() -> None:
        """Known to its producer only."""

    gone.enqueue()
    del registry.by_name["tests.gone"], registry.by_code[gone.definition.code]
    hands.executor._settings = replace(get_settings(), unknown_task_grace=-1)
    hands.work()
    hands.archive()
    row = only_row()
    assert (row.task, row.state, row.reason) == ("tests.gone", "dead", "unknown_task")


@pytest.mark.parametrize("damage", [b"not JSON", b"\xff\xfe", b""], ids=["text", "bytes", "empty"])
def test_an_undecodable_body_is_kept_as_it_is(hands: Hands, damage: bytes) -> None:
    handle = record.enqueue("x")
    raw = hands.store.client.redis.hget(
        keys.partition_keys(hands.store.client.prefix, DEFAULT)[4], handle.identity
    )
    hands.store.client.redis.hset(
        keys.partition_keys(hands.store.client.prefix, DEFAULT)[4],
        handle.identity,
        raw[:23] + damage,
    )
    hands.work()
    hands.archive()
    row = only_row()
    assert (row.state, row.reason) == ("dead", "undecodable")
    assert row.task == "tests.app.tasks.record"
    assert set(body(row)) == {"record"}
    assert row.enqueued_at == stored_ms(STAMP.unpack_from(raw)[0] / 1000)


def test_a_missing_body_is_a_row_too(hands: Hands) -> None:
    handle = record.enqueue("x")
    hands.store.client.redis.hdel(
        keys.partition_keys(hands.store.client.prefix, DEFAULT)[4], handle.identity
    )
    hands.claim()
    hands.archive()
    row = only_row()
    assert (row.message_id.hex, row.state, row.reason) == (handle.id, "dead", "body_missing")
    assert row.enqueued_at == row.finished_at


def test_instants_are_exact(hands: Hands) -> None:
    at_ms = 1_763_632_201_987
    put_entry(hands.store, record=stored_record(NOW_US, b"[1]"), at=at_ms)
    hands.archive()
    row = only_row()
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert row.enqueued_at == epoch + timedelta(microseconds=NOW_US)
    assert row.finished_at == epoch + timedelta(milliseconds=at_ms)


@pytest.mark.parametrize("offset", range(0, 1_000_000, 99_991))
def test_every_microsecond_survives(offset: int) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert stored_ms((NOW_US + offset) / 1000) == epoch + timedelta(microseconds=NOW_US + offset)


@pytest.mark.parametrize(
    "value",
    [2**63, -(2**70), UNICODE, "nul \0 in it", {"deep": [1.5, None, True, "\0"]}, "x" * 50_000],
    ids=["big", "bigger", "unicode", "nul", "nested", "long"],
)
def test_arguments_come_back_as_they_were(hands: Hands, value: Any) -> None:
    record.enqueue(value)
    hands.work()
    hands.archive()
    assert body(only_row()) == {"args": [value], "kwargs": {}}


def test_nul_is_written_in_letters_where_text_cannot_hold_it(hands: Hands) -> None:
    fail.enqueue("nul")
    hands.work()
    (row,) = hands.archive()
    assert row.error_message == r"a\0b"
    assert r"ValueError: a\0b" in row.traceback


def test_a_compressed_body_is_readable(hands: Hands) -> None:
    record.enqueue("y" * 5_000)
    (lease,) = hands.claim()
    assert Record.decode(lease.record).flags & 4
    hands.run(lease)
    hands.archive()
    assert body(only_row())["args"] == ["y" * 5_000]


def test_a_body_that_unfolds_without_end_is_kept_folded(hands: Hands) -> None:
    text = b'["' + b"z" * 3_000_000 + b'"]'
    bomb = encode_record(encode_header(b"abcd", 1, 60_000), text, 1_024)
    put_entry(hands.store, record=STAMP.pack(NOW_US, bytes(6)) + bomb)
    hands.archive()
    assert set(body(only_row())) == {"record"}


def test_a_detail_that_cannot_be_read_is_said_so(hands: Hands) -> None:
    put_entry(hands.store, record=stored_record(NOW_US, b"[1]"), detail=b"{half")
    hands.archive()
    assert only_row().reason == "unreadable detail"


def test_ids_grow_in_the_order_of_archiving(hands: Hands) -> None:
    for number in range(3):
        record.enqueue(number)
        hands.work()
        hands.archive()
    assert [body(row)["args"][0] for row in ArchivedMessage.objects.order_by("id")] == [0, 1, 2]


def test_no_text_of_a_detail_is_refused_for_the_character_0(hands: Hands) -> None:
    texts = ("worker", "reason", "error", "message", "traceback")
    put_entry(hands.store, detail=json.dumps(dict.fromkeys(texts, "X\x00Y")).encode())
    (row,) = hands.archive()
    assert {row.worker, row.reason, row.error_class, row.error_message, row.traceback} == {"X\\0Y"}


@pytest.mark.parametrize("most", [30, 200, 10_000])
def test_rows_are_the_same_however_many_a_statement_takes(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(archive_rows, "_most_parameters", lambda connection: most)
    record.enqueue_many([(n,) for n in range(40)])
    record.using(key="k", headers={"a": "%s ?"}).enqueue(UNICODE)
    hands.work()
    found = {body(row)["args"][0]: row for row in hands.archive()}
    assert found.keys() == {*range(40), UNICODE}
    assert [(found[at].key, found[at].headers) for at in (0, UNICODE)] == [
        ("", ""),
        ("k", '{"a":"%s ?"}'),
    ]
    assert {row.topic for row in found.values()} == {"default"}


@pytest.mark.parametrize("ms", [-1.5, 0, 1_763_632_200_000, 1_763_632_200_123.456, LAST_MS])
@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns", "Asia/Kathmandu"])
def test_an_instant_is_written_as_django_writes_it(
    monkeypatch: pytest.MonkeyPatch, ms: float, zone: str
) -> None:
    """Else a search on SQLite, which compares texts, would not find it."""
    monkeypatch.setattr(connection, "timezone", ZoneInfo(zone))
    monkeypatch.setattr(connection, "vendor", "sqlite")
    by_django = from_ms(ms).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    assert forms_of(connection).instant(round(ms * 1000)) == str(by_django)
