"""Changed code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from django_delayq.worker.process import reloader as module
from django_delayq.worker.process.reloader import Reloader


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One module, which is all that the reloader sees."""
    path = tmp_path / "module.py"
    path.write_text("x = 1\n")
    os.utime(path, (1, 1))
    monkeypatch.setattr(
        module, "iter_all_python_module_files", lambda: [path, tmp_path / "gone.py"]
    )
    monkeypatch.setattr(module, "_IMPORTS", "import module")
    monkeypatch.syspath_prepend(tmp_path)
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
    reloader: Reloader,
    files: Path,
    changes: list[bool],
    caplog: pytest.LogCaptureFixture,
    code: str,
) -> None:
    files.write_text(code)
    reloader.run_once()
    assert changes == []
    assert "the old code goes on" in caplog.text
    files.write_text("x = 2\n")
    os.utime(files, (3, 3))
    reloader.run_once()
    assert changes == [True]


def test_file_that_vanishes_and_comes_back(
    reloader: Reloader, files: Path, changes: list[bool]
) -> None:
    """Editors replace files: the moment in between is no change."""
    moved = files.rename(files.with_suffix(".bak"))
    reloader.run_once()
    assert changes == []
    moved.rename(files)
    os.utime(files, (5, 5))
    reloader.run_once()
    assert changes == [True]


@pytest.mark.parametrize("code", ["import no_such_module", "1 / 0", "raise SystemExit(3)"])
def test_code_that_cannot_be_imported_changes_nothing(
    reloader: Reloader,
    files: Path,
    changes: list[bool],
    caplog: pytest.LogCaptureFixture,
    code: str,
) -> None:
    files.write_text(code)
    reloader.run_once()
    assert changes == []
    assert "cannot be imported; the old code goes on" in caplog.text
    files.write_text("x = 2\n")
    os.utime(files, (3, 3))
    reloader.run_once()
    assert changes == [True]


def test_new_module_that_was_missing_is_noticed(
    reloader: Reloader, files: Path, changes: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is imported is looked at, and a new file is not."""
    files.write_text("import added_later")
    reloader.run_once()
    (files.parent / "added_later.py").write_text("")
    reloader.run_once()
    assert changes == []
    monkeypatch.setattr(module, "TRY_AGAIN", -1.0)
    reloader.run_once()
    reloader.run_once()
    assert changes == [True]


def test_code_that_stays_broken_is_told_once(
    reloader: Reloader,
    files: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TRY_AGAIN", -1.0)
    files.write_text("import no_such_module")
    for _ in range(3):
        reloader.run_once()
    assert caplog.text.count("the old code goes on") == 1


@pytest.mark.long
def test_tasks_of_the_project_are_imported_too() -> None:
    assert module.import_error() == ""
