"""The notebook of the docs, cell by cell, over a lake that the jobs have made."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from django_delayq.core.job_report import ignore
from django_delayq.models import TopicHour
from django_delayq.pipeline.export import export
from django_delayq.pipeline.stats import stats
from django_delayq.stats.histogram import Times
from django_delayq.stats.hourly import TopicTotals
from tests.pipeline.rows import make_rows

NOTEBOOK = Path(__file__).parents[2] / "docs" / "pipeline" / "lateness.ipynb"
BEGIN = datetime(2026, 11, 16, tzinfo=timezone.utc)  # a Monday


def cells() -> list[dict[str, Any]]:
    return [
        cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"
    ]


def test_it_is_kept_without_what_its_cells_have_shown() -> None:
    assert [(cell["outputs"], cell["execution_count"]) for cell in cells()] == [([], None)] * len(
        cells()
    )


def test_its_cells_show_what_the_archive_has(
    spark: Any, parameters: Any, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")  # no window
    import matplotlib.pyplot as plt

    make_rows(
        300,
        topic=lambda n: ("orders", "mail")[n % 2],
        state=lambda n: "dead" if n % 50 == 0 else "acked",
        error_class=lambda n: "Timeout" if n % 100 == 0 else "",
        reason=lambda n: "poison" if n % 100 == 50 else "",
        lateness_ms=lambda n: 1.5**(n % 20),
        finished_at=lambda n: BEGIN + n * timedelta(minutes=20),
    )  # fmt: skip
    export.run(spark, parameters(job={"settle": 0}), ignore)
    stats.run(None, parameters(job={"spark": False}), ignore)
    monkeypatch.setenv("DELAYQ_LAKE", lake)
    found: dict[str, Any] = {}
    for cell in cells():
        exec("".join(cell["source"]), found)
    assert (found["hours"]["messages"].sum(), found["hours"]["dead"].sum()) == (300, 6)
    assert found["causes"] == [
        ("tests.app.tasks.record", "Timeout", 3),
        ("tests.app.tasks.record", "poison", 3),
    ]
    counts = [(row["topic"], row["count(1)"]) for row in found["by_spark"]]
    assert counts == [("mail", 150), ("orders", 150)]
    for topic, (p50, p99) in found["lateness"].items():
        totals = TopicTotals()
        for row in TopicHour.objects.filter(topic=topic):
            totals.add(row)
        wanted = Times.of(totals.lateness, None)
        assert (p50, p99) == (
            pytest.approx(wanted.p50, rel=1 / 16),
            pytest.approx(wanted.p99, rel=1 / 16),
        )
    assert sum(map(sum, found["week"])) == 300
    assert found["week"][0][:3] == [3, 3, 3]
    first, second = (plt.figure(number) for number in plt.get_fignums())
    late, fires = first.axes
    assert sorted(line.get_label() for line in late.lines) == ["mail", "orders"]
    assert sum(line.get_ydata().sum() for line in fires.lines) == 300
    assert second.axes[0].images[0].get_array().sum() == 300
    plt.close("all")
