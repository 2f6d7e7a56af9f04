"""kill -9 of a worker in the middle of 1,000 messages: what is lost, what runs twice, how long
until all is done."""

from __future__ import annotations

import sys
import time

from tests.benchmarks import common

COUNT = 1_000
SECONDS = 0.02
TTR = 2.0


def main(arguments: list[str]) -> None:
    """A second worker takes over at once; further arguments go to both."""
    options = common.options(arguments, 1)
    count = options.scaled(COUNT, 100)
    with common.bench_server():
        from django_delayq import topic_stats
        from tests.benchmarks.tasks import SLOTS, short

        def finished() -> int:
            return sum(number > 0 for _, number in common.starts(count, SLOTS // 2))

        first = common.BenchWorker(*options.worker)
        short.enqueue_many((index, SECONDS) for index in range(count))
        assert common.wait_until(lambda: finished() > count // 3, 60, every=0.001), (
            "the worker did not begin"
        )
        first.kill()
        killed = time.time()
        started, done = sum(number > 0 for _, number in common.starts(count)), finished()
        held = topic_stats("bench").leased
        with common.BenchWorker(*options.worker):
            assert common.wait_until(lambda: finished() == count, 60), (
                f"{count - finished()} messages are lost"
            )
        twice = sum(number > 1 for _, number in common.starts(count))
        last = max(end for end, _ in common.starts(count, SLOTS // 2))
    common.report(
        "crash",
        last - killed,
        "s until all is done",
        ceiling=TTR,
        ceiling_is="the lease that has to end first",
        messages=count,
        lost=0,
        in_flight=started - done,
        held=held,
        ran_twice=twice,
        bound_s=TTR + 2,
    )
    # Not in_flight: what ended in the last milliseconds was not settled yet.
    assert twice <= held, "more ran twice than the dead worker held"


if __name__ == "__main__":
    main(sys.argv[1:])
