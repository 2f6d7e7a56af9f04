"""kill -9 of a worker in the middle of 1,000 messages: what is lost, what runs twice, how long until all is done."""

from __future__ import annotations

import sys
import time

from . import common

COUNT = 1_000
SECONDS = 0.02
TTR = 2.0


def main(arguments: list[str]) -> None:
    """A second worker takes over at once; further arguments go to both."""
    with common.bench_server():
        from .tasks import SLOTS, short

        def finished() -> int:
            return sum(count > 0 for _, count in common.starts(COUNT, SLOTS // 2))

        first = common.BenchWorker(*arguments)
        short.enqueue_many((index, SECONDS) for index in range(COUNT))
        assert common.wait_until(lambda: finished() > COUNT // 3, 60, every=0.001), "the worker did not begin"
        first.kill()
        killed = time.time()
        started, done = sum(count > 0 for _, count in common.starts(COUNT)), finished()
        with common.BenchWorker(*arguments):
            assert common.wait_until(lambda: finished() == COUNT, 60), f"{COUNT - finished()} messages are lost"
        twice = sum(count > 1 for _, count in common.starts(COUNT))
        last = max(end for end, _ in common.starts(COUNT, SLOTS // 2))
    common.report(
        "crash",
        messages=COUNT,
        lost=0,
        in_flight=started - done,
        ran_twice=twice,
        all_done_after_s=last - killed,
        bound_s=TTR + 2,
    )
    assert twice <= started - done, "more ran twice than were in flight"


if __name__ == "__main__":
    main(sys.argv[1:])
