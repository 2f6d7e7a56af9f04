"""A message due in 5 s behind 100,000 messages due in an hour; delays of weeks are stored as
exactly as seconds."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

from tests.benchmarks import common
from tests.benchmarks.common import median
from tests.benchmarks.raw import round_trip_ms

FAR = 100_000
RUNS = 5


def one_run(number: int) -> float:
    """Lateness of the near message in ms."""
    from tests.benchmarks.tasks import noop

    near = noop.using(delay=5).enqueue(number, "near")
    assert common.wait_until(common.Progress(1, number).done, 10), "the near message has not run"
    return common.starts(1, number)[0][0] * 1000 - (near.due_ms or 0)


def weeks_are_exact() -> bool:
    """Whether far messages have the due time that they were given."""
    from tests.benchmarks.tasks import noop

    for delay in (timedelta(days=3), timedelta(weeks=10)):
        due_ms = noop.using(delay=delay).enqueue(common.WARM_UP, "far").due_ms or 0
        if abs(due_ms / 1000 - time.time() - delay.total_seconds()) > 10:
            return False
    return True


def main(arguments: list[str]) -> None:
    """Further arguments go to run_delayq."""
    options = common.options(arguments, RUNS)
    with common.bench_server() as server, common.BenchWorker(*options.worker) as worker:
        worker.warm_up()
        far = options.scaled(FAR, 100)
        common.fill(far)
        exact = weeks_are_exact()
        late = [one_run(number) for number in range(options.runs)]
        trip = round_trip_ms(server)
    common.report(
        "near_far",
        median(late),
        "ms late",
        ceiling=trip,
        ceiling_is="one PING and its answer",
        highest=max(late),
        early=sum(value < 0 for value in late),
        far_messages=far,
        far_exact=exact,
        runs=options.runs,
    )
    assert min(late) >= 0 and exact


if __name__ == "__main__":
    main(sys.argv[1:])
