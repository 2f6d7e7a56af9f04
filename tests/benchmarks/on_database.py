"""Runs a workload with a database: a process for each kind, for settings are read once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from tests import databases

#: Says that the environment has the database.
ONE = "--one"


def arguments_of(workload: str, kinds: Sequence[str], arguments: Sequence[str]) -> list[str] | None:
    """What this process was told, when it has its database; else the workload is run with each of
    these kinds, those that are not installed are left out with the reason, and there is nothing
    more to do here (None)."""
    if ONE in arguments:
        return [one for one in arguments if one != ONE]
    for kind in kinds:
        if reason := databases.missing(kind):
            print(f"{workload} [{kind}]: left out, {reason}")
            continue
        run = [
            sys.executable,
            "-m",
            "tests.databases",
            kind,
            sys.executable,
            "-m",
            f"tests.benchmarks.{workload}",
        ]
        subprocess.run([*run, ONE, *arguments], check=True)
    return None
