"""Changed code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from django_delayq.worker import reloader as module
from django_delayq.worker.reloader import Reloader


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One module, which is all that the reloader sees."""
    path = tmp_path / "module.py"
    path.write_text("x = 1\n")
    os.utime(path, (1, 1))
    monkeypatch.setattr(module, "iter_all_python_module_files", lambda: [path, tmp_path / "gone.py"])
    return path


@pytest.fixture
def changes() -> list[bool]:
    return []


@pytest.fixture
def reloader(files: Path, changes: list[bool]) -> Reloader:
    reloader = Reloader(lambda: changes.append(True))
    assert reloader.run_once() == 1.0
    return reloader


def test_nothing_changed(reloader: Reloader, changes: list[bool]) -> None:
    reloader.run_once()
    assert changes == []


def test_change_is_noticed_once(reloader: Reloader, files: Path, changes: list[bool]) -> None:
    os.utime(files, (2, 2))
    reloader.run_once()
    reloader.run_once()
    assert changes == [True]


@pytest.mark.parametrize("code", ["def broken(:", "\0"])
def test_code_that_cannot_be_compiled_changes_nothing(
    reloader: Reloader, files: Path, changes: list[bool], caplog: pytest.LogCaptureFixture, code: str
) -> None:
    files.write_text(code)
    reloader.run_once()
    assert changes == []
    assert "the old code goes on" in caplog.text
    files.write_text("x = 2\n")
    os.utime(files, (3, 3))
    reloader.run_once()
    assert changes == [True]


def test_file_that_vanishes_and_comes_back(reloader: Reloader, files: Path, changes: list[bool]) -> None:
    """Editors replace files: the moment in between is no change."""
    moved = files.rename(files.with_suffix(".bak"))
    reloader.run_once()
    assert changes == []
    moved.rename(files)
    os.utime(files, (5, 5))
    reloader.run_once()
    assert changes == [True]
