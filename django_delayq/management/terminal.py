"""Tables and progress bars on a terminal, by rich (extra `cli`). Loaded only when the output is a
terminal and rich is installed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import IO, Literal, NamedTuple, cast

from django.core.management.base import OutputWrapper
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..core.present import on_one_line

#: Lines above the rows of a table: its head and a rule.
_ABOVE = 2
#: Blanks between two columns, and the most characters that a column asks for.
_BETWEEN, _WIDEST = 2, 30


class ScreenPart(NamedTuple):
    """A part of a picture that is drawn again and again."""

    heading: str
    rows: Sequence[Sequence[str]] = ()
    """A table; its first row is the head."""
    lines: Sequence[tuple[str, str]] = ()
    """How bad each is, and the line."""
    figures: Collection[str] = ()
    """Columns that stand on the right, and are never cut."""
    dispensable: Sequence[str] = ()
    """Columns that a narrow screen does without, the first ones first."""


def show_table(stream: OutputWrapper, rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    """The rows as a table; the first one is its head. `right`: which columns are numbers."""
    head, *lines = rows
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, is_right in zip(head, right, strict=True):
        drawn.add_column(Text(name), justify="right" if is_right else "left", overflow="fold")
    for line in lines:
        drawn.add_row(*map(Text, line))
    Console(file=cast(IO[str], stream._out)).print(drawn)


class Bar:
    """A bar for work whose amount is known."""

    def __init__(self, stream: OutputWrapper) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(file=cast(IO[str], stream._out)),
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task("", total=None)

    def show(self, text: str, done: int, total: int) -> None:
        """Draw it anew."""
        self._progress.update(self._task, description=text, completed=done, total=total)

    def stop(self) -> None:
        """Remove it."""
        self._progress.stop()


def draw_again(parts: Callable[[], Sequence[ScreenPart]], pause: Callable[[], object]) -> None:
    """Draw what `parts` finds, again and again, until Ctrl-C."""
    with Live(screen=True, auto_refresh=False) as screen, suppress(KeyboardInterrupt):
        while True:
            screen.update(drawn(parts(), *screen.console.size), refresh=True)
            pause()


def drawn(parts: Sequence[ScreenPart], width: int, height: int) -> Group:
    """Headings, coloured lines and tables, one below the other, on a screen of this size. The
    tables share the lines that are left."""
    tables = [part.rows for part in parts if part.rows]
    fixed = sum(1 + len(part.lines) for part in parts) + _ABOVE * len(tables)
    room = iter(_shared([len(rows) - 1 for rows in tables], height - fixed))
    found: list[RenderableType] = []
    for part in parts:
        found.append(Text(part.heading, style="bold", no_wrap=True, overflow="ellipsis"))
        for level, words in part.lines:
            style = "red" if level == "critical" else "yellow"
            found.append(Text(f"  {words}", style=style, no_wrap=True, overflow="ellipsis"))
        if part.rows:
            found.append(_fitting_table(part, width, next(room)))
    return Group(*found)


def _shared(wanted: Sequence[int], lines: int) -> list[int]:
    """How many rows each table may have: what the others leave, and its share at least."""
    share = max(1, lines // max(1, len(wanted)))
    return [max(share, lines - sum(wanted) + own) for own in wanted]


def _fitting_table(part: ScreenPart, width: int, most: int) -> Table:
    """The first rows. Columns that do not fit are left out, the least important first: a figure of
    which a part is hidden is a wrong one."""
    hidden = len(part.rows) - 1 - most
    rows = part.rows[: 1 + (most - 1 if hidden > 0 else most)]
    head = list(rows[0])
    widths = [min(_WIDEST, max(cell_len(row[n]) for row in rows)) for n in range(len(head))]
    kept = set(range(len(head)))
    for name in part.dispensable:
        if sum(widths[n] + _BETWEEN for n in kept) < width:
            break
        kept.discard(head.index(name))
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _BETWEEN - 1, 0, 0))
    for n in sorted(kept):
        justify: Literal["right", "left"] = "right" if head[n] in part.figures else "left"
        fixed = widths[n] if head[n] in part.figures else None
        table.add_column(
            Text(head[n]), justify=justify, min_width=fixed, overflow="ellipsis", no_wrap=True
        )
    for row in rows[1:]:
        table.add_row(*(Text(on_one_line(row[n])) for n in sorted(kept)))
    if hidden > 0:
        table.add_row(Text(f"and {hidden + 1:,} more", style="dim"))
    return table
