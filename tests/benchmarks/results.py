"""The file in which results are collected: what is measured again replaces what was there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.benchmarks.machine import describe

Result = dict[str, Any]


class Results:
    """Results by workload and case, each with the run it belongs to. Saved after every one: suites
    take hours."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.machine = describe()
        self.all: list[Result] = load(path)["results"] if path and path.exists() else []

    def add(self, result: Result) -> None:
        """Take a result in, and save."""
        result = {**result, "date": self.machine["date"], "commit": self.machine["commit"]}
        place = _place(result)
        self.all = [one for one in self.all if _place(one) != place] + [result]
        self.save()

    def forget(self, workload: str, *, peer: str | None = None) -> None:
        """Drop what an earlier run of the workload said (cases change with the scale), ours or a
        peer's."""
        self.all = [
            one for one in self.all if (one["workload"], one.get("peer")) != (workload, peer)
        ]

    def save(self) -> None:
        """Write the file."""
        if self._path:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(
                json.dumps({"machine": self.machine, "results": self.all}, indent=1) + "\n"
            )


def load(path: Path) -> dict[str, Any]:
    """What save() wrote."""
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _place(result: Result) -> tuple[str, str]:
    return result["workload"], result.get("case", "")
