"""Words for people: counts, tables, and text of whatever origin on one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def counted(count: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def on_one_line(text: str, limit: int = 300) -> str:
    """Without characters that a terminal obeys or that end a line.

    What a message holds, or an operator has typed, must not write log lines of its own.
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:limit])


def table(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> Iterator[str]:
    """The lines of a table, two blanks between its columns. `right`: which columns are numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        )
        yield "  ".join(cells).rstrip()
