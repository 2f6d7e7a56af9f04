"""Writes docs/benchmarks.md and its charts: `python -m tests.benchmarks.page [results.json]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import chart, sections
from tests.benchmarks.results import Result, load

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = Path(__file__).with_name("results.json")
"""What the page of the docs is made of."""


def charts(results: Sequence[Result]) -> dict[str, str]:
    """File name -> SVG, of those that there are results for."""
    makers: dict[str, Callable[[Sequence[Result]], str | None]] = {
        "burst.svg": _burst,
        "lateness.svg": _lateness,
        "growth.svg": _growth,
    }
    drawn = {name: make(results) for name, make in makers.items()}
    return {name: svg for name, svg in drawn.items() if svg}


def _ours(results: Sequence[Result], workload: str) -> list[Result]:
    """What stands beside the peers: ours of the runs that alternated with theirs, else of the
    workload alone."""
    peers = sections.peers(results, workload)
    if not peers:
        return sections.ours(results, workload)[:1]
    result = {
        "figure": median(one["ours"] for one in peers),
        "early": sum(one.get("ours_early", 0) for one in peers),
    }
    if all("ours_p99_ms" in one for one in peers):
        result["p99_ms"] = median(one["ours_p99_ms"] for one in peers)
    return [result]


def _burst(results: Sequence[Result]) -> str | None:
    ours, peers = _ours(results, "burst"), sections.peers(results, "burst")
    rows = [chart.Bar("django-delayq", one["figure"], True) for one in ours]
    rows += [
        chart.Bar(one["peer"], one["figure"])
        for one in sorted(peers, key=lambda one: -one["figure"])
    ]
    if not rows:
        return None
    said = ", ".join(f"{row.label} {chart.human(row.value)}" for row in rows)
    return chart.bars(
        "20,000 messages due at one instant", f"Messages per second: {said}.", rows, "messages/s"
    )


def _lateness(results: Sequence[Result]) -> str | None:
    everyone = [("django-delayq", True, one) for one in _ours(results, "precision")]
    everyone += [(one["peer"], False, one) for one in sections.peers(results, "precision")]
    # Who starts messages early is not quick but wrong: it would have the shortest bars.
    early = [name for name, _, one in everyone if one.get("early")]
    rows = [
        chart.Bar(f"{name} {label}", one[field], mine)
        for name, mine, one in everyone
        for label, field in (("p50", "figure"), ("p99", "p99_ms"))
        if name not in early
    ]
    if not rows:
        return None
    said = (
        "Shorter is better: "
        + ", ".join(f"{row.label} {chart.human(row.value)} ms" for row in rows)
        + "."
    )
    said += f" Not drawn, for they started messages early: {', '.join(early)}." if early else ""
    return chart.bars("Lateness at 200 messages a second", said, rows, "ms", log=True)


def _growth(results: Sequence[Result]) -> str | None:
    rows = sorted(sections.ours(results, "growth"), key=lambda one: float(one["waiting"]))
    if len(rows) < 2:
        return None
    series = {
        "claim, us/message": [(one["waiting"], one["figure"]) for one in rows],
        "lateness p50, ms": [(one["waiting"], one["p50_ms"]) for one in rows],
        "lateness p99, ms": [(one["waiting"], one["p99_ms"]) for one in rows],
    }
    said = "; ".join(
        f"{name}: {', '.join(chart.human(y) for _, y in points)}" for name, points in series.items()
    )
    first, last = rows[0]["waiting"], rows[-1]["waiting"]
    described = f"From {first:,} to {last:,} waiting messages. {said}."
    return chart.lines(
        "Claim cost and lateness beside waiting messages",
        described,
        series,
        "over the number of waiting messages",
    )


def write(content: dict[str, Any], docs: Path) -> None:
    """The page and its images."""
    images = docs / "images"
    images.mkdir(parents=True, exist_ok=True)
    drawn = charts(content["results"])
    for name, svg in drawn.items():
        (images / name).write_text(svg)
    (docs / "benchmarks.md").write_text(
        sections.page(content["machine"], content["results"], drawn)
    )


def main(arguments: list[str]) -> None:
    """[RESULTS] [--docs FOLDER]."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.page")
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--docs", type=Path, default=DOCS)
    options = parser.parse_args(arguments)
    write(load(options.results), options.docs)
    print(f"wrote {options.docs / 'benchmarks.md'}")


if __name__ == "__main__":
    main(sys.argv[1:])
