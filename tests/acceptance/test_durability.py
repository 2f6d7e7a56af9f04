"""The chaos programs (tests/chaos) for a few seconds each: what a loss of Redis, SQL or workers may
not change."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests import databases
from tests.acceptance.harness import Figure
from tests.acceptance.process import ROOT

pytestmark = pytest.mark.acceptance


def run(program: str, *arguments: str, database: str = "sqlite") -> Any:
    """The figures of a program that has kept its promises. It is a process: its Django is set up
    for workers."""
    command = [sys.executable, "-m", "tests.chaos", program, "--database", database, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return json.loads(done.stdout.splitlines()[0])


@pytest.mark.long
@pytest.mark.parametrize(
    "how",
    [
        pytest.param((), id="FLUSHALL"),
        pytest.param(("--kill",), id="killed and emptied", marks=pytest.mark.long),
    ],
)
def test_redis_that_loses_everything_loses_no_durable_message(
    figure: Figure, how: tuple[str, ...]
) -> None:
    figures = run("flush", *how, "--count", "300", "--reconcile-after", "1")
    figure(
        f"300 archived once {figures['seconds_to_archived']} s after the loss; "
        f"{figures['ran_twice']} ran twice"
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "how",
    [
        pytest.param((), id="stopped", marks=pytest.mark.long),
        pytest.param(("--frozen",), id="frozen"),
    ],
)
def test_checkouts_go_on_while_redis_is_away(figure: Figure, how: tuple[str, ...]) -> None:
    figures = run("redis_away", *how, "--count", "100")
    figure(
        f"the first {figures['first_ms']} ms, the others at most {figures['max_ms']} ms; all have "
        f"run "
        f"{figures['seconds_to_run']} s after Redis was back"
    )


@pytest.mark.long
def test_tasks_run_while_the_database_is_away(figure: Figure) -> None:
    databases.require("postgresql")
    figures = run("database_away", "--seconds", "3", database="postgresql")
    figure(
        f"{figures['messages']} messages; the archive had caught up "
        f"{figures['seconds_to_catch_up']} s after the outage"
    )


@pytest.mark.long
def test_killed_processes_count_each_message_exactly_once(figure: Figure) -> None:
    points = "before_commit,after_send"
    figures = run("exactly_once", "--count", "200", "--seconds", "3", "--points", points)
    figure(
        f"{figures['sum']} counted, {figures['kills']} random kills, {figures['kills_at']} at "
        f"named steps"
    )
