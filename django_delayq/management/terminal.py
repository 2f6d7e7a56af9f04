"""Tables and progress bars on a terminal, by rich (extra `cli`). Loaded only when the output is a
terminal and rich is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, TypeAlias, cast

from django.core.management.base import OutputWrapper
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..core.present import on_one_line

Part: TypeAlias = tuple[str, Sequence[Sequence[str]], Sequence[tuple[str, str]]]
"""A heading, a table (its first row is the head), and lines with how bad each is."""


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


def draw_again(parts: Callable[[], Sequence[Part]], pause: Callable[[], object]) -> None:
    """Draw what `parts` finds, again and again, until Ctrl-C."""
    with Live(screen=True, auto_refresh=False) as screen, suppress(KeyboardInterrupt):
        while True:
            screen.update(drawn(parts()), refresh=True)
            pause()


def drawn(parts: Sequence[Part]) -> Group:
    """Headings, coloured lines and tables, one below the other."""
    found: list[RenderableType] = []
    for heading, rows, lines in parts:
        found.append(Text(heading, style="bold"))
        for level, words in lines:
            found.append(Text(f"  {words}", style="red" if level == "critical" else "yellow"))
        if rows:
            drawn_table = Table(box=SIMPLE_HEAD, pad_edge=False)
            for name in rows[0]:
                drawn_table.add_column(Text(name), overflow="ellipsis", no_wrap=True)
            for row in rows[1:]:
                drawn_table.add_row(*(Text(on_one_line(cell)) for cell in row))
            found.append(drawn_table)
    return Group(*found)
