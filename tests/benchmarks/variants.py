"""The burst in several settings, interleaved A B C A B C: archive, processes and partitions use
it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.benchmarks import common
from tests.benchmarks.common import median

ROUNDS = 5
RUNS = 3
"""Bursts per process; a round's figure is their median."""


class Variant(NamedTuple):
    """One setting."""

    case: str
    environment: Mapping[str, str] = {}
    worker: Sequence[str] = ()


def compare(workload: str, variants: Sequence[Variant], arguments: list[str]) -> None:
    """Report a burst per variant, and its ratio to the first one."""
    options = common.options(arguments, ROUNDS)
    rounds = [[burst_of(variant, options) for variant in variants] for _ in range(options.runs)]
    base = [figures[0]["figure"] for figures in rounds]
    for number, variant in enumerate(variants):
        mine = [figures[number] for figures in rounds]
        common.report(
            workload,
            median([one["figure"] for one in mine]),
            "messages/s",
            case=variant.case,
            ceiling=median([one["ceiling"] for one in mine]),
            ceiling_is=mine[0]["ceiling_is"],
            against_first=median(
                [one["figure"] / first for one, first in zip(mine, base, strict=True)]
            ),
            early=sum(one["early"] for one in mine),
            runs=options.runs,
        )


def burst_of(variant: Variant, options: common.Options) -> dict[str, Any]:
    """In a process of its own: settings are read once."""
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.burst",
        "--runs",
        str(RUNS),
        "--scale",
        str(options.scale),
    ]
    environment = {**os.environ, **variant.environment}
    done = subprocess.run(
        [*command, *variant.worker, *options.worker],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
