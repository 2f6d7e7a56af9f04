"""The audit of a healthy million messages, and of the same with every kind of damage: found,
repaired, and clean again.

A quarter waits in Redis only, a quarter is durable (half of it in Redis, half only in the outbox
yet), half is archived and in the lake.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tests import databases
from tests.benchmarks import common, on_database, seed
from tests.servers import launcher

WAITING, DURABLE, ARCHIVED = 250_000, 250_000, 500_000
MASTER, MEMORY = "local[2]", "1g"
CHUNK = 10_000
PAUSE = 1.0
#: No bar was set for it: this is what an operator may wait for.
MOST_S = 60.0


def main(arguments: list[str]) -> None:
    """On PostgreSQL."""
    own = on_database.arguments_of("pipeline_audit", ("postgresql",), arguments)
    if own is None:
        return
    measure(common.options(own, 1))


def measure(options: common.Options) -> None:
    """One database, and a Redis of its own."""
    server = launcher("redis7")
    server.start()
    os.environ["DELAYQ_TEST_REDIS"] = server.url
    try:
        seed.set_up()
        with tempfile.TemporaryDirectory() as lake:
            _measure(options, lake)
    finally:
        server.stop()


def _measure(options: common.Options, lake: str) -> None:
    from django_delayq.pipeline import params_from_django
    from django_delayq.pipeline.audit import audit
    from django_delayq.pipeline.export import export
    from django_delayq.pipeline.params import Storage
    from django_delayq.pipeline.session import build_session
    from django_delayq.store import get_store
    from tests.pipeline.damage import World, plant_all

    begun = time.monotonic()
    fill(options)
    spark = build_session(MASTER, MEMORY)
    with params_from_django.parameters(lake=Storage(lake), job={}) as params:

        def run(job: Any, **given: Any) -> Any:
            return job.run(
                spark, _with(params, given), lambda line, *_: print(f"  {line}", flush=True)
            )

        run(export, settle=0)
        filled_s = time.monotonic() - begun
        healthy, seconds = _timed(lambda: run(audit, pause=PAUSE))
        assert (healthy.code, list(healthy.rows)) == (0, []), healthy
        world = World(get_store(), lambda: run(export, settle=0), lake)
        planted = plant_all(world)
        repaired, repair_s = _timed(lambda: run(audit, pause=PAUSE, repair=True, by="benchmark"))
        assert {
            row["difference"]: row["ids"] for row in repaired.rows if row["confirmed"]
        } == planted, repaired.rows
        # What SQL has lost is told, and brought back by hand.
        lost = "lost row"
        assert all(
            row["repaired"] == row["confirmed"] * (row["difference"] != lost)
            for row in repaired.rows
        ), repaired.rows
        again, again_s = _timed(lambda: run(audit, pause=PAUSE))
        assert [row["difference"] for row in again.rows] == [lost], again
    spark.stop()
    kind = databases.kind_of(json.loads(os.environ[databases.VARIABLE]))
    sizes = {name: count for name, count in healthy.figures.items() if name != "seconds"}
    common.report(
        "pipeline_audit", seconds, "s", case=kind, bar_s=MOST_S, kinds=len(planted), repair_s=repair_s,
        again_s=again_s, fill_s=filled_s, memory=MEMORY, **sizes,
    )  # fmt: skip


def fill(options: common.Options) -> None:
    """A million messages, a few of which run once a lake is there."""
    from django.db import transaction

    from tests.app.tasks import record

    seed.fill(options.scaled(ARCHIVED, 2_000))
    waiting = options.scaled(WAITING, 500)
    for at in range(0, waiting, CHUNK):
        record.using(delay=3_600).enqueue_many(
            (number,) for number in range(at, min(waiting, at + CHUNK))
        )
    half = options.scaled(DURABLE, 500) // 2
    for delay in (1_800, 86_400):
        for at in range(0, half, CHUNK):
            with transaction.atomic():
                durable = record.using(delay=delay, durable=True)
                durable.enqueue_many((number,) for number in range(at, min(half, at + CHUNK)))


def _with(params: Any, job: dict[str, Any]) -> Any:
    import msgspec

    return msgspec.structs.replace(params, job=job)


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.monotonic()
    return function(), time.monotonic() - begun


if __name__ == "__main__":
    main(sys.argv[1:])
