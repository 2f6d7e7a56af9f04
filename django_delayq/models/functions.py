"""What the models ask the database to compute."""

from __future__ import annotations

from typing import Any

from django.db.models.functions import Now


class UtcNow(Now):
    """The database's clock. MariaDB's own Now() is in the time zone of the server."""

    def as_mysql(self, compiler: Any, connection: Any, **extra: Any) -> tuple[str, Any]:
        """MariaDB and MySQL."""
        return self.as_sql(compiler, connection, template="(UTC_TIMESTAMP(6))", **extra)
