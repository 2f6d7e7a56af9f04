"""Child processes that end with this one, however it ends (off Linux: unless it is killed)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

MANAGE = Path(__file__).with_name("manage.py")

# Runs in the child before the command, and asks the kernel for a SIGKILL when the parent ends:
# nothing else is told when a parent is killed. A parent that was gone before prctl() has changed
# our getppid().
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Child:
    """One `manage.py` command. Start it from the main thread: the kernel's "parent ended" means
    that thread."""

    def __init__(
        self, name: str, *arguments: str, log: Path | None = None, patience: float = 10.0
    ) -> None:
        self.name = name
        self.patience = patience
        """Seconds it gets to end."""
        command = [sys.executable, str(MANAGE), *arguments]
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
        output = log.open("ab") if log else None
        try:
            # A session of its own: Ctrl-C reaches the parent alone, which then ends everything in
            # order.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output,
                stderr=output and subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        finally:
            if output:
                output.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def stop(self) -> int:
        """Ask it to end, kill it if it does not, and return its exit code."""
        if self.running:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(self.patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
