"""The forecast beside a raw scan of the same lanes, by turns: a million messages of two weeks in one
partition and in four, and 500,000 of a day in a thousand topics."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import databases
from tests.benchmarks import common
from tests.benchmarks.common import median

WAITING, MANY, TOPICS, RUNS = 1_000_000, 500_000, 1_000, 3
#: Times the raw scan; seconds and rows of the thousand topics.
MOST_RATIO, MOST_S, MOST_ROWS = 2.0, 15.0, 30_000
CASES = ("1 partitions", "4 partitions", "many topics")
#: Members of one ZADD, and elements of one reply of the raw scan.
CHUNK, PAGE = 1_000, 5_000


def main(arguments: list[str]) -> None:
    """Each case by a process of its own: the settings are read once."""
    if "--case" in arguments:
        at = arguments.index("--case")
        rest = [*arguments[:at], *arguments[at + 2 :]]
        measure(arguments[at + 1], common.options(rest, RUNS))
        return
    run = [sys.executable, "-m", "tests.benchmarks.pipeline_forecast", *arguments, "--case"]
    with tempfile.TemporaryDirectory(dir=common.MEMORY) as folder:
        for case in CASES:
            entry = {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(Path(folder, f"{case}.sqlite3")),
            }
            own = {databases.VARIABLE: json.dumps(entry)}
            if case == "many topics":
                own["DELAYQ_BENCH_TOPICS"] = str(TOPICS)
            else:
                own["DELAYQ_BENCH_PARTITIONS"] = case.split()[0]
            subprocess.run([*run, case], check=True, env={**os.environ, **own})


def measure(case: str, options: common.Options) -> None:
    """One case."""
    many = case == "many topics"
    count = options.scaled(MANY if many else WAITING, 10_000)
    with common.bench_server() as server:
        from django.core.management import call_command

        from django_delayq.models import ForecastCount
        from django_delayq.pipeline import forecast, params_from_django

        call_command("migrate", verbosity=0)
        lanes = _fill(count, days=1 if many else 14, prefix="many." if many else "bench")
        raw, ours = [], []
        with params_from_django.parameters(job={"drain_rate": 1_000.0}) as params:
            for _ in range(options.runs):
                raw.append(_timed(lambda: _scan(server.client(), lanes, count)))
                ours.append(_timed(lambda: _checked(forecast.run(None, params, bool), count)))
        rows = ForecastCount.objects.count()
        bars = {"bar_s": MOST_S, "bar_rows": MOST_ROWS} if many else {"bar_ratio": MOST_RATIO}
        common.report(
            "pipeline_forecast", median(ours) / median(raw), "times a raw scan", case=case,
            forecast_s=median(ours), slowest_s=max(ours), scan_s=median(raw), waiting=count,
            rows_written=rows, **bars,
        )  # fmt: skip


def _fill(count: int, *, days: int, prefix: str) -> list[str]:
    """Ids and due times into the lanes; a forecast reads nothing else."""
    from django_delayq.store import get_store, keys
    from django_delayq.store.keys import Partition

    store = get_store()
    topics = [name for name in store.client.settings.topics if name.startswith(prefix)]
    places = [
        Partition(topic, number)
        for topic in topics
        for number in range(store.topics.configured(topic))
    ]
    for topic in topics:
        store.topics.register(topic, store.topics.configured(topic))
    lanes = [keys.partition_keys(store.client.prefix, place)[1] for place in places]
    chance, now_ms = random.Random(5), store.clock_ms()
    reach = min(days * 86_400_000, 24 * 3_600_000 - 3_600_000 if days == 1 else days * 86_400_000)
    share = -(-count // len(lanes))
    left = count
    for lane in lanes:
        mine = min(share, left)
        left -= mine
        for at in range(0, mine, CHUNK):
            dues = [now_ms + 60_000 + reach * chance.random() for _ in range(min(CHUNK, mine - at))]
            store.client.redis.zadd(lane, {chance.randbytes(16): int(due) for due in dues})
    return lanes


def _scan(client: Any, lanes: list[str], count: int) -> None:
    """Every id and score of the lanes, as quickly as one client can, with nothing done about
    them."""
    seen = 0
    for lane in lanes:
        cursor = 0
        while True:
            cursor, page = client.zscan(lane, cursor, count=PAGE)
            seen += len(page)
            if not cursor:
                break
    assert seen == count, (seen, count)


def _checked(report: Any, count: int) -> None:
    assert report.figures["waiting"] == count, report.figures


def _timed(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main(sys.argv[1:])
