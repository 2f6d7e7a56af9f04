"""Runs one of the programs, or with `all` each of them at full size, and exits with 1 when a
promise was broken."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module

from tests import databases
from tests.chaos.failpoints import POINTS
from tests.chaos.world import Options

PROGRAMS = (
    "flush",
    "redis_away",
    "database_away",
    "exactly_once",
    "bulk",
    "mixed",
    "sentinel",
    "cluster",
    "move_store",
)
ALL = (
    "flush", "flush --kill", "redis_away", "redis_away --frozen", "database_away",
    *(f"exactly_once --database {kind}" for kind in ("postgresql", "sqlite", "mariadb")),
    "bulk --database postgresql", "bulk --database sqlite", "mixed",
    "sentinel --kill", "sentinel --frozen", "cluster --kill", "cluster --frozen", "cluster --migrate",
    "move_store", "move_store --replica",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("name", choices=(*PROGRAMS, "all"))
    parser.add_argument("--database", choices=databases.KINDS, default="postgresql")
    parser.add_argument("--seconds", type=float, help="how long the trouble lasts")
    parser.add_argument("--count", "--messages", type=int, help="how many messages")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--kill", action="store_true", help="kill Redis (flush: and delete its data)"
    )
    parser.add_argument("--frozen", action="store_true", help="Redis is there and does not answer")
    parser.add_argument(
        "--migrate", action="store_true", help="cluster: move a slot from node to node"
    )
    parser.add_argument(
        "--replica", action="store_true", help="move_store: by a replica, and not by a copy"
    )
    parser.add_argument(
        "--term", action="store_true", help="bulk: stop the worker by SIGTERM instead"
    )
    parser.add_argument(
        "--points", default="all", help=f"exactly_once: all, none, or some of {','.join(POINTS)}"
    )
    parser.add_argument("--reconcile-after", type=float, help="DELAYQ's RECONCILE_AFTER")
    given = parser.parse_args(arguments)
    if given.name == "all":
        return run_all()
    if reason := databases.missing(given.database):
        parser.error(reason)
    program = import_module(f"{__package__}.{given.name}")
    options = Options(
        given.database,
        given.count or program.COUNT,
        given.seconds or program.SECONDS,
        given.seed,
        next(
            (
                name
                for name in ("kill", "frozen", "term", "migrate", "replica")
                if getattr(given, name)
            ),
            "",
        ),
        {"all": tuple(POINTS), "none": ()}.get(given.points)
        or tuple(filter(POINTS.get, given.points.split(","))),
        given.reconcile_after or program.RECONCILE_AFTER,
    )
    return int(program.main(options))


def run_all() -> int:
    """A process each, and what they said once more at the end."""
    summary, worst = [], 0
    for command in ALL:
        words = [sys.executable, "-m", "tests.chaos", *command.split()]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
        print(done.stdout, end="", flush=True)
        said = [line for line in done.stdout.splitlines() if not line.startswith("{")]
        summary += said or [f"{command}: ended with {done.returncode} and said nothing"]
        worst = max(worst, abs(done.returncode))
    print("", *summary, sep="\n")
    return min(worst, 1)


if __name__ == "__main__":
    sys.exit(main())
