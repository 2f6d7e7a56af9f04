"""Figures of a topic, added up over hours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...models import TopicHour
from ...stats.histogram import Times, decode


@dataclass
class TopicTotals:
    """The figures of a topic in several hours."""

    messages: int = 0
    dead: int = 0
    expired: int = 0
    retried: int = 0
    lateness: Counter[int] = field(default_factory=Counter)
    lateness_max: float = float("-inf")
    run: Counter[int] = field(default_factory=Counter)
    run_max: float = float("-inf")

    def add(self, row: TopicHour) -> None:
        """Add one hour."""
        self.messages += row.messages
        self.dead += row.dead
        self.expired += row.expired
        self.retried += row.retried
        self.lateness.update(decode(row.lateness))
        self.run.update(decode(row.run))
        if row.lateness_max is not None:
            self.lateness_max = max(self.lateness_max, row.lateness_max)
        if row.run_max is not None:
            self.run_max = max(self.run_max, row.run_max)

    def line(self) -> Mapping[str, Any]:
        """For a table: times in milliseconds, None when nothing ran."""
        late, ran = Times.of(self.lateness, self.lateness_max), Times.of(self.run, self.run_max)
        return {
            "messages": self.messages,
            "dead": self.dead,
            "late_p50_ms": late.p50,
            "late_p99_ms": late.p99,
            "run_p50_ms": ran.p50,
            "run_p99_ms": ran.p99,
        }
