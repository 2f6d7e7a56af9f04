"""kill -9 of the driver and its Java in the middle of a stream: the lake has each row once in the
end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from django_delayq.models import ArchivedMessage, LakeBatch
from django_delayq.pipeline.export import stream
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.params import Params
from django_delayq.pipeline.sources.lake_files import read_lake
from tests.pipeline.rows import make_rows
from tests.pipeline.stream_that_dies import POINTS

ROOT = Path(__file__).resolve().parents[2]


def die(params: Params, point: str, folder: Path) -> str:
    """Stream in a process that is killed at this point. Returns what it wrote."""
    file = folder / "params.json"
    file.write_bytes(params.encode())
    command = [sys.executable, "-m", "tests.pipeline.stream_that_dies", str(file), point]
    environment = {
        name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, start_new_session=True, check=False,
        timeout=250,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout + done.stderr


@pytest.mark.timeout(900)
def test_after_three_kills_the_lake_has_each_row_once(
    spark: Any, parameters: Any, lake: str, tmp_path: Path
) -> None:
    ids = make_rows(50)
    params = parameters(job={"settle": 0, "batch": 20})
    commits = []
    for point in POINTS:
        die(params, point, tmp_path)
        commits.append(len(Lake(lake).commits()))
    assert commits == [0, 0, 1], "they died elsewhere than they should"

    report = stream.run(spark, params, print)

    found = [row.id for row in read_lake(spark, Lake(lake), ["id"]).collect()]
    assert (
        sorted(found)
        == ids
        == list(ArchivedMessage.objects.order_by("pk").values_list("pk", flat=True))
    )
    assert report.figures["rows"] == 30, "the committed batch was taken again"
    assert [batch.state for batch in LakeBatch.objects.all()] == ["committed"] * 3
    assert len(list(Lake(lake).abandoned(0))) == 2
