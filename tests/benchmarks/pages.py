"""Server time and queries of the archive's pages over two million rows: at any depth, with any
filter."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from tests import databases
from tests.benchmarks import common, on_database, seed
from tests.benchmarks.common import median

ROWS = 2_000_000
RUNS = 5
MOST_MS, MOST_QUERIES = 150.0, 6
LIST, CSV = "/admin/django_delayq/dashboard/archive/", "/admin/django_delayq/dashboard/archive/csv/"
CSV_ROWS = 20_000


def main(arguments: list[str]) -> None:
    """On PostgreSQL. --seeded: its rows are there already."""
    own = on_database.arguments_of("pages", ("postgresql",), arguments)
    if own is None:
        return
    known = common.options([one for one in own if one != "--seeded"], RUNS)
    measure(known, "--seeded" in own)


def measure(options: common.Options, seeded: bool) -> None:
    """One database."""
    kind = databases.kind_of(json.loads(os.environ[databases.VARIABLE]))
    seed.set_up()
    rows = options.scaled(ROWS, 2_000)
    took = None if seeded else seed.fill(rows)
    client = log_in()
    results = [_page(client, name, address, options.runs) for name, address in _addresses(client)]
    slowest, most = max(results), max(queries for _, queries in results)
    common.report(
        "pages", slowest[0], "ms", case=kind, bar_ms=MOST_MS, queries=most, bar_queries=MOST_QUERIES,
        pages=len(results), median_ms=median([ms for ms, _ in results]), rows=rows, seed_s=took, **_csv(client),
    )  # fmt: skip


def log_in() -> Any:
    """Somebody who may see the archive and its contents, by permissions of his own: the most
    queries that it takes."""
    from django.contrib.auth.models import Permission, User
    from django.test import Client
    from django.test.utils import setup_test_environment

    setup_test_environment()
    user, _ = User.objects.get_or_create(username="benchmark", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="django_delayq"))
    client = Client()
    client.force_login(user)
    return client


def _page(client: Any, name: str, address: str, runs: int) -> tuple[float, int]:
    """Median server time of a page, and its queries."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    times = []
    for _ in range(runs):
        begun = time.perf_counter()
        answer = client.get(address)
        times.append((time.perf_counter() - begun) * 1000)
    with CaptureQueriesContext(connection) as captured:
        answer = client.get(address)
    assert answer.status_code == 200, f"{address}: {answer.status_code}"
    queries, found = len(captured), (answer.context or {}).get("found")
    said = ""
    if found is not None:
        back = (
            f", looked back to {found.searched_back_to:%m-%d %H:%M}"
            if found.searched_back_to
            else ""
        )
        said = f"{len(found.rows)} rows{back}{', complete' if found.complete else ''}"
    missed = "  MISSED" if median(times) > MOST_MS or queries > MOST_QUERIES else ""
    spread = f"{median(times):7.1f} ms ({min(times):.0f} to {max(times):.0f})"
    print(f"  {name:<44} {spread}  {queries} queries  {said}{missed}", flush=True)
    return median(times), queries


def _addresses(client: Any) -> Iterator[tuple[str, str]]:
    """Every kind of page."""
    from django_delayq.models import ArchivedMessage

    first, last = (
        ArchivedMessage.objects.order_by(name).values_list("pk", flat=True)[0]
        for name in ("pk", "-pk")
    )
    yield "first", LIST
    for percent in (10, 50, 98):
        there = last - (last - first) * percent // 100
        yield f"{percent} % deep", f"{LIST}?before={there}"
        yield f"{percent} % deep, upwards", f"{LIST}?after={there}"
        row = ArchivedMessage.objects.filter(pk__lte=there).order_by("-pk")[0]
        cursor = f"{int(row.finished_at.timestamp() * 1e6)}.{row.pk}"
        yield f"{percent} % deep, 30 days", f"{LIST}?period=30d&before={cursor}"
        yield f"{percent} % deep, dead", f"{LIST}?state=dead&before={cursor}"
        yield f"{percent} % deep, rare task", f"{LIST}?task=reports.tasks.daily&before={there}"
    singles, pairs = _filters()
    for filters in (*singles, *pairs):
        yield " ".join(filters.values()), f"{LIST}?{urlencode(filters)}"
    row = ArchivedMessage.objects.filter(state="dead").order_by("-pk")[0]
    keyed = ArchivedMessage.objects.exclude(key="").filter(topic="orders").order_by("-pk")[0]
    yield "by id", f"{LIST}?q={row.message_id.hex}"
    yield "by key", f"{LIST}?q=key:{keyed.key}"
    yield "by argument, 24 h", f"{LIST}?q=args.0:1042&period=24h"
    yield "by argument, 30 days", f"{LIST}?q=args.0:1042&period=30d"
    yield "detail", f"{LIST}{row.pk}/"
    yield "detail, edit", f"{LIST}{row.pk}/?edit=1"


def _filters() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Each filter alone, and the pairs of different ones: common, rare, and such that nothing
    has."""
    from django.utils import timezone

    day = timezone.now() - timedelta(days=20)
    old = {"since": day.isoformat(), "until": (day + timedelta(days=1)).isoformat()}
    singles = [
        *({"state": state} for state in ("acked", "dead", "cancelled", "expired")),
        {"open": "on"},
        *({"topic": topic} for topic in ("orders", "default", "gone")),
        *(
            {"task": task}
            for task in ("tests.app.tasks.close_order", "reports.tasks.daily", "gone")
        ),
        *({"error": error} for error in ("PriceBroken", seed.RARE_ERROR, "NoSuchError")),
        *({"period": period} for period in ("1h", "24h", "7d", "30d")),
        old,
    ]
    pairs = [
        {**one, **other}
        for at, one in enumerate(singles)
        for other in singles[at + 1 :]
        if not one.keys() & other
    ]
    return singles, [pair for pair in pairs if not {"period", "since"} <= pair.keys()]


def _csv(client: Any) -> dict[str, float]:
    """Milliseconds to the first byte, and rows a second."""
    begun = time.perf_counter()
    content = iter(client.get(CSV).streaming_content)
    next(content)
    first = (time.perf_counter() - begun) * 1000
    begun, rows = time.perf_counter(), 0
    for part in content:
        rows += part.count(b"\r\n")
        if rows >= CSV_ROWS:
            break
    return {"csv_first_byte_ms": first, "csv_rows_per_second": rows / (time.perf_counter() - begun)}


if __name__ == "__main__":
    main(sys.argv[1:])
