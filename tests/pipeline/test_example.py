"""`make pipeline` in real processes: the shop gets a past, and each job reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline import outside

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_smoke_run_of_the_pipeline_passes(tmp_path: Path) -> None:
    outside.require_java()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    script = ROOT / "example_project" / "pipeline.py"
    ended = subprocess.run(
        [sys.executable, str(script), "--smoke", "--dir", str(tmp_path)],
        check=False,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=290,
    )
    assert ended.returncode == 0, ended.stdout
    assert "pipeline: passed" in ended.stdout
