"""One million waiting messages: what enqueueing, a byte of Redis and an idle worker beside them
cost."""

from __future__ import annotations

import subprocess
import sys

from tests.benchmarks import idle

COUNT = 1_000_000


def main(arguments: list[str]) -> None:
    """COUNT may be given as the first argument."""
    count = int(arguments[0]) if arguments else COUNT
    for name, extra in (("enqueue", []), ("bulk", []), ("bytes", [str(count)])):
        subprocess.run([sys.executable, "-m", f"tests.benchmarks.{name}", *extra], check=True)
    idle.main([], (count,))


if __name__ == "__main__":
    main(sys.argv[1:])
