"""The suite: `[PEERS=bullmq,...] python -m tests.benchmarks [workload ...] [--runs N] [--json
FILE]`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.peers.catalogue import NAMES
from tests.benchmarks.results import Results

WORKLOADS = (
    "enqueue", "bulk", "burst", "precision", "bytes", "idle", "fleet", "bodies", "near_far", "fairness", "async_io",
    "archive", "archive_rate", "orders", "capacity", "archiving", "pruning", "processes", "partitions", "growth",
    "release", "crash", "pages",
    "pg_growth", "overview", "many_topics", "pipeline_read", "pipeline_export", "pipeline_stats", "pipeline_schedule",
    "pipeline_forecast", "pipeline_interval", "pipeline_audit", "pipeline_lake", "pipeline_cluster", "pipeline_memory",
)  # fmt: skip
COMPARED = ("enqueue", "bulk", "burst", "precision", "bytes")
"""What peers can do too."""


def run(module: str, arguments: Sequence[str], results: Results, scale: float = 1.0) -> int:
    """Run one program: its lines for people on the screen, those for programs into the results."""
    begun, early = time.monotonic(), 0
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith('{"workload"'):
            result = json.loads(line)
            early += result.get("early", 0)
            results.add({**result, "scale": scale})
        else:
            print(line, end="", flush=True)
    code = process.wait() or min(early, 1)
    name = " ".join([module.rpartition(".")[2], *arguments])
    print(
        f"  {name}: {'done' if code == 0 else f'FAILED ({code})'} in "
        f"{time.monotonic() - begun:.0f} s",
        flush=True,
    )
    return code


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "workloads", nargs="*", metavar="workload", help=f"of {', '.join(WORKLOADS)}; all if none"
    )
    parser.add_argument("--runs", type=int, help="instead of each workload's own number")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="multiplies counts and seconds: 0.01 is a trial"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="collect the results there")
    parser.add_argument("--huge", action="store_true", help="growth up to 10^7 waiting messages")
    parser.add_argument(
        "--peers",
        default=os.environ.get("PEERS", ""),
        help=f"compare with these: {','.join(NAMES)} (or PEERS=)",
    )
    options = parser.parse_args(arguments)
    options.workloads = options.workloads or list(WORKLOADS)
    options.peers = [name for name in options.peers.replace(",", " ").split() if name]
    for name in options.workloads:
        if name not in WORKLOADS:
            parser.error(f"no workload {name!r}: {', '.join(WORKLOADS)}")
    for name in options.peers:
        if name not in NAMES:
            parser.error(f"no peer {name!r}: {', '.join(NAMES)}")
    return options


def main(arguments: Sequence[str]) -> int:
    """A process each: every one sets Django up against a server of its own. A peer that fails is
    not our failure."""
    options = parse(arguments)
    results, worst = Results(options.json), 0
    common = [f"--scale={options.scale}", *([f"--runs={options.runs}"] if options.runs else [])]
    for name in options.workloads:
        results.forget(name)
        extra = ["--huge"] if options.huge and name == "growth" else []
        # Other queues that close orders: all of them, for they take turns with ours in one run.
        extra += ["--peers"] if options.peers and name == "orders" else []
        worst = max(
            worst, abs(run(f"tests.benchmarks.{name}", [*common, *extra], results, options.scale))
        )
        for peer in options.peers if name in COMPARED else ():
            results.forget(name, peer=peer)
            run("tests.benchmarks.peers", [name, peer, *common], results, options.scale)
    results.save()
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
