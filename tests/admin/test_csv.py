"""The archive as CSV: all that the filters leave, in a file that a spreadsheet may open."""

from __future__ import annotations

import asyncio
import csv
import gc
import io
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient, Client
from django.utils import timezone

from django_delayq.admin import csv_export, downloads
from django_delayq.archive import search
from django_delayq.models import ArchivedMessage, OperatorAction
from tests.admin.browser import address
from tests.admin.rows import make, make_dead
from tests.hands import apart

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq")]

AsUser = Callable[..., Client]


def lines(content: bytes) -> list[dict[str, str]]:
    """As a program reads the file."""
    return list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline="")))


def exported(client: Client, **query: Any) -> list[dict[str, str]]:
    answer = client.get(address("archive_csv"), query)
    assert answer.status_code == 200
    return lines(answer.getvalue())


def test_it_has_the_rows_of_the_list(as_user: AsUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "ROWS", 3)
    monkeypatch.setattr(search, "FIRST_IDS", 2)
    monkeypatch.setattr(search, "FEW_ROWS", 2)
    dead = [make_dead(key=f"order:{n}").pk for n in range(10)]
    acked = [make().pk for _ in range(10)]
    client = as_user("view_dashboard", "download_messages")
    assert [int(line["id"]) for line in exported(client)] == (dead + acked)[::-1]
    assert [int(line["id"]) for line in exported(client, state="dead")] == dead[::-1]
    assert [line["key"] for line in exported(client, q="key:order:4")] == ["order:4"]


def test_a_download_needs_a_permission_and_leaves_a_record(as_user: AsUser) -> None:
    make_dead(key="order:1")
    make()
    assert as_user("view_dashboard").get(address("archive_csv")).status_code == 403
    assert "Download as CSV" not in as_user("view_dashboard").get(address("archive")).text
    client = as_user("view_dashboard", "download_messages", "view_payload")
    exported(client, state="dead")
    action = OperatorAction.objects.get()
    assert (action.action, action.count) == ("download", 1)
    assert action.selection == "state dead, with arguments"
    assert action.operator.startswith("user-") and action.finished_at is not None


def test_a_download_that_is_broken_off_counts_what_was_read(
    as_user: AsUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "ROWS", 3)
    for _ in range(10):
        make()
    client = as_user("view_dashboard", "download_messages")
    answer = client.get(address("archive_csv"))
    parts = iter(answer.streaming_content)
    assert len([next(parts), next(parts)]) == 2
    answer.close()
    action = OperatorAction.objects.get()
    assert (action.count, action.finished_at) == (3, None)


def test_it_begins_as_excel_wants_and_is_named_by_the_day(as_user: AsUser) -> None:
    make(key="naïve 雪")
    answer = as_user("view_dashboard", "download_messages").get(address("archive_csv"))
    content = answer.getvalue()
    assert content.startswith(b"\xef\xbb\xbfid,message_id,topic,")
    assert lines(content)[0]["key"] == "naïve 雪"
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert f"delayq-archive-{timezone.now().date()}.csv" in answer["Content-Disposition"]


@pytest.mark.parametrize(
    "nasty", ["=cmd|'/C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1"]
)
def test_no_text_is_a_formula(as_user: AsUser, nasty: str) -> None:
    names = (
        "topic",
        "task",
        "key",
        "reason",
        "error_class",
        "worker",
        "body",
        "headers",
        "error_message",
        "traceback",
        "result",
    )
    make(**dict.fromkeys(names, nasty), lateness_ms=-0.5)
    (line,) = exported(as_user("view_dashboard", "download_messages", "view_payload"))
    assert {line[name] for name in names} == {f"'{nasty}"}
    assert line["lateness_ms"] == "-0.5"  # a number of ours stays one


