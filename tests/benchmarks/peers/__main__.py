"""Compares ours with a peer, interleaved A B A B: `python -m tests.benchmarks.peers burst bullmq
[--runs N]`."""

from __future__ import annotations

import argparse
import subprocess
import sys

from tests.benchmarks import common
from tests.benchmarks.peers.catalogue import CATALOGUE, NAMES, OURS, Peer
from tests.benchmarks.peers.install import NotInstalledError, install, version
from tests.benchmarks.peers.measure import WORKLOADS, details
from tests.benchmarks.peers.session import PeerFailedError


def compare(workload: str, peer: Peer, runs: int | None, scale: float) -> None:
    """Report the peer's figure, ours of the same runs, and the median of the ratios."""
    plan = WORKLOADS[workload]
    if not plan.applies(peer):
        print(f"{workload} [{peer.name}]: it cannot do this")
        return
    install(peer)
    wanted = runs or plan.runs
    pairs = [(plan.measure(OURS, scale), plan.measure(peer, scale)) for _ in range(wanted)]
    ours, theirs = [one for one, _ in pairs], [other for _, other in pairs]
    mine = {f"ours_{name}": value for name, value in details(ours).items() if name != "ran_twice"}
    common.report(
        workload,
        common.median([run.figure for run in theirs]),
        plan.unit,
        case=peer.name,
        peer=peer.name,
        ours=common.median([run.figure for run in ours]),
        ours_to_peer=common.median([one.figure / (other.figure or 1e-9) for one, other in pairs]),
        **details(theirs),
        **mine,
        runs=wanted,
        version=version(peer),
        settings=peer.settings,
    )


def main(arguments: list[str]) -> int:
    """What fails says so in one line, and the next goes on."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers")
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("peers", nargs="+", choices=NAMES)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.peers:
        try:
            compare(options.workload, CATALOGUE[name], options.runs, options.scale)
        except (NotInstalledError, PeerFailedError, subprocess.TimeoutExpired) as error:
            print(f"{options.workload} [{name}]: {error}", flush=True)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
