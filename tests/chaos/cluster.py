"""failover.py on a Cluster with replicas."""

from __future__ import annotations

from tests.chaos.failover import COUNT, RECONCILE_AFTER, SECONDS, run
from tests.chaos.world import Options

__all__ = ["COUNT", "RECONCILE_AFTER", "SECONDS", "main"]


def main(options: Options) -> int:
    """The exit code."""
    return run("cluster", options)
