"""The archive and other lists as CSV: streamed page by page, and safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import datetime
from io import StringIO
from itertools import chain, islice
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db.models import Model
from django.http import HttpRequest, StreamingHttpResponse
from django.utils import timezone

from ..archive.search import every_row
from ..archive.selection import Selection
from ..core.times import local
from ..models import OperatorAction

COLUMNS = (
    "id", "message_id", "topic", "task", "key", "state", "reason", "error_class", "attempts",
    "crashes", "enqueued_at", "due_at", "started_at", "finished_at", "lateness_ms", "run_ms",
    "worker", "replay_of", "replayed_by", "replayed_at", "discarded_at",
)  # fmt: skip
#: Only with view_payload.
PAYLOAD = ("body", "headers", "error_message", "traceback", "result")
#: Rows in memory at a time. A body may have 60 KB.
ROWS = 200

#: Excel reads UTF-8 only behind this mark, and takes "é" for two characters without it. Other
#: programs skip it: Python's name for it is "utf-8-sig".
_BYTE_ORDER_MARK = "\ufeff"
#: Where a spreadsheet takes text for a formula: at its beginning, and behind what it takes for the
#: end of a cell. Where people write a decimal comma that is a semicolon, and then our quotes are in
#: the middle of a cell and mean nothing.
_FORMULA = re.compile(
    r"(?s)(?:^|(?<=;)|(?<=.[\t\r\n]))"
    r"(?=[ \xa0\xad\x22\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]*"
    r"[=+\-@\t\r\n＝＋－＠])"
)


def response(request: HttpRequest, selection: Selection, payload: bool) -> StreamingHttpResponse:
    """All rows of the selection, the newest first. With `payload` also arguments, headers, errors
    and results."""
    columns = COLUMNS + (PAYLOAD if payload else ())
    words = selection.narrowed(topics=None).in_words() + (", with arguments" if payload else "")
    rows = every_row(selection, columns[1:], ROWS)
    return streamed(request, rows, columns, "archive", topic=selection.topic, selection=words)


def streamed(
    request: HttpRequest, rows: Iterable[Model], columns: Sequence[str], name: str, **fields: Any
) -> StreamingHttpResponse:
    """These rows as a file. An OperatorAction with these fields says who has downloaded how
    many."""
    parts = _recorded(request.user.get_username(), rows, columns, fields)
    # A sync iterator under ASGI would be read to its end before the first byte is sent.
    content = _awaited(parts) if hasattr(request, "scope") else parts
    name = f"delayq-{name}-{timezone.now().date().isoformat()}.csv"
    return StreamingHttpResponse(
        content,
        content_type="text/csv; charset=utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "Cache-Control": "no-store",
        },
    )


def written(rows: Iterable[Model], columns: Sequence[str]) -> Iterator[bytes]:
    """The file in parts: first its head, which needs no database, then ROWS rows each."""
    yield f"{_BYTE_ORDER_MARK}{','.join(columns)}\r\n".encode()
    remaining = iter(rows)
    while (first := next(remaining, None)) is not None:
        text = StringIO()
        lines = csv.writer(text)
        for row in chain((first,), islice(remaining, ROWS - 1)):
            lines.writerow([cell(getattr(row, name)) for name in columns])
        yield text.getvalue().encode("utf-8", "replace")


def cell(value: Any) -> Any:
    """The value as the file has it. An apostrophe is put before text that a spreadsheet would take
    for a formula."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, datetime):
        return local(value).isoformat()
    if isinstance(value, UUID):
        return value.hex
    return _FORMULA.sub("'", str(value))


def _recorded(
    operator: str, rows: Iterable[Model], columns: Sequence[str], fields: dict[str, Any]
) -> Iterator[bytes]:
    action = OperatorAction.new("download", operator, **fields)
    count = 0

    def counted() -> Iterator[Model]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    try:
        yield from written(counted(), columns)
        action.finish()
    finally:  # also when the browser has gone away
        action.add(count)


async def _awaited(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    def following() -> bytes | None:
        return next(parts, None)

    while (part := await sync_to_async(following, thread_sensitive=True)()) is not None:
        yield part
