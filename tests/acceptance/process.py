"""One worker process."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.servers import wait_until

ROOT = Path(__file__).parents[2]

# As in embedded.py: the child dies with the tests, and a preexec_fn would not be safe beside
# threads.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class WorkerProcess:
    """`python -m django run_delayq`. Its output goes to files, and it dies with the tests."""

    def __init__(self, arguments: Iterable[str], environment: dict[str, str], folder: Path) -> None:
        name = f"worker-{secrets.token_hex(3)}"
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        self.begun = time.monotonic()
        command = (sys.executable, "-m", "django", "run_delayq", *arguments)
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the command: of the worker, or with --processes of the supervisor."""
        return self.process.pid

    @property
    def out(self) -> str:
        """What it has printed."""
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        """What it has printed to stderr."""
        return self._err.read_text(errors="replace")

    @property
    def output(self) -> str:
        """Both."""
        return self.out + self.err

    def wait_for(self, text: str, seconds: float = 30.0, times: int = 1) -> WorkerProcess:
        """Until it has printed the text (so many times). On a busy machine a start takes ten
        seconds."""

        def printed() -> bool:
            ended = self.process.poll() is not None
            if self.output.count(text) >= times:
                return True
            assert not ended, (
                f"ended with {self.process.returncode} before it said {text!r}:\n{self.output}"
            )
            return False

        wait_until(printed, f"the worker says {text!r}", seconds)
        return self

    def ready(self) -> WorkerProcess:
        """Until it works."""
        return self.wait_for("Ready in ")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def terminate(self) -> None:
        """Ask it to drain."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def wait(self, seconds: float = 10.0) -> int:
        """Its exit code, minus the signal's number when a signal ended it."""
        return self.process.wait(seconds)

    def runs_for(self, seconds: float) -> bool:
        """Whether it goes on for so long."""
        try:
            self.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def stop(self) -> int:
        """Drain; returns the exit code."""
        self.terminate()
        return self.wait()

    def close(self) -> None:
        """End it and the processes it has started, whatever state they are in."""
        with suppress(ProcessLookupError):  # the group may be gone
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
