"""The rules of recurring tasks: their ticks, also where clocks are put forward or back, and what a
declaration may say."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq import delayed_task
from django_delayq.core.exceptions import InvalidMessage, InvalidTask
from django_delayq.tasks.recurrence import DAY_MS, MOST_MISSED, Recurrence, Rule
from tests.acceptance.process import ROOT

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE_MS, HOUR_MS = 60_000, 3_600_000

#: The nights in which Berlin puts its clocks forward and back, from the evening before to noon.
FORWARD = datetime(2026, 3, 28, 23, tzinfo=BERLIN), datetime(2026, 3, 29, 6, tzinfo=BERLIN)
BACK = datetime(2026, 10, 24, 23, tzinfo=BERLIN), datetime(2026, 10, 25, 6, tzinfo=BERLIN)


def ms(when: datetime) -> int:
    return int(when.timestamp() * 1000)


def ticks(cron: str, night: tuple[datetime, datetime]) -> list[str]:
    """The ticks of a night as a clock in Berlin shows them, with the distance to UTC."""
    rule = Rule(cron=cron, time_zone="Europe/Berlin")
    found = rule.ticks(*map(ms, night))
    return [f"{datetime.fromtimestamp(tick / 1000, tz=BERLIN):%H:%M%z}"[:8] for tick in found]


@pytest.mark.parametrize(
    ("cron", "forward", "back"),
    [
        ("30 2 * * *", ["03:00+02"], ["02:30+02"]),
        ("0,30 2,3 * * *", ["03:00+02", "03:30+02"], ["02:00+02", "02:30+02", "03:00+01", "03:30+01"]),
        ("30 3 * * *", ["03:30+02"], ["03:30+01"]),
        ("30 1-3 * * *", ["01:30+01", "03:00+02", "03:30+02"], ["01:30+02", "02:30+02", "03:30+01"]),
        ("0 */2 * * *", ["00:00+01", "04:00+02", "06:00+02"], ["00:00+02", "02:00+02", "02:00+01", "04:00+01", "06:00+01"]),
        (
            "0 * * * *",
            ["00:00+01", "01:00+01", "03:00+02", "04:00+02", "05:00+02", "06:00+02"],
            ["00:00+02", "01:00+02", "02:00+02", "02:00+01", "03:00+01", "04:00+01", "05:00+01", "06:00+01"],
        ),
        ("*/30 2 * * *", [], ["02:00+02", "02:30+02", "02:00+01", "02:30+01"]),
    ],
)  # fmt: skip
def test_ticks_where_the_clock_is_put_forward_and_back(
    cron: str, forward: list[str], back: list[str]
) -> None:
    assert ticks(cron, FORWARD) == forward
    assert ticks(cron, BACK) == back


@given(
    cron=st.sampled_from(["30 2 * * *", "0 * * * *", "*/30 2 * * *", "0,30 1-3 * * *"]),
    night=st.sampled_from([FORWARD, BACK]),
    minutes=st.integers(0, 6 * 60),
)
def test_ticks_do_not_depend_on_where_one_begins(
    cron: str, night: tuple[datetime, datetime], minutes: int
) -> None:
    rule, (begin, end) = Rule(cron=cron, time_zone="Europe/Berlin"), map(ms, night)
    middle = begin + minutes * MINUTE_MS
    whole = list(rule.ticks(begin, end))
    assert list(rule.ticks(begin, middle)) + list(rule.ticks(middle, end)) == whole


@given(every=st.integers(1, 100_000), after_ms=st.integers(0, 2 * 10**12))
def test_every_has_ticks_at_its_multiples_whenever_a_process_starts(
    every: int, after_ms: int
) -> None:
    step = every * 1000
    first, second = list(Rule(every_s=every).ticks(after_ms, after_ms + 2 * step))
    assert first % step == 0
    assert after_ms < first <= after_ms + step
    assert second == first + step


@pytest.mark.parametrize(
    "rule", [Rule(every_s=300), Rule(cron="0 3 1,15 * MON-FRI", time_zone="America/New_York")]
)
def test_a_rule_is_read_from_its_text(rule: Rule) -> None:
    assert Rule.parse(str(rule)) == rule


# Missed ticks

NOW = 20_000 * DAY_MS + HOUR_MS // 2


def wanted(missed: Any, after_ms: int, every_s: int = 3600) -> list[float]:
    """The ticks that get a message, in hours from now; the next ones are written ten seconds
    ahead."""
    recurrence = Recurrence(rule=Rule(every_s=every_s), missed=missed)
    return [(tick - NOW) / HOUR_MS for tick in recurrence.wanted(after_ms, NOW, NOW + 10_000)]


@pytest.mark.parametrize(
    ("missed", "hours"), [("skip", []), ("once", [-0.5]), ("all", [-3.5, -2.5, -1.5, -0.5])]
)
def test_the_policy_says_which_missed_ticks_run(missed: str, hours: list[float]) -> None:
    assert wanted(missed, NOW - 4 * HOUR_MS) == hours


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_ticks_that_are_less_than_a_minute_late_are_not_missed(missed: str) -> None:
    found = wanted(missed, NOW - 30_001, every_s=10)
    assert [round(hours * 3600) for hours in found] == [-30, -20, -10, 0, 10]


def test_a_policy_counts_only_the_past() -> None:
    assert [round(h * 3600) for h in wanted("once", NOW - HOUR_MS, every_s=10)] == [0, 10]
    assert [round(h * 3600) for h in wanted("skip", NOW - HOUR_MS, every_s=30)] == [-60, -30, 0]


def test_all_has_a_bound_in_number_and_in_time() -> None:
    found = wanted("all", NOW - HOUR_MS, every_s=1)
    assert len(found) == MOST_MISSED + 10
    assert round(found[-1] * 3600) == 10
    weeks = wanted("all", NOW - 30 * DAY_MS, every_s=86_400)
    assert len(weeks) == 7
    assert wanted("once", NOW - 30 * DAY_MS, every_s=86_400 * 30) == []


# Declaring


def declare(**options: Any) -> Any:
    return delayed_task(name="recurring.task", **options)(lambda: None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cron": "0 3 * *"}, "five fields"),
        ({"cron": "0 0 3 * * *"}, "five fields"),
        ({"cron": 3}, "five fields"),
        ({"cron": "0 25 * * *"}, "bad hour"),
        ({"cron": "0 0 30 2 *"}, "bad day-of-month"),
        ({"cron": "0 0 31 4,6,9 *"}, "bad day-of-month"),
        ({"cron": "0 3 * * *", "time_zone": "Europe/Berlim"}, "No time zone is named 'Europe/Berlim'"),
        ({"cron": "0 3 * * *", "time_zone": "../etc/passwd"}, "No time zone"),
        ({"cron": "0 3 * * *", "time_zone": timezone.utc}, "write its name"),
        ({"every": 0}, "from 1 s"),
        ({"every": 0.5}, "whole seconds"),
        ({"every": timedelta(days=400)}, "366 days"),
        ({"every": "5m"}, "every must be a timedelta"),
        ({"every": 60, "time_zone": "UTC"}, "of a cron line"),
        ({"every": 60, "cron": "0 3 * * *"}, "not both"),
        ({"every": 60, "missed": "never"}, '"skip", "once" or "all"'),
        ({"missed": "all"}, "give every= or cron="),
        ({"crontab": "0 3 * * *"}, "here it is cron"),
    ],
)  # fmt: skip
def test_a_declaration_that_cannot_work_is_refused(
    options: dict[str, Any], words: str, declared: dict[str, Any]
) -> None:
    with pytest.raises(InvalidMessage, match=words):
        declare(**options)
    assert "recurring.task" not in declared


def test_a_recurring_task_needs_no_arguments(declared: dict[str, Any]) -> None:
    def report(shop: int) -> None: ...

    def fine(shop: int = 1, *more: int, **others: int) -> None: ...

    with pytest.raises(InvalidTask, match="give each parameter a default"):
        delayed_task(every=60, name="report")(report)
    delayed_task(every=60, name="fine")(fine)
    assert "fine" in declared


def test_the_zone_of_a_cron_line_is_that_of_django(settings: Any, declared: dict[str, Any]) -> None:
    settings.TIME_ZONE = "Asia/Shanghai"
    assert str(declare(cron=" 0  3 * * * ").definition.recurrence.rule) == "0 3 * * * Asia/Shanghai"


def test_using_cannot_change_the_rule_of_a_task(declared: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match="give it to @delayed_task"):
        declare(every=60).using(every=30)


def test_a_project_without_cron_lines_never_loads_cronsim() -> None:
    code = (
        "import django, sys; django.setup(); from django_delayq import delayed_task\n"
        "delayed_task(name='recurring.task', every=60)(lambda: None)\n"
        "import django_delayq.management.commands.run_delayq, django_delayq.operators.recurring\n"
        "assert 'cronsim' not in sys.modules"
    )
    environment = {"DJANGO_SETTINGS_MODULE": "tests.acceptance.settings", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
