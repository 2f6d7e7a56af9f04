"""A message due in 5 s behind 100,000 messages due in an hour, and what the distance of the others costs a claim."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

from . import common

FAR = 100_000


def main(arguments: list[str]) -> None:
    """Lateness of the near message; delays of days and weeks are stored as exactly as seconds."""
    with common.bench_server() as server, common.BenchWorker(*arguments):
        from .tasks import noop

        noop.using(delay=3600).enqueue_many((100 + index, "x" * 80) for index in range(FAR))
        near = noop.using(delay=5).enqueue(0, "near")
        far = [noop.using(delay=delay).enqueue(1, "far") for delay in (timedelta(days=3), timedelta(weeks=10))]
        assert common.wait_until(lambda: common.starts(1)[0][1] > 0, 10), "the near message has not run"
        late = common.starts(1)[0][0] * 1000 - (near.due_ms or 0)
        exact = [abs((handle.due_ms or 0) / 1000 - time.time() - seconds) < 10 for handle, seconds in zip(
            far, (3 * 86400, 70 * 86400), strict=True)]  # fmt: skip
        ceiling = common.raw_drain(server, 20_000)
    common.report("near_far", far_messages=FAR, late_ms=late, far_exact=all(exact), raw_scripts_per_second=ceiling)
    assert late >= 0 and all(exact)


if __name__ == "__main__":
    main(sys.argv[1:])
