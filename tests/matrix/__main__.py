"""`python -m tests.matrix [3.12 django6.1 redis8 ...]`: all rows, or those whose names have one of
these words. Options go to pytest. `make matrix` runs it."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Protocol

from tests.matrix.debian import Unavailable
from tests.matrix.environments import pairs
from tests.matrix.servers import ROWS


class Row(Protocol):
    """What can run."""

    @property
    def name(self) -> str: ...

    def run(self, arguments: Sequence[str]) -> int: ...


def main(words: Sequence[str]) -> int:
    """Run the rows and say how each ended. Returns 1 when one has failed, or there is none."""
    wanted = [word for word in words if not word.startswith("-")]
    options = [word for word in words if word.startswith("-")]
    rows: list[Row] = [*pairs(), *ROWS]
    ended: dict[str, str] = {}
    for row in rows:
        if wanted and not any(has(row.name, word) for word in wanted):
            continue
        print(f"make matrix: {row.name}", flush=True)
        try:
            ended[row.name] = "FAILED" if row.run(options) else "passed"
        except Unavailable as error:
            ended[row.name] = f"not here: {error}"
    for name, end in ended.items():
        print(f"make matrix: {name:22} {end}")
    if not ended:
        print("make matrix: no row fits", file=sys.stderr)
    return 1 if "FAILED" in ended.values() or not ended else 0


def has(name: str, word: str) -> bool:
    """3.1 is not in python3.12-django5.2, 5.2 is."""
    return re.search(rf"(?<![\d.]){re.escape(word)}(?![\d.])", name) is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
