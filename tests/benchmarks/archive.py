"""The burst with the archive stream (finished messages are kept for the archiver) and without
it."""

from __future__ import annotations

import sys

from tests.benchmarks.variants import Variant, compare

VARIANTS = (
    Variant("archive on"),
    Variant("archive off", {"DELAYQ_BENCH_ARCHIVE": "none"}),
)


def main(arguments: list[str]) -> None:
    """On is the default: the messages are written to the finished stream. Nobody reads it
    meanwhile."""
    compare("archive", VARIANTS, arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
