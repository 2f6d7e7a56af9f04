"""The quickest way of rows into PostgreSQL: COPY, straight into the table.

COPY knows no ON CONFLICT: a row that is there already ends it, and the caller inserts the batch.
That is rare: another archiver has inserted the row, and has not removed the entry yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from functools import lru_cache
from operator import itemgetter

from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.timezone import get_default_timezone

from ..models import ArchivedMessage
from ..store.entries import Entry
from .archive_rows import COLUMNS, LAST_MS, Forms, RowValues, row_of

#: What psycopg is told for a column's type. It makes the same bytes as for the true one, from what
#: we have: 16 bytes of an id, whole microseconds of an instant. To make a UUID and a datetime of
#: them first takes as long as all the rest of a row.
_STAND_INS = {"uuid": "bytea", "timestamp with time zone": "bigint"}
#: From here PostgreSQL counts the microseconds of an instant.
_EPOCH_US = int(datetime(2000, 1, 1, tzinfo=timezone.utc).timestamp()) * 1_000_000


def rows_to_copy(entries: Sequence[Entry]) -> list[RowValues]:
    """The rows of the entries, for copy_rows(). Raises what row_of() does."""
    forms = _BINARY if settings.USE_TZ else _NAIVE
    return [row_of(entry, forms) for entry in entries]


def copy_rows(rows: Sequence[RowValues], connection: BaseDatabaseWrapper) -> None:
    """Insert the rows. Raises IntegrityError when one of them is there already, and
    NotSupportedError where a policy of row security forbids COPY."""
    statement, types = _statement(connection.alias)
    with (
        connection.cursor() as cursor,
        connection.wrap_database_errors,
        cursor.copy(statement) as copied,
    ):
        copied.set_types(types)
        # In the order of their ids, as insert() has them: two archivers do not deadlock.
        for row in sorted(rows, key=itemgetter(0, 1)):
            copied.write_row(row)


def _since_2000(us: int) -> int:
    """Of microseconds since 1970."""
    if not -_EPOCH_US < us < LAST_MS * 1000:
        raise OverflowError(f"{us} us since 1970 is in no calendar.")
    return us - _EPOCH_US


def _naive_since_2000(us: int) -> int:
    """Without USE_TZ: as PostgreSQL takes a local time, of an hour that comes twice the second one.
    An INSERT of the same row gives it that, and has to find it."""
    seconds, rest = divmod(us, 1_000_000)
    local = datetime.fromtimestamp(seconds, get_default_timezone()).replace(fold=1)
    return _since_2000(int(local.timestamp()) * 1_000_000 + rest)


_BINARY, _NAIVE = Forms(bytes, _since_2000), Forms(bytes, _naive_since_2000)


@lru_cache(maxsize=4)
def _statement(alias: str) -> tuple[str, list[str]]:
    """The statement, and the types of COLUMNS."""
    connection = connections[alias]
    quote, field = connection.ops.quote_name, ArchivedMessage._meta.get_field
    types = [str(field(name).db_type(connection)) for name in COLUMNS]
    columns = ", ".join(map(quote, COLUMNS))
    return (
        f"COPY {quote(ArchivedMessage._meta.db_table)} ({columns}) FROM STDIN (FORMAT BINARY)",
        [_STAND_INS.get(kind, kind.partition("(")[0]) for kind in types],
    )
