"""How far a job travels: the files that `manage.py delayq pipeline stats` runs through until its
figures are in SQL."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone

import django_delayq
from django_delayq.core.job_report import ignore
from django_delayq.models import TopicHour
from django_delayq.pipeline.export import export
from tests.pipeline.rows import make_rows

PACKAGE = Path(django_delayq.__file__).parent
ROAD = {
    "management/commands/delayq.py",  # finds the verb
    "management/verbs/pipeline.py",  # reads the command line, which is made from the options
    "pipeline/params.py",  # the parameters and the options of the job, checked
    "pipeline/params_from_django.py",  # the parameters that the settings mean
    "pipeline/jobs.py",  # the list of jobs: runs one in a session
    "pipeline/session.py",  # starts Spark
    "pipeline/stats/stats.py",  # the job: chooses the hours and days, and writes them
    "pipeline/lake/lake.py",  # which files count
    "pipeline/lake/ledger.py",  # which batches are not counted yet
    "pipeline/stats/aggregates.py",  # counts the rows on executors
    "stats/hourly.py",  # replaces the figures of an hour or a day
    "stats/histogram.py",  # the texts of the histograms
}
#: After the figures are in SQL: copies them to the lake, and syncs its files.
AFTERWARDS = {"pipeline/lake/figure_tables.py", "pipeline/lake/files.py"}
#: What everything stands on: settings, times, tables.
GROUND = ("core/", "models/", "store/connection.py")
#: What a person sees: lines about the progress, and the report after the job.
SCREEN = ("management/cli.py", "core/job_report.py")


@pytest.mark.long
def test_a_stats_job_passes_these_files(spark: Any, parameters: Any, lake: str) -> None:
    make_rows(20, finished_at=timezone.now() - timedelta(days=3))
    export.run(spark, parameters(job={"settle": 0}), ignore)
    files = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE) and frame.f_code.co_name != "<module>":
            files.add(path.relative_to(PACKAGE).as_posix())

    sys.setprofile(note)
    try:
        call_command("delayq", "pipeline", "stats", "--lake", lake)
    finally:
        sys.setprofile(None)
    assert TopicHour.objects.count() == 1
    passed = {name for name in files if not name.startswith((*GROUND, *SCREEN))}
    assert passed - AFTERWARDS == ROAD
    assert passed >= AFTERWARDS
    assert len(ROAD) <= 12
