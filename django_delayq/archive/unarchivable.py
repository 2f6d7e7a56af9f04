"""Entries of finished streams that the archive refused: kept aside, and archived again when they
can be."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
from django.db import connections, transaction
from django.db.models import QuerySet

from ..core.conf import get_settings
from ..core.database import may_pass
from ..core.exceptions import DatabaseUnavailable, DelayQError, StoreError
from ..core.message import ATTEMPTS, HEADER_END, Attempts, Body
from ..core.times import stored_ms
from ..models import OperatorAction, UnarchivableEntry
from ..store.entries import Entry
from ..store.keys import Partition
from ..tasks.naming import kept_task_name
from . import archive_rows, closing
from .erasure import ERASED

#: Bytes of each field that are kept. No message of ours has more.
MOST_BYTES = 2 * 1024 * 1024
#: Entries that one request archives again.
MOST_AT_ONCE = 500


@dataclass(kw_only=True)
class ArchivedAgain:
    """What archive_again() has done so far."""

    action: OperatorAction
    """The record of it. Its finished_at is null until the end."""
    count: int = 0
    """Entries that are rows of the archive now."""
    refused: Counter[str] = field(default_factory=Counter)
    """Entries that stay aside, by the class of the error."""


def put_aside(entry: Entry, error: Exception) -> None:
    """Keep an entry, in characters that every database takes. An entry that is already kept stays
    as it is."""
    raw = {"record": entry.record, "attempts": entry.attempts, "detail": entry.detail}
    content: dict[str, Any] = {"at_ms": entry.at_ms}
    if get_settings().redact:
        # Keep only what a row of the archive would have shown. Nobody knows later which other parts
        # may be shown.
        _, body, arguments = archive_rows.content_of(entry)
        shown = msgspec.structs.replace(body, args=[], kwargs={})
        raw |= {
            "record": entry.record[:HEADER_END],
            "body": msgspec.json.encode(shown),
            "arguments": arguments.encode(),
            "detail": archive_rows.without_result(entry.detail),
        }
    content |= {name: base64.b64encode(value[:MOST_BYTES]).decode() for name, value in raw.items()}
    row = UnarchivableEntry(
        entry=entry.entry.decode(),
        topic=entry.partition.topic,
        partition=entry.partition.number,
        state=entry.state,
        message_id=entry.id.hex(),
        error=_in_ascii(error),
        content=json.dumps(content),
    )
    UnarchivableEntry.objects.bulk_create([row], ignore_conflicts=True)


def kept(row: UnarchivableEntry) -> tuple[Entry, archive_rows.Content | None]:
    """The entry as the stream had it. When it was put aside where arguments are redacted, also the
    content that may be shown."""
    content = json.loads(row.content)
    raw = {name: base64.b64decode(value) for name, value in content.items() if name != "at_ms"}
    entry = Entry(
        row.entry.encode(),
        Partition(row.topic, row.partition),
        bytes.fromhex(row.message_id),
        row.state,
        content["at_ms"],
        raw["record"],
        raw["attempts"],
        raw["detail"],
    )
    if "body" not in raw:
        return entry, None
    return entry, (msgspec.json.decode(raw["body"], type=Body), raw["arguments"].decode())


def redact(row: UnarchivableEntry) -> None:
    """Take all contents out of an entry. It can still be archived again."""
    entry, content = kept(row)
    _, body, _ = archive_rows.content_of(entry, content)
    detail = archive_rows.FinishDetail(
        worker=(known := archive_rows.detail_of(entry.detail)).worker,
        started_ms=known.started_ms,
        run_ms=known.run_ms,
        error=known.error,
    )
    shown = Body(replay_of=body.replay_of, max_attempts=body.max_attempts)
    raw = {
        "record": entry.record[:HEADER_END],
        "attempts": entry.attempts[: ATTEMPTS.size],
        "detail": msgspec.json.encode(detail),
        "body": msgspec.json.encode(shown),
        "arguments": ERASED.encode(),
    }
    texts = {name: base64.b64encode(value).decode() for name, value in raw.items()}
    # What the database said may quote the row.
    UnarchivableEntry.objects.filter(pk=row.pk).update(
        content=json.dumps({"at_ms": entry.at_ms, **texts}), error=""
    )


@dataclass(frozen=True, kw_only=True)
class Shown:
    """An entry as people see it, as far as it can be read."""

    task: str
    finished_at: datetime | None
    attempts: int
    detail: archive_rows.FinishDetail
    body: Body
    arguments: str
    """JSON."""


def entry_view(row: UnarchivableEntry) -> Shown:
    """The entry as far as it can be read. A task without a known name is `code:` and its digits."""
    entry, content = kept(row)
    record, body, arguments = archive_rows.content_of(entry, content)
    try:
        task = kept_task_name(entry.partition, record.task_code)
    except StoreError:
        task = f"code:{record.task_code.hex()}"
    try:
        finished_at = stored_ms(entry.at_ms)
    except (ValueError, OverflowError):
        finished_at = None
    return Shown(
        task=task,
        finished_at=finished_at,
        attempts=(
            Attempts.decode(entry.attempts).attempt if len(entry.attempts) >= ATTEMPTS.size else 0
        ),
        detail=archive_rows.detail_of(entry.detail),
        body=body,
        arguments=arguments,
    )


def archive_again(
    rows: QuerySet[UnarchivableEntry],
    *,
    by: str = "",
    reason: str = "",
    progress: Callable[[ArchivedAgain], object] | None = None,
) -> ArchivedAgain:
    """Try once more to make each of these entries a row of the archive, whatever ARCHIVE says. The
    oldest come first, each in a transaction of its own, which also removes it from
    UnarchivableEntry. An entry that is refused again stays, with the new error. `progress` is
    called after each.
    """
    found = list(rows.order_by("pk").values("pk", "topic", "message_id"))
    fields = {"selection": f"{len(found)} unarchivable entries"}
    if len(found) == 1:
        only = found[0]
        fields = {
            "topic": only["topic"],
            "message_id": only["message_id"],
            "selection": f"unarchivable entry {only['pk']}",
        }
    with OperatorAction.recorded("archive again", by, reason, **fields) as action:
        done = ArchivedAgain(action=action)
        for row in found:
            if error := _archive_one(row["pk"], done):
                done.refused[type(error).__name__] += 1
            if progress:
                progress(done)
    if not done.count:  # nothing was changed
        action.delete(using=rows.db)
    action.count = done.count
    return done


def _archive_one(pk: int, done: ArchivedAgain) -> Exception | None:
    """Returns the error for which it stays aside. Raises DatabaseUnavailable."""
    rows = UnarchivableEntry.objects.filter(pk=pk)
    connection = connections[rows.db]
    try:
        with transaction.atomic(using=rows.db):
            # A write comes first: on SQLite no other writer then comes before our delete.
            done.action.add(1)
            row = rows.select_for_update().first()
            if row is None:  # another process has archived it
                transaction.set_rollback(True, using=rows.db)
                return None
            entry, content = kept(row)
            forms = archive_rows.forms_of(connection)
            archive_rows.insert([archive_rows.row_of(entry, forms, content)], connection)
            # The message's outbox row is still there if it was locked when the entry was put
            # aside.
            closing.close([entry])
            rows.delete()
    except DelayQError:
        raise
    except Exception as error:
        if not connection.is_usable():
            connection.close()
            raise DatabaseUnavailable(f"{type(error).__name__}: {error}".strip()) from error
        if not may_pass(error):
            rows.update(error=_in_ascii(error))
        return error
    done.count += 1
    return None


def _in_ascii(error: Exception) -> str:
    return repr(error).encode("ascii", "backslashreplace").decode()[:2_000].replace("\0", "")
