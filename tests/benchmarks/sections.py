"""The text of docs/benchmarks.md: tables of figures, what they mean, which bars are missed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.benchmarks.bars import BARS, PEER_FACTORS, Bar
from tests.benchmarks.chart import human
from tests.benchmarks.results import Result

MEANINGS = {
    "enqueue": "`enqueue()` one by one with 100 bytes of arguments, A B A B with one raw `EVALSHA` (`ZADD`, `HSET`) "
    "per message; the ratio is the median of the pairs' ratios",
    "bulk": "`enqueue_many()`, A B A B with raw `EVALSHA` of 500 messages",
    "burst": "20,000 no-op messages due at one instant; messages per second from that instant to the last start. "
    "The ceiling is our own claim and ack scripts in a bare loop that calls nothing",
    "precision": "200 messages a second for 30 s, each due in 1 to 10 s; start minus due time, and the worker's CPU",
    "bytes": "growth of Redis' `used_memory` per waiting message with 100 bytes of arguments",
    "idle": "a worker beside messages that wait for an hour; commands count also inside scripts",
    "fleet": "what 1 to 64 workers cost together: idle (commands count also inside scripts), and for a message that comes "
    "alone; how late messages are when the home of their topic is killed or frozen, and with 16 workers beside one",
    "bodies": "the longest call of each kind with large bodies, by Redis' slow log",
    "near_far": "a message due in 5 s behind 100,000 that are due in an hour",
    "fairness": "tasks of 1 ms, 50 ms and 2 s in one topic at half load, each class by itself; then a topic with 50 "
    "messages a second beside one with thousands of 50 ms tasks due at once",
    "async_io": "`async def` tasks that wait for 10 ms, `--async-concurrency 1000`, against 1,000 asyncio workers that "
    "create a task for each of the same coroutines",
    "archive": "the burst with finished messages kept for the archiver, and without",
    "archive_rate": "The archiver from the finished stream to the commit and the removal, and the same rows by COPY "
    "(PostgreSQL) or by INSERT of 1,000 rows into the same empty table with the same indexes, by turns in one process; per "
    "database.",
    "pruning": "50,000 old rows deleted as the retention does it, alone and while `run_delayq --archiver` inserts as many; "
    "per database.",
    "pg_growth": "The archive of PostgreSQL with a year of 1, 10 and 30 million rows, as one table and with a partition for "
    "each month: the rate of COPY in transactions of 2,000 rows and its ratio to that into an empty table, all of the "
    "archive's pages, and a prune of its two oldest months; then how long the table takes to become a partitioned one.",
    "orders": "20,000 orders due at one instant, each closed by an `UPDATE` on PostgreSQL: one message a call (5,000 orders), "
    "500 a call, 500 a call exactly once; the ceiling is a bare loop of `UPDATE`s of 500 rows, or of one row in two processes. "
    "The table has 100,000 orders that were closed before. With `--peers`: other queues that close 4,000 of the same orders, "
    "by turns with ours.",
    "capacity": "The costs of `delayq plan` in CPU time, beside those that it takes without `--costs`; and drains with more "
    "processes and partitions beside the rates that it predicts from one of each.",
    "archiving": "100,000 acked messages moved into the archive by `run_delayq --archiver` with nothing else to do; "
    "then the burst without an archiver and with one in the worker's process, on the same two "
    "cores",
    "processes": "the burst with several worker processes; Redis and the producer share the cores",
    "partitions": "the burst of a topic in several partitions of one Redis",
    "growth": "what claiming a message costs, and precision, beside more and more waiting messages",
    "release": "a million messages due at one instant: drain rate, the longest script by Redis' slow log, and the "
    "lateness of another topic's 50 messages a second meanwhile",
    "pages": "server time of the archive's pages over 2,000,000 rows: first, deep, each filter, each pair of filters, "
    "searches, one row; the slowest page's median of 5, and the most queries",
    "many_topics": "server time of every page beside 10,000 topics, 1,000,000 waiting messages and 2,000,000 rows of the "
    "archive, by a user with permissions of his own: the slowest page's median of 7, and the most queries",
    "overview": "server time of the other pages beside 1,000,000 waiting messages in five topics and 200,000 rows of "
    "the archive, with everything read anew; the figure is the overview's median of 20",
    "pipeline_read": "Spark reads 2,000,000 rows of the archive, all 27 columns, on two cores, and drops them; warm. The "
    "ceiling: two processes that read the same to Arrow without Spark",
    "pipeline_export": "2,000,000 rows from the archive to the lake, written, read again and committed, not compacted, with 1 GB for Java",
    "pipeline_stats": "the figures of all hours and days of a lake of 10,000,000 rows, warm, with 1 GB for Java",
    "pipeline_schedule": "1,000,000 rows of Parquet into a topic of four partitions on the same machine, all passes; "
    "and with half of Spark's tasks killed in their first attempt",
    "pipeline_forecast": "the whole job beside a raw scan of the same lanes, by turns: 1,000,000 messages of two weeks, and "
    "500,000 of a day in 1,000 topics",
    "pipeline_interval": "2,000,000 rows to the lake by `export --interval`, while driver and Java are killed three times",
    "pipeline_audit": "Redis, outbox, archive and lake with a million messages; then with planted damage of every "
    "kind, its repair, and another audit",
    "pipeline_lake": "the lake's table after 10,000 commits of eight files with past days compacted, and after 2,000 "
    "without: opening it, a commit, and planning a read of one day",
    "pipeline_memory": "the highest resident memory of each job's driver, over 2,000,000 messages of 30 days and over ten "
    "times as many of 300 days; the figure is how much more the larger takes",
    "pipeline_cluster": "the figures of a lake of 10,000,000 rows by `local[2]`, and by a standalone master with two workers "
    "of a core each, by turns; warm",
    "crash": "`kill -9` of a worker in the middle of 1,000 messages with a lease of 2 s while another takes over",
}

FIELDS = {
    "p50_ms": "p50 ms", "p99_ms": "p99 ms", "max_ms": "max ms", "early": "early", "missing": "missing",
    "ran_twice": "ran twice", "cpu_percent": "% of a core", "rss_mb": "RSS MB", "growth_mb": "growth MB",
    "highest": "highest", "lowest": "lowest", "against_first": "x the first", "worker_cpu_us": "worker CPU us/message",
}  # fmt: skip
"""Details that a workload may have, and their titles."""

DETAILS = {
    "idle": {"redis_cpu_percent": "Redis % of a core"},
    "fleet": {"for_each_topic": "for each topic", "for_each_worker": "for each worker"},
    "bodies": {"longest_ms": "longest of all runs ms"},
    "archiving": {"drain_alone": "drain alone/s", "drain_beside": "drain beside/s", "drain_ratio": "beside / alone"},
    "pruning": {"alone": "alone rows/s", "archived_meanwhile": "archived meanwhile rows/s"},
    "orders": {"against_single": "x single", "seconds": "s for 20,000", "to_python_peers": "x best Python peer",
               "to_graphile": "x Graphile Worker", "single_to_peer": "our single / peer",
               "two_processes_to_peer": "our single, 2 processes / peer"},
    "capacity": {"off_by": "off by", "cores": "cores"},
    "growth": {"p50_against_first": "p50 x the first"},
    "release": {"against_burst": "of the burst's rate", "longest_script_ms": "longest script ms",
                "longest_script": "which", "neighbour_p50_ms": "neighbour p50 ms",
                "neighbour_p99_ms": "neighbour p99 ms"},
    "crash": {"lost": "lost", "in_flight": "in flight"},
    "pages": {"queries": "queries", "median_ms": "median page ms"},
    "pg_growth": {"against_empty": "of an empty table's rate", "slowest_page_ms": "slowest page ms",
                  "median_page_ms": "median page ms", "prune_rows_per_second": "pruned rows/s",
                  "partition_s": "s to partition"},
    "overview": {"live_ms": "live ms", "topic_ms": "topic ms", "deep_ms": "deep ms",
                 "dead_letters_ms": "dead letters ms"},
    "many_topics": {"slowest": "which", "queries": "queries", "overview_ms": "overview ms",
                    "overview_kb": "overview KB", "cold_ms": "first look of a process ms"},
    "pipeline_read": {"peak_rss_mb": "RSS MB, Java and Python"},
    "pipeline_export": {"of_raw_copy": "of a raw COPY", "bytes_per_row": "bytes/row",
                        "peak_rss_mb": "RSS MB, Java and Python"},
    "pipeline_stats": {"with_start_s": "with Spark's start s", "duckdb_s": "DuckDB s", "of_duckdb": "x DuckDB",
                       "largest_error": "largest error of a percentile", "peak_rss_mb": "RSS MB, Java and Python"},
    "pipeline_schedule": {"spark_s": "Spark s", "raw_s": "raw client s", "one_process_s": "`send --file` s",
                          "one_process": "`send --file`, of a raw client", "rows_per_second": "rows/s",
                          "added_again": "added again", "came_back": "came back"},
    "pipeline_forecast": {"forecast_s": "forecast s", "scan_s": "scan s", "rows_written": "rows written"},
    "pipeline_interval": {"differing": "rows that differ", "last_run_s": "last run s"},
    "pipeline_audit": {"repair_s": "repair s", "again_s": "again s"},
    "pipeline_lake": {"commits": "commits", "live_files": "files"},
    "pipeline_cluster": {"local_s": "`local[2]` s", "of_local": "x local"},
    "pipeline_memory": {"driver_mb_small": "driver MB", "driver_mb_large": "driver MB, ten times the rows",
                        "java_mb_large": "Java MB, then", "executor_mb_large": "executor MB, then",
                        "seconds_large": "s, then"},
}  # fmt: skip
"""Details of one workload."""

NOTES = {
    "enqueue": "A peer's call may do less: huey's pushes to a list, and a worker moves the message to the schedule.",
    "burst": "Its worker had already run 500 messages. Early: by more than a millisecond, for some round to that.",
    "precision": "Who starts messages early has a small or negative lateness; that is a failure, not a figure.",
    "bytes": "20,000 messages and no worker: Celery's and huey's grow further once a worker has seen them.",
    "orders": "Ours beside them is the batch.",
}

LIMITS = {
    "enqueue": "Where the difference goes, by cProfile and `INFO commandstats`: our call takes some 15 us longer than "
    "the raw one. 8 are Python (arguments against the signature, id, JSON, is there a "
    "transaction), the others Redis "
    "running six commands instead of two (the time, is the id live, the old head, the counter). "
    "Most of the 78 us of "
    "the raw call are two processes waking each other up.",
    "bytes": "16 bytes above the bare body, one size class of the allocator, for the header of 23 bytes. Beside a "
    "million messages the tables are fuller and it is 326 bytes.",
    "release": "The slow log is wall time: on two shared cores it counts when the server's core is taken away.",
}
"""What keeps ours from more, for whoever wants to go on."""

CHARTS = {
    "burst.svg": "Messages per second of a burst, ours and the peers'",
    "lateness.svg": "Lateness p50 and p99 in ms; whoever starts messages early is left out",
    "growth.svg": "Claim cost and lateness beside 10^4 to 10^6 waiting messages",
}

HEAD = """# Benchmarks

