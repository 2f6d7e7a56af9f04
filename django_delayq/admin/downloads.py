"""The archive and other lists as files: streamed while they are read, and recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from asgiref.sync import sync_to_async
from django.db.models import Model
from django.http import HttpRequest, StreamingHttpResponse
from django.utils import timezone

from ..archive.search import every_row
from ..archive.selection import Selection
from ..models import OperatorAction

COLUMNS = (
    "id", "message_id", "topic", "task", "key", "state", "reason", "error_class", "attempts",
    "crashes", "enqueued_at", "due_at", "started_at", "finished_at", "lateness_ms", "run_ms",
    "worker", "replay_of", "replayed_by", "replayed_at", "discarded_at",
)  # fmt: skip
#: Only with view_payload.
PAYLOAD = ("body", "headers", "error_message", "traceback", "result")
#: Rows that are read at a time. A body may have 60 KB.
ROWS = 200


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """How rows become a file."""

    ending: str
    content_type: str
    write: Callable[[Iterable[Model], Sequence[str]], Iterator[bytes]]
    """The parts of a file with these rows and columns. The first part needs no row."""


def archive_file(
    request: HttpRequest, selection: Selection, file_format: FileFormat, payload: bool
) -> StreamingHttpResponse:
    """All rows of the selection, the newest first. With `payload` also arguments, headers, errors
    and results."""
    columns = COLUMNS + (PAYLOAD if payload else ())
    words = selection.narrowed(topics=None).in_words() + (", with arguments" if payload else "")
    rows = every_row(selection, columns[1:], ROWS)
    return streamed(
        request, rows, columns, file_format, "archive", topic=selection.topic, selection=words
    )


def streamed(
    request: HttpRequest,
    rows: Iterable[Model],
    columns: Sequence[str],
    file_format: FileFormat,
    name: str,
    **fields: Any,
) -> StreamingHttpResponse:
    """These rows as a file. An OperatorAction with these fields says who has downloaded how
    many."""
    parts = _recorded(request.user.get_username(), rows, columns, file_format, fields)
    # A sync iterator under ASGI would be read to its end before the first byte is sent.
    content = _awaited(parts) if hasattr(request, "scope") else parts
    name = f"delayq-{name}-{timezone.now().date().isoformat()}.{file_format.ending}"
    return StreamingHttpResponse(
        content,
        content_type=file_format.content_type,
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "Cache-Control": "no-store",
        },
    )


def _recorded(
    operator: str,
    rows: Iterable[Model],
    columns: Sequence[str],
    file_format: FileFormat,
    fields: dict[str, Any],
) -> Generator[bytes, None, None]:
    action = OperatorAction.new("download", operator, **fields)
    count = 0

    def counted() -> Iterator[Model]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    try:
        yield from file_format.write(counted(), columns)
        action.finish()
    finally:  # also when the browser has gone away
        action.add(count)


async def _awaited(parts: Generator[bytes, None, None]) -> AsyncIterator[bytes]:
    def following() -> bytes | None:
        return next(parts, None)

    try:
        while (part := await sync_to_async(following, thread_sensitive=True)()) is not None:
            yield part
    finally:  # the browser has gone away: left to itself it would end here, where SQL is refused
        await sync_to_async(parts.close, thread_sensitive=True)()
