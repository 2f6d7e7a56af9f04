"""The tutorial, typed by a reader who does what it says."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.harness import free_port
from tests.acceptance.process import ROOT
from tests.servers import require_embedded
from tests.test_readme import blocks

pytestmark = pytest.mark.acceptance


@pytest.fixture
def tutorial(tmp_path: Path) -> Tutorial:
    require_embedded()
    return Tutorial(tmp_path)


class Tutorial:
    """A reader of docs/tutorial.md, who types what it says into a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.imports: list[str] = []
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("DELAYQ", "DJANGO"))
        } | {"PYTHONPATH": str(ROOT)}
        text = (ROOT / "docs/tutorial.md").read_text()
        self.steps = iter(blocks(text.replace("6399", str(free_port()))))

    def run(self, *command: str) -> str:
        """The output of a command that succeeds."""
        done = subprocess.run(
            [sys.executable, *command],
            check=False,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def write(self) -> None:
        """Add the next block to the file that its first line names."""
        name, _, code = next(self.steps).partition("\n")
        path = self.directory / name.removeprefix("# ").split(",")[0]
        path.write_text((path.read_text() if path.exists() else "") + "\n\n" + code)

    def shell(self, count: int) -> str:
        """The output of the next blocks in a shell that knows the imports of the earlier ones."""
        code = "\n".join(itertools.islice(self.steps, count))
        imports = "\n".join(self.imports)
        self.imports += re.findall(r"^from .*", code, re.MULTILINE)
        return self.run("manage.py", "shell", "-v", "0", "--command", f"{imports}\n{code}")


@pytest.mark.long
def test_the_tutorial_does_what_it_says(tutorial: Tutorial) -> None:
    tutorial.run("-m", "django", "startproject", "tutorial", ".")
    tutorial.run("manage.py", "startapp", "shop")
    tutorial.write()
    (tutorial.directory / "shop/models.py").unlink()
    for _ in range(2):
        tutorial.write()
    tutorial.run("manage.py", "makemigrations", "shop")
    tutorial.run("manage.py", "migrate")
    worker = subprocess.Popen(
        [sys.executable, "manage.py", "run_delayq", "--embedded"],
        cwd=tutorial.directory,
        env=tutorial.environment | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for_line(worker, "Ready")
        assert tutorial.shell(3).startswith("delayed")
        wait_for_line(worker, "close_unpaid_orders")
        assert tutorial.shell(1) == "closed\n"
        assert tutorial.shell(1) == "None\n"
        tutorial.write()
        wait_for_line(worker, "Ready")
        tutorial.shell(1)
        wait_for_line(worker, "dead")
        time.sleep(1)
        assert tutorial.shell(1) == "shop.tasks.send_invoice 2 the mail server does not answer\n"
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)
    tutorial.write()
    tutorial.run("manage.py", "test")


def wait_for_line(worker: subprocess.Popen[str], word: str) -> None:
    """Read the worker's output up to a line with this word."""
    assert worker.stdout is not None
    lines: list[str] = []
    for line in worker.stdout:
        lines.append(line)
        if word in line:
            return
    raise AssertionError(f"{word!r} is not in: {lines}")