A command makes this page from measured results; do not edit it. Measure your own machine:

```sh
make bench                                          # all workloads, some hours
make bench WORKLOADS="burst precision" PEERS=bullmq # some, and beside a peer: minutes for each
.venv/bin/python -m tests.benchmarks --help         # --runs, --scale, --json FILE, --huge
.venv/bin/python -m tests.benchmarks.page FILE      # a page of your results
```

This page is of `tests/benchmarks/results.json`. A workload that is measured anew replaces its part there
(`--json tests/benchmarks/results.json`), so each says when it was measured. Compare ratios: machines are shared, and some
hours are slower than others.

Peers are installed from their registries into environments of their own under `.peers/`. Each run gets a fresh Redis, and
peers alternate with ours (A B A B). All run the same body, which notes its number and the time in shared memory. The
ceiling is the rate of raw Redis with the same client in the same run; for lateness it is one `PING`. Early starts count as
failures.
"""


def ours(results: Iterable[Result], workload: str) -> list[Result]:
    """Our results of a workload."""
    return [one for one in results if one["workload"] == workload and "peer" not in one]


def peers(results: Iterable[Result], workload: str) -> list[Result]:
    """The peers' results of a workload."""
    return [one for one in results if one["workload"] == workload and "peer" in one]


def page(machine: Mapping[str, str], results: Sequence[Result], images: Iterable[str]) -> str:
    """The whole page."""
    parts = [
        HEAD,
        _warning(results),
        _machine(machine, results),
        _overview(results),
        _bars(results),
    ]
    parts += [f"![{CHARTS[name]}](images/{name})\n" for name in images]
    parts += [_workload(name, results) for name in MEANINGS]
    return "\n".join(part for part in parts if part)


