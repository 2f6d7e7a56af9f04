from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq.stats.capacity import Costs
from tests.benchmarks import capacity

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> None:
    call_command("delayq", "plan", *arguments)


def planned(capsys: Any, *arguments: str) -> Any:
    run(*arguments, "--json")
    found = json.loads(capsys.readouterr().out)
    return {need["what"]: need["amount"] for need in found["needs"]}


def test_it_says_what_is_needed_and_what_breaks_first(capsys: Any) -> None:
    run("--rate", "500", "--delay", "1h", "--database", "postgresql")
    text = capsys.readouterr().out
    for words in (
        "worker processes",
        "1,800,000",
        "archive",
        "what breaks first",
        "500.0 messages",
    ):
        assert words in text
    assert "lake" not in text.partition("what breaks")[0]


def test_a_rate_may_be_given_by_the_day(capsys: Any) -> None:
    by_day = planned(capsys, "--per-day", "86400000", "--database", "mysql")
    assert by_day == planned(capsys, "--rate", "1000", "--database", "mysql")


def test_without_a_database_that_of_the_settings_counts(capsys: Any) -> None:
    from django.db import connection

    assert planned(capsys, "--rate", "9000") == planned(
        capsys, "--rate", "9000", "--database", connection.vendor
    )


def test_costs_of_another_machine_count(capsys: Any, tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({"worker_us": Costs().worker_us * 10}))
    rate = ("--rate", "9000", "--task-cpu-ms", "0.001", "--database", "sqlite")
    slow, here = planned(capsys, *rate, "--costs", str(costs)), planned(capsys, *rate)
    assert slow["worker processes"] > here["worker processes"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "one of the arguments --rate --per-day is required"),
        (["--rate", "0"], "not a number above 0"),
        (["--rate", "5", "--archived", "2"], "at most 1"),
        (["--rate", "5", "--costs", "/nowhere.json"], "cannot be read"),
        (["--rate", "5", "--keep", "long"], "not a duration"),
    ],
)
def test_wrong_options_are_refused_in_words(arguments: list[str], words: str) -> None:
    with pytest.raises((CommandError, SystemExit), match=words):
        run(*arguments)


def test_costs_that_are_no_costs_are_refused(tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    costs.write_text('{"worker_us": "fast"}')
    with pytest.raises(CommandError, match="cannot be read"):
        run("--rate", "5", "--costs", str(costs))


def test_the_page_has_the_table_that_the_plan_makes() -> None:
    assert capacity.steps() in (ROOT / capacity.PAGE).read_text()
