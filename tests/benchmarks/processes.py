"""The burst with 1, 2 and 4 worker processes."""

from __future__ import annotations

import sys

from tests.benchmarks.variants import Variant, compare

VARIANTS = [
    Variant(f"processes={count}", worker=("--processes", str(count))) for count in (1, 2, 4)
]


def main(arguments: list[str]) -> None:
    """Redis and the producer share the cores with them."""
    compare("processes", VARIANTS, arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
