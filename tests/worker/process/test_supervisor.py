"""Several processes. Each test is a small program: a fork of the test process would take its
threads' locks along."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker.moving import eventually

HEAD = """
import logging, os, signal, sys, time
from django.conf import settings
settings.configure()
from django_delayq.worker.process import supervisor as module
from django_delayq.worker.process.supervisor import STOP_SIGNALS, Supervisor
logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stdout)
module.FIRST_PAUSE, module.LONGEST_PAUSE = 0.02, 0.1

def say(*words):
    os.write(1, (" ".join(str(word) for word in words) + "\\n").encode())

def until_signal(index):
    '''A worker that ends with code 0 at the first signal, and tells each.'''
    got = []
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, frame: got.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    say("up", index, os.getpid())
    while not got:
        time.sleep(0.005)
    say("down", index, signal.Signals(got[0]).name)
    return 0
"""


class Program:
    def __init__(self, process: subprocess.Popen[str], output: Path) -> None:
        self.process = process
        self.output = output

    @property
    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def pids(self) -> list[int]:
        """Of the workers, oldest first."""
        return [int(line.split()[2]) for line in self.lines if line.startswith("up ")]

    def code(self) -> int:
        return self.process.wait(10)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[str], Program]]:
    running: list[subprocess.Popen[str]] = []

    def start(body: str) -> Program:
        output = tmp_path / "output"
        with output.open("w") as stream:
            command = [sys.executable, "-c", HEAD + textwrap.dedent(body)]
            options: dict[str, Any] = {
                "stdout": stream,
                "stderr": subprocess.STDOUT,
                "start_new_session": True,
            }
            running.append(subprocess.Popen(command, text=True, **options))
        return Program(running[-1], output)

    yield start
    for process in running:
        process.kill()
        process.wait()


def test_starts_so_many_workers_and_passes_signals_on(program: Callable[[str], Program]) -> None:
    made = program("sys.exit(Supervisor(3, until_signal).run())")
    eventually(lambda: len(made.pids()) == 3)
    made.process.send_signal(signal.SIGTERM)
    assert made.code() == 0
    assert sorted(line for line in made.lines if line.startswith("down")) == [
        f"down {n} SIGTERM" for n in range(3)
    ]


def test_question_what_every_thread_does_goes_to_the_workers(
    program: Callable[[str], Program], tmp_path: Path
) -> None:
    # A file for each: the stacks are written word by word, and those of two processes would mix in
    # one.
    stacks = [tmp_path / f"stacks-{index}" for index in range(2)]
    made = program(f"""
        import faulthandler
        def work(index):
            faulthandler.register(signal.SIGUSR2, file=open("{tmp_path}/stacks-" + str(index), "w"))
            return until_signal(index)
        sys.exit(Supervisor(2, work).run())
    """)
    eventually(lambda: len(made.pids()) == 2)

    def asked() -> bool:  # again: a child runs before the supervisor has noted its number
        made.process.send_signal(signal.SIGUSR2)
        return all("in until_signal" in path.read_text() for path in stacks)

    eventually(asked)
    made.process.send_signal(signal.SIGTERM)
    assert made.code() == 0


def test_highest_exit_code_counts(program: Callable[[str], Program]) -> None:
    made = program("""
        def work(index):
            until_signal(index)
            return [0, 4, 0][index]
        sys.exit(Supervisor(3, work).run())
    """)
    eventually(lambda: len(made.pids()) == 3)
    made.process.send_signal(signal.SIGINT)
    assert made.code() == 4


def test_worker_that_dies_is_replaced(program: Callable[[str], Program]) -> None:
    made = program("sys.exit(Supervisor(2, until_signal).run())")
    eventually(lambda: len(made.pids()) == 2)
    os.kill(made.pids()[0], signal.SIGKILL)
    eventually(lambda: len(made.pids()) == 3)
    assert any("was killed by SIGKILL" in line for line in made.lines)
    made.process.send_signal(signal.SIGTERM)
    assert made.code() == 0


def test_worker_that_dies_again_and_again_is_replaced_more_and_more_slowly(
    program: Callable[[str], Program],
) -> None:
    made = program("""
        def work(index):
            say("up", index, os.getpid())
            return 1
        sys.exit(Supervisor(1, work).run())
    """)
    eventually(lambda: len(made.pids()) >= 6)
    pauses = [line.split()[-2] for line in made.lines if "ended with code 1" in line]
    assert pauses[:5] == ["0.0", "0.0", "0.1", "0.1", "0.1"]


def test_others_are_looked_after_while_a_replacement_waits(
    program: Callable[[str], Program],
) -> None:
    made = program("""
        module.FIRST_PAUSE = module.LONGEST_PAUSE = 60
        sys.exit(Supervisor(2, until_signal).run())
    """)
    eventually(lambda: len(made.pids()) == 2)
    for count, pid in enumerate(made.pids(), 1):
        os.kill(pid, signal.SIGKILL)
        eventually(lambda count=count: sum("was killed" in line for line in made.lines) == count)
    made.process.send_signal(signal.SIGTERM)
    assert made.code() == 0


def test_worker_that_is_done_is_not_replaced(program: Callable[[str], Program]) -> None:
    made = program("""
        def work(index):
            say("up", index, os.getpid())
            return 0
        sys.exit(Supervisor(3, work, finite=True).run())
    """)
    assert made.code() == 0
    assert len(made.pids()) == 3


def test_worker_that_was_told_alone_to_stop_is_replaced(program: Callable[[str], Program]) -> None:
    """By an operator, or by something that watches memory: it ends with code 0, and its work is not
    done."""
    made = program("sys.exit(Supervisor(2, until_signal).run())")
    eventually(lambda: len(made.pids()) == 2)
    os.kill(made.pids()[0], signal.SIGTERM)
    eventually(lambda: len(made.pids()) == 3)
    assert any(
        f"worker process {made.pids()[0]} has stopped (by a signal to it alone?)" in line
        for line in made.lines
    )
    made.process.send_signal(signal.SIGTERM)
    assert made.code() == 0


@pytest.mark.skipif(
    sys.platform != "linux",
    reason="only Linux has subreapers, which inherit orphans like process 1",
)
def test_orphan_that_ends_does_not_end_the_supervisor(program: Callable[[str], Program]) -> None:
    """As process 1 of a container: what a task had started outlives its worker, comes to us and
    ends."""
    made = program("""
        import ctypes, subprocess
        assert ctypes.CDLL(None).prctl(36, 1) == 0  # PR_SET_CHILD_SUBREAPER
        def work(index):
            if index == 0:
                say("orphan", subprocess.Popen(["sleep", "60"]).pid)
            return until_signal(index)
        sys.exit(Supervisor(2, work).run())
    """)
    eventually(lambda: len(made.pids()) == 2)
    first = {line.split()[1]: int(line.split()[2]) for line in made.lines if line.startswith("up ")}
    (orphan,) = [int(line.split()[1]) for line in made.lines if line.startswith("orphan")]
    os.kill(first["0"], signal.SIGKILL)
    eventually(lambda: len(made.pids()) == 3)
    os.kill(orphan, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{orphan}").exists())  # it was waited for: no zombie is left
    os.kill(first["1"], signal.SIGKILL)
    eventually(lambda: len(made.pids()) == 4)
    for line in made.lines:
        if line.startswith("orphan"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.split()[1]), signal.SIGKILL)
    made.process.send_signal(signal.SIGTERM)
    assert made.code() == 0


def test_fork_that_fails_is_tried_again(program: Callable[[str], Program]) -> None:
    made = program("""
        real, failed = os.fork, []
        def fork():
            if len(failed) < 2:
                failed.append(True)
                raise BlockingIOError(11, "Resource temporarily unavailable")
            return real()
        os.fork = fork
        sys.exit(Supervisor(2, until_signal).run())
    """)
    eventually(lambda: len(made.pids()) == 2)
    assert sum("no worker process can be started" in line for line in made.lines) == 2
    made.process.send_signal(signal.SIGTERM)
    assert made.code() == 0


def test_worker_that_fails_says_why(program: Callable[[str], Program]) -> None:
    made = program("""
        def work(index):
            raise ValueError("no such thing")
        sys.exit(Supervisor(1, work).run())
    """)
    eventually(lambda: "ValueError: no such thing" in made.lines)


@pytest.mark.long
def test_signal_to_the_whole_group_is_no_second_signal(program: Callable[[str], Program]) -> None:
    """Ctrl-C in a terminal, and systemd, tell the children too; the supervisor then tells them
    again."""
    made = program("""
        from django_delayq.worker.process import runner
        from django_delayq.core import service as worker_service
        runner.SAME_SIGNAL = 5  # a loaded machine takes its time
        progress = worker_service.Sleeper()
        def work(index):
            requested = []
            for number in STOP_SIGNALS:
                signal.signal(number, lambda number, frame: runner._request(requested, number, progress))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            say("up", index, os.getpid())
            while not requested:
                time.sleep(0.005)
            time.sleep(0.2)  # the supervisor's own word comes now
            return 0
        sys.exit(Supervisor(2, work).run())
    """)
    eventually(lambda: len(made.pids()) == 2)
    os.killpg(made.process.pid, signal.SIGINT)
    assert made.code() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_killed_supervisor_takes_its_workers_along(program: Callable[[str], Program]) -> None:
    made = program("sys.exit(Supervisor(2, until_signal).run())")
    eventually(lambda: len(made.pids()) == 2)
    made.process.kill()
    eventually(lambda: sum(line.startswith("down") for line in made.lines) == 2)
