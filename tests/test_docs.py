"""The examples of docs/ run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import MISSING, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from django_delayq.core.conf import Settings
from django_delayq.models import OutboxMessage
from django_delayq.tasks import registry
from tests.hands import Hands
from tests.store.test_scripts import ACL
from tests.test_readme import ROOT, blocks


def docs(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


@pytest.mark.parametrize(
    "page", sorted(ROOT.joinpath("docs").glob("*.md")), ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_each_system_check_has_an_id_of_its_own_and_is_in_the_docs() -> None:
    found = re.findall(r'id="delayq\.([EW]\d+)"', (ROOT / "django_delayq/checks.py").read_text())
    assert len(found) > 10
    assert sorted(found) == sorted(set(found))
    listed = re.findall(r"^\| ((?:[EW]\d{3}\b[^|]*))\|", docs("operations.md"), re.MULTILINE)
    assert sorted(re.findall(r"[EW]\d{3}", " ".join(listed))) == sorted(found)


def test_the_rights_of_a_redis_user_are_those_that_the_tests_give_it() -> None:
    text = docs("operations.md").partition("## A Redis user of its own")[2].partition("\nAdd ")[0]
    assert sorted(re.findall(r"\+[a-z|]+", text)) == sorted(ACL)


def test_each_setting_is_in_the_docs_with_its_default() -> None:
    text = docs("settings.md").partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]*)\|", text, re.MULTILINE)
    said = {
        name: default.strip("` ").replace(",", "").strip('"')
        for names, defaults in rows
        for name, default in zip(re.findall(r"`(\w+)`", names), defaults.split(", "), strict=True)
    }
    known = {one.name.upper(): one for one in fields(Settings)}
    assert said.keys() == known.keys()
    for name, one in known.items():
        if one.default is not MISSING and said[name] not in ("required", ""):
            assert said[name] == (
                f"{one.default:g}" if isinstance(one.default, float) else str(one.default)
            ), name


def test_the_tests_of_the_page_about_testing_pass(tmp_path: Path, binary: None) -> None:
    for name, code in zip(
        ("conftest.py", "test_orders.py"), blocks(docs("testing.md")), strict=True
    ):
        assert code.startswith(f"# {name}\n")
        tmp_path.joinpath(name).write_text(code)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--ds=tests.settings",
        "-c",
        os.devnull,
    ]
    command += [f"--rootdir={tmp_path}", str(tmp_path)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "example_project")])
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.fixture
def binary() -> None:
    """The server that EmbeddedServer runs, or skip."""
    from django_delayq.core.exceptions import ConfigurationError
    from django_delayq.testing.embedded import find_binary
    from tests.servers import require

    try:
        find_binary()
    except ConfigurationError:
        require("valkey")


@pytest.fixture
def ticking(declared: dict[str, Any]) -> dict[str, Any]:
    """The recipe of docs/tasks.md, declared."""
    from django_delayq import delayed_task

    (recipe,) = [block for block in blocks(docs("tasks.md")) if "def tick" in block]
    module: dict[str, Any] = {"__name__": "recipe", "delayed_task": delayed_task}
    module |= {"timezone": timezone, "timedelta": timedelta}
    exec(recipe, module)
    return module


def test_the_recipe_of_a_task_that_comes_again_does(hands: Hands, ticking: dict[str, Any]) -> None:
    from django_delayq.store.keys import Partition

    assert {"recipe.tick", "recipe.report"} <= registry.by_name.keys()
    reports = Partition("reports", 0)
    tick = ticking["tick"]
    for _ in range(2):
        tick.using(key="daily").enqueue()  # a second start moves it
    for day in range(3):
        assert hands.work(reports) == 1, "the tick"
        assert hands.work(reports) == 1, "the report"
        waiting = tick.get(key="daily")
        assert (
            waiting is not None
            and 0 < (waiting.due_at - timezone.now()).total_seconds() < 2 * 86_400
        )
        hands.archive()
        hands.reconcile()
        assert OutboxMessage.objects.count() == 1, day
        tick.reschedule(key="daily", delay=0)
        hands.relay()
    assert {(row.task, row.state) for row in hands.archive()} == {
        ("recipe.tick", "acked"),
        ("recipe.report", "acked"),
    }
