"""What imports what: a web process never pays for Spark, and executors need no Django project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "django_delayq"
HEAVY = {"pyspark", "pyarrow", "pandas", "numpy", "py4j", "deltalake"}

_IMPORT = """
import importlib, sys
{set_up}
for name in {names!r}:
    try:
        importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").startswith(("django_delayq", "pyspark", "pyarrow")):
            raise
print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
print(*sorted(name for name in sys.modules if name.startswith("django_delayq.")))
"""
_PROJECT = "import django; django.setup()"


def imported(names: list[str], set_up: str = "", **environment: str) -> tuple[set[str], set[str]]:
    """The packages, and the modules of ours, that a new process has after it."""
    code = _IMPORT.format(names=names, set_up=set_up)
    without = {
        name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"
    }
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=without | environment, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    packages, ours = process.stdout.splitlines()
    return set(packages.split()), set(ours.split())


def modules(folder: Path) -> list[str]:
    found = (path.relative_to(ROOT).with_suffix("") for path in folder.rglob("*.py"))
    return sorted(
        ".".join(path.parts).removesuffix(".__init__") for path in found if path.stem != "__main__"
    )


def test_nothing_outside_the_pipeline_imports_spark() -> None:
    # With the command and what it takes: `manage.py help` and a test's call_command import those.
    names = [name for name in modules(PACKAGE) if not name.startswith("django_delayq.pipeline")]
    packages, _ = imported(names, _PROJECT, DJANGO_SETTINGS_MODULE="tests.settings")
    assert not packages & HEAVY


def test_the_package_alone_imports_no_django_settings() -> None:
    packages, ours = imported(["django_delayq"])
    assert not packages & HEAVY
    assert "django_delayq.models" not in ours


def test_the_command_line_is_imported_without_django_settings() -> None:
    # A job itself is imported when the parameters have set Django up.
    _, ours = imported(["django_delayq.pipeline.jobs", "django_delayq.pipeline.__main__"])
    assert "django_delayq.models" not in ours


@pytest.mark.parametrize("part", ["sources", "sinks"])
def test_what_runs_on_executors_knows_no_project(part: str) -> None:
    pipeline = "django_delayq.pipeline"
    more = [
        f"{pipeline}.{name}"
        for name in (
            "params",
            "schemas",
            "lake.files",
            "lake.batches",
            "lake.lake_source",
            "stats.aggregates",
            "session",
        )
    ]
    _, ours = imported([*modules(PACKAGE / "pipeline" / part), *more])
    assert not ours & {
        "django_delayq.models",
        "django_delayq.archive.archive_rows",
        "django_delayq.outbox.outbox",
    }
