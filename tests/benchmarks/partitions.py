"""The burst of a topic in 1 and in 16 partitions."""

from __future__ import annotations

import sys

from tests.benchmarks.variants import Variant, compare

VARIANTS = [
    Variant(f"partitions={count}", {"DELAYQ_BENCH_PARTITIONS": str(count)}) for count in (1, 16)
]


def main(arguments: list[str]) -> None:
    """On one Redis: what splitting costs where it cannot gain anything."""
    compare("partitions", VARIANTS, arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
