"""The job check: figures of past hours beside limits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from django_delayq.core.job_report import Code, Report
from django_delayq.core.times import stored
from django_delayq.models import TopicHour
from django_delayq.pipeline.job_errors import Refused
from django_delayq.pipeline.jobs import Start, run_job
from django_delayq.pipeline.params import Params
from django_delayq.stats.hourly import Sums, hour_of
from tests.pipeline.calling import Call

HOUR = timedelta(hours=1)
NOW = datetime.now(tz=timezone.utc)


@pytest.fixture
def check(
    parameters: Callable[..., Params], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Report]:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # it needs none

    def run(since: str = "", topic: str = "", **limits: Any) -> Report:
        params = parameters(lake="", job=limits, since=since, topic=topic)
        return run_job("check", params, Start(), bool)

    return run


def hour(ago: int, topic: str, late_ms: list[float], *, dead: int = 0, retried: int = 0) -> None:
    """Figures of an hour: a message for each lateness, and dead ones."""
    sums = Sums()
    for nth, late in enumerate(late_ms):
        sums.add("acked", 2 if nth < retried else 1, late, 10.0, "")
    for _ in range(dead):
        sums.add("dead", 1, None, None, "boom")
    at = stored(hour_of(NOW - ago * HOUR))
    TopicHour.objects.create(hour=at, topic=topic, **sums.fields())


def test_limits_that_hold_are_fine(check: Callable[..., Report]) -> None:
    hour(1, "orders", [100.0] * 99, dead=1, retried=5)
    report = check(late_p99=5.0, dead=0.01, retried=0.05, messages=100)
    assert (report.code, report.problems) == (Code.DONE, [])
    (row,) = report.rows
    assert (row["messages"], row["dead_share"], row["retried_share"]) == (100, 0.01, 0.05)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"late_p99": 0.05}, "late p99 is"),
        ({"late_p50": 0.05}, "late p50 is"),
        ({"run_p99": 0.001}, "run p99 is"),
        ({"dead": 0.009}, "1.00% are dead, the limit is 0.90%"),
        ({"retried": 0.0}, "5.00% are retried"),
        ({"messages": 101}, "100 messages have ended, 101 are expected"),
    ],
)
def test_a_limit_that_is_broken_is_told_with_its_topic(
    check: Callable[..., Report], limits: dict[str, Any], words: str
) -> None:
    hour(1, "orders", [100.0] * 99, dead=1, retried=5)
    report = check(**limits)
    assert (report.code, len(report.problems)) == (Code.DIFFERENT, 1)
    assert report.problems[0].startswith("orders: ") and words in report.problems[0]
    assert report.rows[0]["broken"]


def test_hours_are_added_up_and_topics_are_apart(check: Callable[..., Report]) -> None:
    hour(1, "orders", [1.0] * 50, dead=2)
    hour(2, "orders", [1.0] * 48)
    hour(1, "mail", [1.0] * 10)
    assert check(dead=0.02).code == Code.DONE
    assert check(dead=0.019).problems == ["orders: 2.00% are dead, the limit is 1.90%"]
    assert check(dead=0.0, topic="mail").code == Code.DONE


def test_only_the_period_counts(check: Callable[..., Report]) -> None:
    hour(1, "orders", [1.0])
    hour(30, "orders", [1.0], dead=1)
    assert check(dead=0.1).code == Code.DONE
    since = (NOW - timedelta(hours=40)).isoformat()
    assert check(dead=0.1, since=since).code == Code.DIFFERENT


def test_without_figures_or_limits_it_is_refused(check: Callable[..., Report]) -> None:
    with pytest.raises(Refused, match="no figures of any topic"):
        check(dead=0.1)
    with pytest.raises(Refused, match="give a limit"):
        check()


def test_the_command_reads_shares(command: Call, db: None) -> None:
    assert command.code("check", "--dead", "0.5%", "--late-p99", "5s", "--since", "2d") == 0
    assert command.params.job == {"dead": 0.005, "late_p99": 5.0}
    assert command.code("check", "--dead", "1") != 0
    assert command.code("check", "--dead", "101%") != 0
