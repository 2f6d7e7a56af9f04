"""Server time of the operators' pages beside a million waiting messages."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import Any

from tests.benchmarks import common, on_database, seed
from tests.benchmarks.common import median
from tests.benchmarks.pages import log_in

WAITING, ROWS, RUNS = 1_000_000, 200_000, 20
ROOT = "/admin/django_delayq/dashboard/"


def main(arguments: list[str]) -> None:
    """On PostgreSQL."""
    own = on_database.arguments_of("overview", ("postgresql",), arguments)
    if own is None:
        return
    measure(common.options(own, RUNS))


def measure(options: common.Options) -> None:
    """Redis and database are filled once."""
    seed.set_up()
    from django.test.utils import teardown_test_environment

    with ExitStack() as stack:
        _use(stack.enter_context(common.bench_server()).url, stack)
        seed.fill(options.scaled(ROWS, 2_000))
        waiting = _enqueue(options.scaled(WAITING, 5_000))
        client = log_in()
        # What tests look at (the context of each template is copied) is not part of a server's
        # time.
        teardown_test_environment()
        times = {name: _page(client, name, address, options.runs) for name, address in _addresses()}
        others = {
            "live": "live_ms",
            "topic": "topic_ms",
            "topic, deep": "deep_ms",
            "dead letters": "dead_letters_ms",
        }
        figures = {field: times[name] for name, field in others.items()}
        common.report("overview", times["overview"], "ms", waiting=waiting, **figures)


def _use(url: str, stack: ExitStack) -> None:
    from django.conf import settings
    from django.test.utils import override_settings

    hosts = ["testserver"]
    stack.enter_context(
        override_settings(DELAYQ={**settings.DELAYQ, "REDIS": url}, ALLOWED_HOSTS=hosts)
    )


def _enqueue(count: int) -> int:
    """Spread over a day, in the topics of the suite's tasks."""
    from django_delayq.tasks import registry

    usable = [task for task in registry.by_name.values() if not task.definition.is_async][:5]
    for number, task in enumerate(usable):
        topic = f"{task.options.topic}"
        for at in range(0, count // len(usable), 10_000):
            later = task.using(topic=topic, delay=(at * 97 + number) % 86_400 + 60)
            later.enqueue_many(_arguments(task, at, 10_000))
    return count


def _arguments(task: Any, at: int, count: int) -> list[tuple[Any, ...]]:
    needed = task.definition.positional.start
    return [tuple(range(at + n, at + n + needed)) for n in range(count)]


def _addresses() -> list[tuple[str, str]]:
    from django_delayq.client.topics import list_messages

    topic = "default"
    cursor = None
    for _ in range(40):
        cursor = list_messages(topic, cursor=cursor, limit=500).cursor or cursor
    return [
        ("overview", ROOT),
        ("overview, kept", f"{ROOT}?kept=1"),
        ("live", f"{ROOT}?part=1"),
        ("topic", f"{ROOT}topics/{topic}/"),
        ("topic, deep", f"{ROOT}topics/{topic}/?cursor={cursor}"),
        ("dead letters", f"{ROOT}dead-letters/"),
        ("bulk operations", f"{ROOT}bulk/"),
        ("workers", f"{ROOT}workers/"),
        ("operator actions", f"{ROOT}actions/"),
        ("schedule", f"{ROOT}schedule/"),
    ]


def _page(client: Any, name: str, address: str, runs: int) -> float:
    """Median server time; what the figures keep for other requests is forgotten before each."""
    from django_delayq.stats import overview as figures

    times = []
    for _ in range(runs):
        if "kept" not in name:
            figures.reader_of.cache_clear()
        begun = time.perf_counter()
        answer = client.get(address)
        times.append((time.perf_counter() - begun) * 1000)
        assert answer.status_code == 200, f"{address}: {answer.status_code}"
    print(
        f"  {name:<20} {median(times):7.1f} ms ({min(times):.1f} to {max(times):.1f})", flush=True
    )
    return median(times)


if __name__ == "__main__":
    main(sys.argv[1:])