def _warning(results: Sequence[Result]) -> str:
    names = sorted({one["workload"] for one in results if one.get("scale", 1) != 1})
    return (
        f"**Not figures, only a trial with small counts: {', '.join(names)}.**\n" if names else ""
    )


def _machine(machine: Mapping[str, str], results: Sequence[Result]) -> str:
    rows = [[name.replace("_", " "), value] for name, value in machine.items() if value]
    if dates := sorted({one["date"] for one in results if "date" in one}):
        rows.append(["oldest and newest workload", f"{dates[0]}, {dates[-1]}"])
    return "## Machine of the newest run\n\n" + table(["", ""], rows)


def _overview(results: Sequence[Result]) -> str:
    rows = [
        [one["workload"], one.get("case", ""), f"{human(one['figure'])} {one['unit']}", _human(one.get("ceiling")),
         _human(one.get("ratio"))]
        for name in MEANINGS for one in ours(results, name)
    ]  # fmt: skip
    return "## Ours against the ceiling\n\n" + table(
        ["workload", "case", "ours", "ceiling", "ratio"], rows
    )


def _bars(results: Sequence[Result]) -> str:
    bursts = [*ours(results, "burst"), *ours(results, "processes")]
    best = (
        [{**max(bursts, key=lambda one: one["figure"]), "workload": "best burst"}] if bursts else []
    )
    found = [(bar, one) for bar in BARS for one in (*best, *results) if bar.applies(one)]
    rows = [_bar_row(bar, one) for bar, one in found]
    rows += [
        ["burst", f"times {one['peer']} in the same run", f">= {PEER_FACTORS[one['peer']]}",
         human(one["ours_to_peer"]), "yes" if one["ours_to_peer"] >= PEER_FACTORS[one["peer"]] else "**no**"]
        for one in peers(results, "burst") if one["peer"] in PEER_FACTORS
    ]  # fmt: skip
    if not rows:
        return ""
    missed = sum(row[-1] != "yes" for row in rows)
    unmeasured = [
        f"{bar.workload} ({bar.text})"
        for bar in BARS
        if all(bar is not other for other, _ in found)
    ]
    said = f"{missed} of {len(rows)} are missed." if missed else f"All {len(rows)} are met."
    said += f" Not measured: {'; '.join(unmeasured)}." if unmeasured else ""
    return f"## Bars\n\nAgreed before measuring. {said}\n\n" + table(
        ["workload", "what", "bar", "ours", "met"], rows
    )


