"""Runs the consumers of docs/examples under kill -9: `python -m tests.integrations.api.foreign
--language node --messages 10000`."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.integrations.api.served import Served, serving

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
CONSUMERS = 4
#: Seconds between two kills.
KILL_EVERY = 1.0
TTR = 10.0


class Report(NamedTuple):
    """What a run has shown."""

    sent: int
    lost: int
    overlaps: int
    """Messages that two living consumers have held at the same time."""
    runs: int
    kills: int
    archived: int


def program(language: str, folder: Path) -> list[str]:
    """The command of a consumer; Go is compiled first."""
    if language == "node":
        return ["node", str(EXAMPLES / "consumer.mjs")]
    binary = folder / "consumer"
    source = str(EXAMPLES / "consumer.go")
    subprocess.run(["go", "build", "-o", str(binary), source], check=True)
    return [str(binary)]


def has(language: str) -> bool:
    """Whether this machine can run it."""
    return shutil.which(language) is not None


def run(language: str, messages: int) -> Report:
    """Send so many messages, and kill consumers until all are done."""
    with tempfile.TemporaryDirectory() as name, serving(Path(name), archiver=True) as served:
        folder = Path(name)
        command, journal = program(language, folder), folder / "journal"
        environment = os.environ | {
            "DELAYQ_URL": served.url,
            "DELAYQ_TOKEN": served.token,
            "TOPIC": "mail",
            "JOURNAL": str(journal),
        }
        _send(served, messages)
        consumers = [subprocess.Popen(command, env=environment) for _ in range(CONSUMERS)]
        died: dict[int, float] = {}
        choice = random.Random(1)
        try:
            until = time.monotonic() + 600
            while _ended(counters := served.call("/topics/mail")["counters"]) < messages:
                assert time.monotonic() < until, counters
                time.sleep(KILL_EVERY)
                at = choice.randrange(CONSUMERS)
                consumers[at].send_signal(signal.SIGKILL)
                consumers[at].wait()
                died[consumers[at].pid] = time.time() * 1000
                consumers[at] = subprocess.Popen(command, env=environment)
        finally:
            for consumer in consumers:
                consumer.kill()
                consumer.wait()
        while served.call("/topics/mail")["finished"]:
            time.sleep(0.2)
        counters = served.call("/topics/mail")["counters"]
        return _judge(journal, messages, died, counters)


def _ended(counters: dict[str, int]) -> int:
    return counters["acked"] + counters["dead"]


def _send(served: Served, messages: int) -> None:
    for start in range(0, messages, 500):
        lines = [
            json.dumps({"task": "letter", "kwargs": {"n": n}, "key": f"n:{n}", "ttr": TTR})
            for n in range(start, min(start + 500, messages))
        ]
        served.call("/topics/mail/messages/batch", "\n".join(lines).encode())


def _judge(
    journal: Path, messages: int, died: dict[int, float], counters: dict[str, int]
) -> Report:
    """A second run of a message is right only when its first consumer was dead by then."""
    runs: dict[str, list[tuple[int, float]]] = {}
    for line in journal.read_text().splitlines():
        message_id, consumer, _attempt, at_ms = line.split()
        pid = int(consumer.partition(":")[2])
        runs.setdefault(message_id, []).append((pid, float(at_ms)))
    overlaps = 0
    for each in runs.values():
        each.sort(key=lambda one: one[1])
        for (pid, _), (_, next_ms) in pairwise(each):
            overlaps += died.get(pid, float("inf")) > next_ms
    count = Counter(map(len, runs.values()))
    total = sum(size * number for size, number in count.items())
    lost = messages - len(runs)
    return Report(messages, lost, overlaps, total, len(died), counters["acked"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--language", choices=("node", "go"), default="node")
    parser.add_argument("--messages", type=int, default=10_000)
    options = parser.parse_args()
    report = run(options.language, options.messages)
    sys.stdout.write(f"{report}\n")
    sys.exit(bool(report.lost or report.overlaps or report.archived != report.sent))
