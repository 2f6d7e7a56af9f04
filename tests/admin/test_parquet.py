"""The archive as Parquet: the rows of the list, with the types of the lake."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable
from datetime import timezone
from typing import Any

import pytest
from django.test import Client
from pyarrow import parquet

from django_delayq.admin import downloads, parquet_export
from django_delayq.admin.pages import archive_page
from django_delayq.core.times import utc
from django_delayq.models import ArchivedMessage, OperatorAction
from django_delayq.pipeline.schemas import ARCHIVE
from tests.admin.browser import address
from tests.admin.rows import make, make_dead

pytestmark = [
    pytest.mark.databases,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("delayq"),
]

AsUser = Callable[..., Client]


def read(content: bytes) -> Any:
    """The table in the file."""
    return parquet.read_table(io.BytesIO(content))


def exported(client: Client, **query: Any) -> list[dict[str, Any]]:
    answer = client.get(address("archive_parquet"), query)
    assert answer.status_code == 200
    rows: list[dict[str, Any]] = read(answer.getvalue()).to_pylist()
    return rows


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of two rows, row groups of three."""
    monkeypatch.setattr(downloads, "ROWS", 2)
    monkeypatch.setattr(parquet_export, "GROUP_ROWS", 3)


def test_it_has_the_rows_of_the_list(as_user: AsUser, small: None) -> None:
    dead = [make_dead(key=f"order:{n}").pk for n in range(10)]
    acked = [make().pk for _ in range(10)]
    client = as_user("view_dashboard", "download_messages")
    assert [row["id"] for row in exported(client)] == (dead + acked)[::-1]
    assert [row["id"] for row in exported(client, state="dead")] == dead[::-1]
    assert exported(client, q="key:nobody") == []


def test_values_have_the_types_of_the_lake(as_user: AsUser) -> None:
    pk = make_dead(key="naïve 雪", lateness_ms=1.5).pk
    row = ArchivedMessage.objects.get(pk=pk)
    client = as_user("view_dashboard", "download_messages", "view_payload")
    table = read(client.get(address("archive_parquet")).getvalue())
    assert table.column_names == [*downloads.COLUMNS, *downloads.PAYLOAD]
    assert all(table.schema.field(name) in list(ARCHIVE) for name in ("id", "due_at", "body"))
    (found,) = table.to_pylist()
    assert found["message_id"] == row.message_id.hex
    assert (found["key"], found["lateness_ms"]) == ("naïve 雪", 1.5)
    assert found["finished_at"] == utc(row.finished_at).astimezone(timezone.utc)
    assert found["replayed_by"] is None


def test_a_download_needs_a_permission_and_leaves_a_record(as_user: AsUser) -> None:
    make_dead(body='{"args":["secret"],"kwargs":{}}')
    make()
    viewer = as_user("view_dashboard")
    assert viewer.get(address("archive_parquet")).status_code == 403
    assert "Parquet" not in viewer.get(address("archive")).text
    client = as_user("view_dashboard", "download_messages")
    assert "Download as Parquet" in client.get(address("archive")).text
    (row,) = exported(client, state="dead")
    assert "body" not in row
    action = OperatorAction.objects.get()
    assert (action.action, action.count, action.selection) == ("download", 1, "state dead")
    assert action.finished_at is not None


def test_one_that_is_broken_off_counts_what_was_read_and_is_no_file(
    as_user: AsUser, small: None
) -> None:
    for _ in range(10):
        make()
    answer = as_user("view_dashboard", "download_messages").get(address("archive_parquet"))
    parts = iter(answer.streaming_content)
    content = b"".join([next(parts), next(parts)])
    answer.close()
    assert content.startswith(b"PAR1")
    with pytest.raises(ValueError, match="footer"):
        read(content)
    action = OperatorAction.objects.get()
    assert (action.count, action.finished_at) == (3, None)


def test_the_file_says_what_it_is(as_user: AsUser) -> None:
    answer = as_user("view_dashboard", "download_messages").get(address("archive_parquet"))
    assert answer["Content-Type"] == "application/vnd.apache.parquet"
    assert answer["Content-Disposition"].endswith('.parquet"')
    assert all(answer.streaming_content)  # an empty part ends a chunked answer


def test_filters_that_mean_nothing_are_no_file(as_user: AsUser) -> None:
    answer = as_user("view_dashboard", "download_messages").get(
        address("archive_parquet"), {"state": "gone"}
    )
    assert (answer.status_code, answer["Content-Type"]) == (400, "text/html; charset=utf-8")


def test_without_pyarrow_there_is_no_such_page(
    as_user: AsUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_page, "_HAS_PARQUET", False)
    make()
    client = as_user("view_dashboard", "download_messages")
    assert client.get(address("archive_parquet")).status_code == 404
    assert "Parquet" not in client.get(address("archive")).text
    assert "Download as CSV" in client.get(address("archive")).text


@pytest.mark.long
def test_memory_does_not_grow_with_the_file() -> None:
    row = ArchivedMessage(topic="orders", body="x" * 10_000)
    tracemalloc.start()
    size = sum(
        map(len, parquet_export.parquet_parts((row for _ in range(20_000)), ("topic", "body")))
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size and peak < 40e6