def _bar_row(bar: Bar, result: Result) -> list[str]:
    what = f"{bar.text} ({bar.case})" if bar.case else bar.text
    answer = "yes" if bar.met(result) else "**no**"
    return [bar.workload, what, f"{bar.sign} {bar.limit:,g}", human(result[bar.field]), answer]


def _workload(name: str, results: Sequence[Result]) -> str:
    mine, others = ours(results, name), peers(results, name)
    if not (mine or others):
        return ""
    meaning, times = MEANINGS[name].rstrip("."), {_measured(one) for one in (*mine, *others)}
    said = f" Measured {', '.join(sorted(times))}." if any(times) else ""
    text = f"## {name}\n\n{meaning[0].upper()}{meaning[1:]}.{said}\n"
    if mine:
        text += "\n" + _table_of(mine, ["case"] if any("case" in one for one in mine) else [])
        if "ceiling_is" in mine[0]:
            text += f"\nCeiling: {mine[0]['ceiling_is']}.\n"
        if name in LIMITS:
            text += f"\n{LIMITS[name]}\n"
    if others:
        text += "\n" + _table_of(others, ["peer", "ours", "ours_to_peer"])
        text += "\n" + "".join(f"- {one['version']}: {one['settings']}\n" for one in others)
        if name in NOTES:
            text += f"\n{NOTES[name]}\n"
    return text


def _measured(result: Result) -> str:
    return f"{result['date'][:10]} ({result['commit']})" if "date" in result else ""


def _table_of(rows: Sequence[Result], first: Sequence[str]) -> str:
    """First columns, figure, ceiling and ratio where there are any, details, runs."""
    details = {**FIELDS, **DETAILS.get(rows[0]["workload"], {})}
    names = [*first, "figure", "ceiling", "ratio", *details, "runs"]
    names = [name for name in names if name in first or any(name in one for one in rows)]
    titles = {
        "figure": rows[0]["unit"],
        "ours": "ours, same runs",
        "ours_to_peer": "ours / peer",
        **details,
    }
    cells = [[_human(one.get(name)) for name in names] for one in rows]
    return table([titles.get(name, name) for name in names], cells)


def _human(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else human(value)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
