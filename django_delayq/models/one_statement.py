"""Reads several queries by one statement: a page makes few, and waits for the database once and not
for each of its lists."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db import connections
from django.db.models import QuerySet


class Count(NamedTuple):
    """Asks how many rows there are: `Count(rows[:1_000])` counts up to a thousand."""

    rows: QuerySet[Any, Any]


Query = QuerySet[Any, Any] | Count
Kind = tuple[str, str]
"""Django's type of a column, for the driver converts by the column, and the database's."""


class _JoinedQuery:
    """One query of the statement."""

    def __init__(self, query: Query, using: str) -> None:
        self.is_count = isinstance(query, Count)
        rows = query.rows.values_list("pk") if isinstance(query, Count) else query
        is_of_values = rows._fields is not None  # type: ignore[attr-defined]
        self.model = None if is_of_values else rows.model
        self.compiler: Any = rows.query.clone().get_compiler(using, elide_empty=False)
        self.sql, self.params = self.compiler.as_sql(with_col_aliases=True)
        if self.is_count:
            self.sql = f"SELECT COUNT(*) AS counted FROM ({self.sql}) AS counted_rows"
            self.columns = {"counted": ("BigIntegerField", "bigint")}
        else:
            self.columns = {
                alias: _kind(expression.output_field, self.compiler.connection)
                for expression, _, alias in self.compiler.select
            }

    def places(self, kinds: list[Kind]) -> list[int]:
        """The columns of the statement that it uses, of its own kinds. New ones are added."""
        taken: list[int] = []
        for kind in self.columns.values():
            free = (at for at, known in enumerate(kinds) if known == kind and at not in taken)
            at = next(free, len(kinds))
            if at == len(kinds):
                kinds.append(kind)
            taken.append(at)
        return taken

    def answer(self, rows: list[list[Any]]) -> Any:
        """In Python's types."""
        if self.is_count:
            return rows[0][0]
        found = map(tuple, self.compiler.results_iter([rows]))
        if self.model is None:
            return list(found)
        names = [expression.target.attname for expression, _, _ in self.compiler.select]
        return [self.model.from_db(self.compiler.using, names, values) for values in found]


def _kind(field: Any, connection: Any) -> Kind:
    return field.get_internal_type(), field.cast_db_type(connection)


def read_together(*queries: Query) -> list[Any]:
    """What each of these queries finds, in no order: rows of its model, or tuples for
    values_list(). For a Count the number. All of them are of one database."""
    if not queries:
        return []
    first = queries[0]
    using = (first.rows if isinstance(first, Count) else first).db
    connection = connections[using]
    parts, kinds = [_JoinedQuery(query, using) for query in queries], list[Kind]()
    places = [part.places(kinds) for part in parts]
    # The others know the type of a NULL by the other rows, except MariaDB of unsigned numbers.
    is_strict = connection.vendor == "postgresql"
    nothing = [
        f"CAST(NULL AS {cast})" if is_strict or kind.startswith("Positive") else "NULL"
        for kind, cast in kinds
    ]
    selects = []
    for number, part in enumerate(parts):
        values = list(nothing)
        for name, at in zip(part.columns, places[number], strict=True):
            values[at] = connection.ops.quote_name(name)
        selects.append(f"SELECT {number}, {', '.join(values)} FROM ({part.sql}) AS part{number}")
    rows: list[list[list[Any]]] = [[] for _ in parts]
    with connection.cursor() as cursor:
        params = [param for part in parts for param in part.params]
        cursor.execute(" UNION ALL ".join(selects), params)
        for number, *row in cursor.fetchall():
            rows[number].append([row[at] for at in places[number]])
    return [part.answer(found) for part, found in zip(parts, rows, strict=True)]
