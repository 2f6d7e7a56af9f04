"""What the models ask the database to compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar
from uuid import UUID

from django.db import connections
from django.db.models import BooleanField, F, Func, IntegerField, Model, QuerySet, UUIDField, Value
from django.db.models.functions import Now

from ..core.conf import get_settings

M = TypeVar("M", bound=Model)


class UtcNow(Now):
    """The database's clock. MariaDB's own Now() is in the time zone of the server."""

    def as_mysql(self, compiler: Any, connection: Any, **extra: Any) -> tuple[str, Any]:
        """MariaDB and MySQL."""
        return self.as_sql(compiler, connection, template="(UTC_TIMESTAMP(6))", **extra)


class Octets(Func):
    """Bytes of a text. PostgreSQL knows them without reading a long one."""

    function = "OCTET_LENGTH"
    output_field = IntegerField()

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> tuple[str, Any]:
        """SQLite has no such function before 3.43."""
        return self.as_sql(
            compiler, connection, template="LENGTH(CAST(%(expressions)s AS BLOB))", **extra
        )


def most_ids() -> int:
    """Ids in one statement: SQLite takes a condition with at most 1,000 parts."""
    return 900 if connections[get_settings().database].vendor == "sqlite" else 10_000


def with_ids(rows: QuerySet[M], ids: Sequence[UUID]) -> QuerySet[M]:
    """Those of these message ids, most_ids() at most. PostgreSQL takes them as one array: neither
    Django nor the database has to read 10,000 parts of a condition."""
    if connections[rows.db].vendor != "postgresql" or len(ids) == 1:
        return rows.filter(message_id__in=ids)
    array = Func(Value([*ids]), function="ANY", output_field=UUIDField())
    is_one = Func(
        F("message_id"),
        array,
        template="%(expressions)s",
        arg_joiner=" = ",
        output_field=BooleanField(),
    )
    return rows.filter(is_one)
