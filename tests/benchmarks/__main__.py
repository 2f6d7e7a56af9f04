"""All benchmarks, one after the other: `python -m tests.benchmarks`."""

from __future__ import annotations

import subprocess
import sys

PROGRAMS = ("burst", "precision", "million", "crash", "near_far")

if __name__ == "__main__":
    # A process each: every one sets Django up against a server of its own.
    sys.exit(max(subprocess.call([sys.executable, "-m", f"tests.benchmarks.{name}"]) for name in PROGRAMS))
