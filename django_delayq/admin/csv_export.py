"""Lists as CSV, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from io import StringIO
from itertools import chain, islice
from typing import Any
from uuid import UUID

from django.db.models import Model

from ..core.times import local
from . import downloads

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


def csv_parts(rows: Iterable[Model], columns: Sequence[str]) -> Iterator[bytes]:
    """The file in parts: first its head, which needs no database, then downloads.ROWS rows
    each."""
    yield f"{_BYTE_ORDER_MARK}{','.join(columns)}\r\n".encode()
    remaining = iter(rows)
    while (first := next(remaining, None)) is not None:
        text = StringIO()
        lines = csv.writer(text)
        for row in chain((first,), islice(remaining, downloads.ROWS - 1)):
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


CSV = downloads.FileFormat(ending="csv", content_type="text/csv; charset=utf-8", write=csv_parts)
