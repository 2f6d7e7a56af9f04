from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from django_delayq.stats.capacity import BUSY, Costs, Load, drain_rate, plan_capacity

COSTS = Costs()


def planned(**load: Any) -> Any:
    return plan_capacity(Load(**{"rate": 1_000.0, **load}), COSTS)


def test_little_needs_one_of_each() -> None:
    found = planned(rate=1.0)
    assert (found.processes, found.primaries, found.partitions, found.archivers) == (1, 1, 1, 1)
    assert found.concurrency == 8


@pytest.mark.parametrize(
    ("more", "what", "factor"),
    [
        ({"delay_s": 3_600.0}, "waiting messages", 2),
        ({"delay_s": 3_600.0}, "Redis memory", 2),
        ({"peak": 6.0}, "Redis CPU", 2),
        ({"keep_days": 180.0}, "archive", 2),
        ({"archived": 0.5}, "archive", 0.5),
        ({"size": 100 + COSTS.message_bytes + 100}, "Redis memory", 2),
    ],
)
def test_needs_grow_with_the_load(more: dict[str, Any], what: str, factor: float) -> None:
    assert planned(**more).need(what) == pytest.approx(planned().need(what) * factor)


def test_waiting_tasks_get_threads_and_computing_ones_get_processes() -> None:
    waiting = planned(task_ms=100.0, task_cpu_ms=0.1)
    # 3,000 a second in the busiest minute, each for a tenth of a second.
    assert waiting.processes * waiting.concurrency >= 300 / BUSY
    computing = planned(task_ms=10.0, task_cpu_ms=10.0)
    assert computing.processes >= 30 / BUSY > waiting.processes


def test_batches_need_fewer_of_both() -> None:
    alone, together = planned(task_ms=20.0), planned(task_ms=20.0, batch=500)
    assert together.processes < alone.processes
    assert together.need("database connections") < alone.need("database connections")


def test_what_one_redis_cannot_do_is_spread_over_a_cluster() -> None:
    found = planned(rate=100_000.0)
    assert found.primaries > 1
    assert found.partitions >= 4 * found.primaries
    much = planned(delay_s=86_400.0)  # 86 million messages wait
    assert much.primaries == 2 and much.need("Redis memory") < 32
    assert much.partitions >= 9


def test_what_breaks_first_is_in_front_and_breaks_there() -> None:
    limits = planned().limits
    assert [limit.rate for limit in limits] == sorted(limit.rate for limit in limits)
    cpu = next(limit for limit in limits if "CPU" in limit.what)
    assert planned(rate=cpu.rate * 0.99).primaries == 1
    assert planned(rate=cpu.rate * 1.01).primaries == 2
    disk = next(limit for limit in limits if "disk" in limit.what)
    assert planned(rate=disk.rate).need("archive") == pytest.approx(Load(rate=1).disk_gb)
    inserts = next(limit for limit in limits if "inserts" in limit.what)
    assert planned(rate=inserts.rate * 0.99).archivers == 1
    assert planned(rate=inserts.rate * 1.01).archivers == 2


def test_a_lake_needs_disk_and_executors_and_without_one_nothing_is_said_of_it() -> None:
    small, large = planned(lake_days=30.0), planned(lake_days=60.0, window_s=900.0)
    assert large.need("lake") == pytest.approx(2 * small.need("lake"))
    assert large.need("Spark executors") >= small.need("Spark executors") == 1
    with pytest.raises(KeyError):
        planned().need("lake")


def test_without_archive_there_are_no_rows() -> None:
    found = planned(archived=0.0)
    assert found.archivers == 0 and found.need("archive") == 0


@pytest.mark.parametrize(
    ("processes", "cores", "what_limits"),
    [(1, 8, "the worker"), (8, 64, "Redis"), (4, 2, "the cores")],
)
def test_the_rate_of_a_drain_is_that_of_its_narrowest_part(
    processes: int, cores: int, what_limits: str
) -> None:
    costs = replace(COSTS, worker_us=10.0, run_us=5.0)
    assert drain_rate(costs, processes, cores) == pytest.approx(
        {"the worker": 100_000, "Redis": 200_000, "the cores": 2e6 / 15}[what_limits]
    )
