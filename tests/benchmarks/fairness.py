"""Tasks of 1 ms, 50 ms and 2 s in one topic, and a small topic beside a flooded one: how late each
class starts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.benchmarks import common
from tests.benchmarks.precision import Lateness, lateness, pace, summary
from tests.benchmarks.raw import round_trip_ms

SECONDS = 20
FLOOD = 4_000
FLOOD_TASK = 0.05
NEIGHBOUR_RATE = 50


class Kind(NamedTuple):
    """A class of tasks. Together they keep 4 of the 8 threads busy."""

    case: str
    seconds: float
    per_second: float


KINDS = (Kind("1 ms tasks", 0.001, 200), Kind("50 ms tasks", 0.05, 36), Kind("2 s tasks", 2.0, 1))


def mixed_lengths(seconds: float) -> dict[str, Lateness]:
    """The three classes, evenly spread, each message due one second after it is enqueued."""
    from tests.benchmarks.tasks import mixed

    plan = sorted(
        (n / kind.per_second, kind) for kind in KINDS for n in range(int(seconds * kind.per_second))
    )
    later = mixed.using(delay=1)
    by_kind: dict[str, list[int]] = {kind.case: [] for kind in KINDS}
    for index, (_, kind) in enumerate(plan):
        by_kind[kind.case].append(index)

    def send(index: int) -> Any:
        return later.enqueue(index, plan[index][1].seconds)

    due = pace((offset for offset, _ in plan), send)
    assert common.wait_until(common.Progress(len(due)).done, 60), "not everything ran"
    assert common.wait_until(lambda: common.backlog_empty("mixed"), 20, every=0.1), (
        "not everything ended"
    )
    late = [
        (start - at) * 1000 for (start, _), at in zip(common.starts(len(due)), due, strict=True)
    ]
    return {case: summary([late[index] for index in indexes]) for case, indexes in by_kind.items()}


def beside_a_flood(flood: int, first: int) -> Lateness:
    """50 messages a second of one topic while another has `flood` tasks of 50 ms due at once."""
    from tests.benchmarks.tasks import mixed

    since, at = common.stored_instant(1.0)
    mixed.using(due_at=at).enqueue_many((first + index, FLOOD_TASK) for index in range(flood))
    seconds = 1 + 0.8 * flood * FLOOD_TASK / 8
    due = neighbours(first + flood, lambda sent: sent > seconds * NEIGHBOUR_RATE)
    assert common.wait_until(common.Progress(flood, first).done, 60 + 2 * seconds), (
        "the flood was not drained"
    )
    end = max(start for start, _ in common.starts(flood, first))
    return lateness(due, first + flood, since, end)


def neighbours(first: int, enough: Callable[[int], bool], delay: float = 0.5) -> list[float]:
    """Send the small topic's messages, 50 a second until enough(number of them sent). Returns their
    due times."""
    from tests.benchmarks.tasks import neighbour

    later, sent = neighbour.using(delay=delay), 0

    def offsets() -> Iterator[float]:
        while not enough(sent):
            yield sent / NEIGHBOUR_RATE

    def send(index: int) -> Any:
        nonlocal sent
        sent += 1
        return later.enqueue(first + index, "x" * 80)

    due = pace(offsets(), send)
    assert common.wait_until(common.Progress(len(due), first).done, 60), "the small topic starved"
    return due


def main(arguments: list[str]) -> None:
    """Further arguments go to run_delayq."""
    options = common.options(arguments, 1)
    topics = "bench,mixed,neighbour"
    with (
        common.bench_server() as server,
        common.BenchWorker(*options.worker, topics=topics) as worker,
    ):
        worker.warm_up()
        results = mixed_lengths(options.scaled(SECONDS, 2))
        results["small topic beside a flood"] = beside_a_flood(
            options.scaled(FLOOD, 100), first=100_000
        )
        trip = round_trip_ms(server)
    for case, late in results.items():
        common.report(
            "fairness",
            late.p50_ms,
            "ms p50",
            case=case,
            ceiling=trip,
            ceiling_is="one PING and its answer",
            **{name: value for name, value in late._asdict().items() if name != "p50_ms"},
        )
    assert not any(late.early for late in results.values()), "messages started early"


if __name__ == "__main__":
    main(sys.argv[1:])
