"""Runs a command with a database of its own in the environment, and exits with its code: KIND
COMMAND..."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from tests.databases import KINDS, VARIABLE, launcher, missing
from tests.databases.processes import launched


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.databases")
    parser.add_argument(
        "--durable", action="store_true", help="fsync at every commit, as in production"
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    if not given.command:
        parser.error("a command is missing")
    if reason := missing(given.kind):
        sys.stderr.write(f"{reason}\n")
        return 1 if os.environ.get("CI") == "true" else 0
    with launcher(given.kind, given.durable) as database:
        return _run(given.command, {**os.environ, VARIABLE: json.dumps(database.entry)})


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """The command gets our signals, and the database stays until it has ended."""
    process = subprocess.Popen(launched(command, signal.SIGTERM), env=environment)
    signal.signal(signal.SIGINT, lambda *_: None)  # a terminal sends it to both
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
