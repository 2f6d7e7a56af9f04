"""Projects of their own: the plugin of pytest, several processes, and Django's test runner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest

from tests.test_readme import ROOT

SETTINGS = """
INSTALLED_APPS = ["django_delayq", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DELAYQ = {"REDIS": "redis://127.0.0.1:1/0"}  # nobody listens there
SECRET_KEY = "tests"
USE_TZ = True
"""
TASKS = """
from datetime import timedelta
from django_delayq import delayed_task

paid = []

@delayed_task(topic="orders", delay=timedelta(minutes=30))
def close_order(order_id: int) -> None:
    paid.append(order_id)
"""
TESTS = """
import pytest
from shop.tasks import close_order, paid

@pytest.mark.parametrize("order", range(6))
@pytest.mark.parametrize("commits", [False, True])
def test_an_order_closes(delay_queue, request, order, commits):
    if commits:
        request.getfixturevalue("transactional_db")
    close_order.using(key="the same in all tests").enqueue(order)
    delay_queue.assert_enqueued(close_order, args=[order], delay=1800)
    delay_queue.travel(minutes=30)
    assert delay_queue.run_due().outcomes == ["acked"]
    assert paid.pop() == order
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "shop/tasks.py").write_text(TASKS)
    (tmp_path / "test_orders.py").write_text(TESTS)
    return tmp_path


def run(directory: Path, *command: str) -> str:
    """What a command of Python writes when it succeeds."""
    names = ("DELAYQ", "DJANGO", "PYTEST")
    environment = {name: v for name, v in os.environ.items() if not name.startswith(names)}
    path = os.pathsep.join([str(directory), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        check=False,
        cwd=directory,
        env=environment | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def seconds_of(out: str) -> float:
    """How long the tests took, as their runner says."""
    return float(out.rpartition(" in ")[2].partition("s\n")[0])


PYTEST = ("-m", "pytest", "-q", "-c", os.devnull, "--rootdir=.", "-p", "no:cacheprovider")
WITH_PLUGIN = (*PYTEST, "-p", "pytest_delayq", "--ds=settings", "-W", "error")


@pytest.mark.long
def test_a_project_in_several_processes_needs_no_server(project: Path) -> None:
    assert "12 passed" in run(project, *WITH_PLUGIN, "-n", "2")


@pytest.mark.long
def test_a_project_that_does_not_use_the_plugin_imports_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n"
        "def test_nothing():\n"
        "    assert 'pytest_delayq' in sys.modules\n"
        "    assert not {'django.db', 'django_delayq', 'redis'} & sys.modules.keys()\n"
    )
    command = (*PYTEST, "-p", "pytest_delayq", "-p", "no:django")
    assert "1 passed" in run(tmp_path, *command)


def test_the_plugin_is_one_that_pytest_finds() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\npytest_delayq = "pytest_delayq"\n' in text
    assert '"pytest_delayq.py" = "pytest_delayq.py"' in text, "it is in the wheel"


@pytest.mark.long
def test_the_tests_of_the_example_project_pass_with_nothing_else() -> None:
    out = run(ROOT / "example_project", "manage.py", "test", "--parallel", "2")
    assert "OK" in out
    assert seconds_of(out) < 10


@pytest.mark.long
def test_a_project_of_the_first_day_works_and_is_tested_in_two_seconds(tmp_path: Path) -> None:
    """A view, typed arguments, a key, a cron line and a rate; its tests travel. Written from the
    documentation alone."""
    copytree(Path(__file__).parent / "first_day", tmp_path, dirs_exist_ok=True)
    out = run(tmp_path, *WITH_PLUGIN)
    assert "5 passed" in out
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert seconds_of(out) < 2 * busy
