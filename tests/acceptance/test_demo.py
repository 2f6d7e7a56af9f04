"""`make demo` in real processes: what it promises, and that nothing of it stays behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest

from tests.servers import require_embedded, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = pytest.mark.acceptance
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the launcher in a directory of its own, and sees to it that it does not outlive the
    test."""
    require_embedded()
    started: list[subprocess.Popen[str]] = []

    def launch(*arguments: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            str(ROOT / "example_project" / "demo.py"),
            "--dir",
            str(tmp_path),
            *arguments,
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        with (tmp_path / "output").open("a") as output:
            started.append(
                subprocess.Popen(command, stdout=output, stderr=output, text=True, env=environment)
            )
        return started[-1]

    yield launch
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def output(tmp_path: Path) -> Callable[[], str]:
    return (tmp_path / "output").read_text


def children_of(launcher: Any, output: Callable[[], str]) -> list[psutil.Process]:
    """Redis, the worker and the web server, once they are all at work."""
    wait_until(lambda: "admin/" in output() and "Ready" in output(), "the demo is up", 20)
    found: list[psutil.Process] = psutil.Process(launcher.pid).children(recursive=True)
    assert len(found) == 3
    return found


def test_the_smoke_run_passes(start: Start, output: Callable[[], str]):
    code = start("--smoke").wait(30)
    assert code == 0, output()
    assert len(re.findall(r"Order \d closed \d+ ms after its deadline", output())) == 4
    assert "Order 5 was paid in time: its message was cancelled and it is still paid" in output()
    assert float(re.search(r"deadline, ([\d.]+) s after the start", output())[1]) < 10


@pytest.mark.long
def test_the_smoke_run_fails_without_a_worker(
    start: Start, output: Callable[[], str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DELAYQ_TOPICS", "coupons")
    assert start("--smoke").wait(30) == 1
    assert "WRONG: orders [1, 2, 3, 4] were not settled in time" in output()


@pytest.mark.long
def test_the_shop_answers_until_ctrl_c_ends_everything(start: Start, output: Callable[[], str]):
    launcher = start()
    children = children_of(launcher, output)
    address = re.search(r"shop +(http\S+)", output())[1]
    wait_until(lambda: b"Thirty Seconds" in _read(address), "the shop answers")
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(20) == 0, output()
    assert "0 abandoned" in output()
    assert not psutil.wait_procs(children, timeout=5)[1]


@pytest.mark.long
def test_killing_the_launcher_leaves_no_child(start: Start, output: Callable[[], str]):
    launcher = start()
    children = children_of(launcher, output)
    launcher.kill()
    launcher.wait()
    assert not psutil.wait_procs(children, timeout=5)[1]


@pytest.mark.long
def test_a_second_demo_in_the_same_directory_is_refused(start: Start, output: Callable[[], str]):
    children_of(start(), output)
    assert start("--smoke").wait(10) == 1
    assert "Another demo runs in" in output()


def _read(address: str) -> bytes:
    try:
        with urlopen(address, timeout=5) as response:
            return bytes(response.read())
    except OSError:
        return b""
