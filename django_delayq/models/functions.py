"""What the models ask the database to compute."""

from __future__ import annotations

from typing import Any

from django.db.models import Func, IntegerField
from django.db.models.functions import Now


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
