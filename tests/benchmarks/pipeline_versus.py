"""The statistics of a lake by Spark, DuckDB, Polars, pandas and the ORM: seconds and memory, each
from a cold process.

    python -m tests.benchmarks.pipeline_versus [--scale 0.02] [--orm-most N] [--only NAME]

Counts by state, attempts, sums, maxima and percentiles by hour, topic and task, over 1, 10 and 100
million rows. The largest lake is the one before it ten times, by links. Prints a table in Markdown.
DuckDB and Polars are installed into .bench/versus, never into the environment of the package.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from django_delayq.pipeline.lake.lake import Lake
from tests import databases
from tests.benchmarks import common
from tests.benchmarks.peers.catalogue import ROOT, Peer
from tests.benchmarks.peers.install import install
from tests.benchmarks.versus import made_lake, watched

SIZES = (1_000_000, 10_000_000)
TIMES = 10
ORM_MOST = 10_000_000
"""Rows that are put into PostgreSQL."""
TOLERANCE = 0.05
"""Of percentiles: those of a histogram are off by 3.1 % at most, and pandas has another nearest
rank."""
HERE = Path(__file__).parent / "versus"


class Engines(Peer):
    """What is not ours."""

    @property
    def folder(self) -> Path:
        return ROOT / ".bench" / "versus"


ENGINES = Engines("versus", ("duckdb", "polars"), (), "")


class Way(NamedTuple):
    """A way to the answer."""

    name: str
    words: Sequence[str]
    """{ours}, {theirs}: the two Pythons; {lake}, {paths}: the input."""
    whole: bool = False
    """It holds all rows in memory."""
    orm: bool = False


SPARK = "Spark local[2], driver 1 GB, histograms"
EXACT = "DuckDB, exact"
WAYS = (
    Way(SPARK, ("{ours}", "-m", "tests.benchmarks.versus.with_spark", "{lake}", "1g")),
    Way(EXACT, ("{theirs}", "{here}/with_duckdb.py", "{paths}", "exact")),
    Way("DuckDB, exact, limit 1 GB", ("{theirs}", "{here}/with_duckdb.py", "{paths}", "exact", "1GB")),
    Way("DuckDB, histograms, limit 1 GB", ("{theirs}", "{here}/with_duckdb.py", "{paths}", "histogram", "1GB")),
    Way("Polars, streaming, exact", ("{theirs}", "{here}/with_polars.py", "{paths}")),
    Way("pandas, exact", ("{ours}", "{here}/with_pandas.py", "{paths}"), whole=True),
    Way("Django ORM, rows in Python", ("{ours}", "-m", "tests.benchmarks.versus.with_orm", "rows"), True, True),
    Way("Django ORM, PostgreSQL's percentiles", ("{ours}", "-m", "tests.benchmarks.versus.with_orm", "database"),
        orm=True),
)  # fmt: skip


class Case(NamedTuple):
    """One lake."""

    rows: int
    lake: Lake
    paths: Path


def main(arguments: list[str]) -> None:
    """All ways over all sizes; --only NAME: those with this in their names."""
    most, only = _own(arguments)
    options = common.options(arguments, 1)
    install(ENGINES)
    with tempfile.TemporaryDirectory(dir=_disk()) as folder, ExitStack() as stack:
        cases = list(_lakes(Path(folder), options))
        ways = [way for way in WAYS if only.lower() in way.name.lower()]
        table: dict[str, list[watched.Outcome]] = {way.name: [] for way in ways}
        server = _postgresql(stack) if any(way.orm for way in ways) else None
        for case in cases:
            _measure(case, ways, table, server if case.rows <= most * options.scale else None)
    print(_markdown([case.rows for case in cases], table))


def _own(arguments: list[str]) -> tuple[int, str]:
    given = {
        name: arguments[at + 1]
        for at, name in enumerate(arguments[:-1])
        if name in ("--orm-most", "--only")
    }
    return int(given.get("--orm-most", ORM_MOST)), given.get("--only", "")


def _disk() -> Path:
    folder = ROOT / ".bench"
    folder.mkdir(exist_ok=True)
    return folder


def _postgresql(stack: ExitStack) -> dict[str, str] | None:
    if reason := databases.missing("postgresql"):
        print(f"The ORM is left out: {reason}.")
        return None
    entry = stack.enter_context(databases.launcher("postgresql")).entry
    return {databases.VARIABLE: json.dumps(entry)}


def _lakes(folder: Path, options: common.Options) -> Iterator[Case]:
    for rows in (options.scaled(size, 1_000) for size in SIZES):
        lake = made_lake.make(folder / str(rows), rows)
        yield _case(rows, lake)
    yield _case(rows * TIMES, made_lake.repeat(lake, folder / str(rows * TIMES), TIMES))


def _case(rows: int, lake: Lake) -> Case:
    paths = Path(lake.uri) / "paths.json"
    paths.write_text(json.dumps(lake.uris()), encoding="utf-8")
    size = sum(file.bytes for file in lake.files())
    print(f"{rows:,} rows, {size / 1e6:,.0f} MB, {len(lake.files())} files", flush=True)
    return Case(rows, lake, paths)


def _measure(
    case: Case,
    ways: Sequence[Way],
    table: dict[str, list[watched.Outcome]],
    server: dict[str, str] | None,
) -> None:
    if server:
        print(f"PostgreSQL: {_fill(case, server)}", flush=True)
    truth: dict[str, Any] = {}
    for way in ways:
        outcome = _not_run(way, case, table[way.name], server) or _run(way, case, server)
        if outcome.answer:
            truth = truth or dict(outcome.answer)
            _compare(way.name, outcome.answer, truth)
        table[way.name].append(outcome)
        _report(way, case, outcome)


def _fill(case: Case, server: dict[str, str]) -> str:
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.versus.with_orm",
        "fill",
        case.lake.uri,
    ]
    filled = watched.run(command, server)
    if filled.failure:
        raise SystemExit(f"PostgreSQL cannot be filled: {filled.failure}")
    return f"{case.rows:,} rows, {filled.answer['bytes'] / 1e9:.1f} GB, {filled.seconds:.0f} s"


def _run(way: Way, case: Case, server: dict[str, str] | None) -> watched.Outcome:
    theirs = ENGINES.folder / "bin" / "python"
    known = {
        "ours": sys.executable,
        "theirs": theirs,
        "lake": case.lake.uri,
        "paths": case.paths,
        "here": HERE,
    }
    return watched.run([word.format(**known) for word in way.words], server)


def _not_run(
    way: Way, case: Case, before: Sequence[watched.Outcome], server: dict[str, str] | None
) -> watched.Outcome | None:
    """Why it is not even tried: its memory grows with the rows, or the rows are not in
    PostgreSQL."""
    if way.orm and server is None:
        last = before[-1].seconds if before else 0.0
        return watched.Outcome(
            0, 0, {}, f"not run, about {last * TIMES:,.0f} s" if last else "not run"
        )
    need = before[-1].peak * TIMES if before and way.whole else 0
    if need > psutil.virtual_memory().total * watched.SHARE:
        return watched.Outcome(0, 0, {}, f"not run, would need about {need / 1e9:,.0f} GB")
    return None


def _compare(name: str, answer: Any, truth: Any) -> None:
    """All have counted the same, and their higher percentiles are the same but for what is said
    above."""
    for key in ("groups", "messages", "attempts"):
        if answer[key] != truth[key]:
            raise SystemExit(f"{name} says {answer[key]:,} {key}, another one {truth[key]:,}.")
    for key in ("lateness", "run"):
        for one, other in zip(answer[key][1:], truth[key][1:], strict=True):
            if abs(one - other) > TOLERANCE * other:
                raise SystemExit(
                    f"{name}: percentiles of {key} add up to {one:,.0f} ms, another one's to "
                    f"{other:,.0f}."
                )


def _report(way: Way, case: Case, outcome: watched.Outcome) -> None:
    case_name = f"{way.name}, {case.rows:,} rows"
    known = {"groups": outcome.answer.get("groups"), "version": outcome.answer.get("version")}
    if outcome.failure:
        print(
            json.dumps(
                {
                    "workload": "versus",
                    "case": case_name,
                    "rows": case.rows,
                    "failure": outcome.failure,
                }
            )
        )
        return
    common.report(
        "versus",
        outcome.seconds,
        "s",
        case=case_name,
        rows=case.rows,
        rss_mb=outcome.peak / 1e6,
        **known,
    )


def _markdown(sizes: Sequence[int], table: dict[str, list[watched.Outcome]]) -> str:
    cores, memory = os.cpu_count(), psutil.virtual_memory().total / 1e9
    lines = [
        f"{cores} cores, {memory:.0f} GB; wall time of a cold process and the most memory of all "
        f"its processes.",
        "",
        f"| | {' | '.join(f'{size:,} rows' for size in sizes)} |",
        f"|---|{'---|' * len(sizes)}",
    ]
    for name, outcomes in table.items():
        cells = [one.failure or f"{one.seconds:.1f} s, {one.peak / 1e9:.1f} GB" for one in outcomes]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