def test_contents_need_the_permission(as_user: AsUser) -> None:
    make_dead(
        body='{"args":["secret"],"kwargs":{}}',
        headers='{"h":"secret"}',
        error_message="secret",
        traceback="secret",
        result='{"result":"secret"}',
    )
    for may_see in (True, False):
        client = as_user(
            "view_dashboard", "download_messages", *(["view_payload"] if may_see else [])
        )
        assert (b"secret" in client.get(address("archive_csv")).getvalue()) is may_see
        (line,) = exported(client)
        assert ("body" in line, "result" in line) == (may_see, may_see)
        assert line["error_class"] == "shop.errors.PriceMissing"


def test_filters_that_mean_nothing_are_no_file(as_user: AsUser) -> None:
    client = as_user("view_dashboard", "download_messages")
    for query in ({"state": "gone"}, {"q": "args.x:1"}, {"q": "args.x:1", "period": "24h"}):
        answer = client.get(address("archive_csv"), query)
        assert (answer.status_code, answer["Content-Type"]) == (400, "text/html; charset=utf-8")


def test_the_head_needs_no_row() -> None:
    def broken() -> Iterator[ArchivedMessage]:
        raise AssertionError("asked for rows")
        yield

    assert next(csv_export.csv_parts(broken(), ("id", "topic"))) == "\ufeffid,topic\r\n".encode()


@pytest.mark.long
def test_memory_does_not_grow_with_the_file() -> None:
    row = ArchivedMessage(topic="orders", body="x" * 10_000)
    tracemalloc.start()
    size = sum(
        len(part) for part in csv_export.csv_parts((row for _ in range(10_000)), ("topic", "body"))
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 100e6
    assert peak < 20e6


def test_a_client_that_goes_away_ends_it(as_user: AsUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "ROWS", 2)
    asked: list[Any] = []
    whole = search.page_of

    def counted(*arguments: Any, **options: Any) -> Any:
        asked.append(options)
        return whole(*arguments, **options)

    monkeypatch.setattr(search, "page_of", counted)
    for _ in range(20):
        make()
    answer = as_user("view_dashboard", "download_messages").get(address("archive_csv"))
    content = iter(answer.streaming_content)
    next(content), next(content)
    answer.close()
    assert len(asked) <= 2


def test_it_is_streamed_under_asgi_too(new_user: Callable[..., Any]) -> None:
    for _ in range(5):
        make()
    client = AsyncClient()
    client.force_login(new_user("view_dashboard", "download_messages"))

    async def content() -> bytes:
        answer = await client.get(address("archive_csv"))
        assert answer.is_async
        try:
            return b"".join([part async for part in answer.streaming_content])
        finally:
            await sync_to_async(connections.close_all)()

    assert (
        len(lines(apart(lambda: asyncio.run(content())))) == 5
    )  # a browser's loop may run in this thread


def test_what_a_client_has_got_before_it_went_away_is_counted_under_asgi_too(
    new_user: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "ROWS", 2)
    for _ in range(20):
        make()
    client = AsyncClient()
    client.force_login(new_user("view_dashboard", "download_messages"))

    async def begin() -> None:
        parts = aiter((await client.get(address("archive_csv"))).streaming_content)
        async with aclosing(parts):
            await anext(parts), await anext(parts)

    def count() -> int:
        return OperatorAction.objects.get(action="download").count

    async def content() -> int:
        await begin()
        gc.collect()  # the answer of a test's client refers to itself
        try:
            for _ in range(100):
                if counted := await sync_to_async(count)():
                    return counted
                await asyncio.sleep(0.05)
            return 0
        finally:
            await sync_to_async(connections.close_all)()

    assert 0 < apart(lambda: asyncio.run(content())) < 20


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("x;=cmd|'/C calc'!A0", "x;'=cmd|'/C calc'!A0"),
        ('x; "=1"', 'x;\' "=1"'),
        (";=1", ";'=1"),
        ("Traceback\n=1", "Traceback\n'=1"),
        ("\ta\t@SUM(A1)", "'\ta\t'@SUM(A1)"),
        (" =1", "' =1"),
        ("a;b=1, -1 [1,-2]", "a;b=1, -1 [1,-2]"),
    ],
)
def test_no_part_of_a_text_is_a_formula_where_a_semicolon_ends_the_cell(
    text: str, written: str
) -> None:
    assert csv_export.cell(text) == written
