"""The checks themselves: a checker that cannot see a fault proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from django_delayq import Handle
from tests.acceptance.history import History

pytestmark = pytest.mark.acceptance


def _handle(number: int, due_ms: int) -> Handle:
    return Handle(number.to_bytes(16, "big"), "default", "task", None, "stored", due_ms)


def test_history_sees_what_is_lost_early_and_repeated(tmp_path: Path) -> None:
    fine, lost, early, twice = (_handle(number, 1000) for number in range(4))
    lines = [(fine, 1, 1.0), (early, 1, 0.999), (twice, 1, 1.5), (twice, 2, 3.5)]
    path = tmp_path / "history"
    path.write_text(
        "".join(f"{handle.id} {attempt} {at:.6f} 77 start\n" for handle, attempt, at in lines)
    )
    history, handles = History(path), (fine, lost, early, twice)

    assert history.lost(handles) == {lost.id}
    assert history.early(handles) == {early.id: pytest.approx(0.001)}
    assert history.duplicates() == {twice.id: 2}
    assert history.lateness([twice]) == {twice.id: 0.5}


def test_history_takes_whole_lines_only_and_reads_on(tmp_path: Path) -> None:
    handle, path = _handle(1, 0), tmp_path / "history"
    history = History(path)
    assert history.all() == []
    with path.open("a", buffering=1) as file:
        for part, seen in ((f"{handle.id} 1 ", 0), ("2.0 77 start", 0), ("\n", 1)):
            file.write(part)
            file.flush()
            assert len(history.all()) == seen


def test_clocks_that_are_bent_are_taken_into_account(tmp_path: Path) -> None:
    handle, path = _handle(1, 10_000), tmp_path / "history"
    path.write_text(f"{handle.id} 1 3609.000000 77 start\n")
    history = History(path)
    history.ahead[77] = 3600.0
    assert history.early([handle]) == {handle.id: 1.0}
    assert history.early([handle], server_ahead=5.0) == {}
