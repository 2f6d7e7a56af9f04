"""The dashboard and the alert rules of docs/monitoring name metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from shutil import which

import pytest

from django_delayq.integrations.prometheus import METRICS, WorkerMetrics
from tests.app.tasks import record
from tests.hands import Hands

FILES = Path(__file__).resolve().parents[2] / "docs" / "monitoring"
#: What a histogram is called in queries.
SERIES = {
    series
    for name, metric in METRICS.items()
    for series in (
        [f"{name}_bucket", f"{name}_sum", f"{name}_count"] if metric.kind == "histogram" else [name]
    )
}
LABELS = {"topic", "state", "task", "result", "le"}


def named(text: str) -> set[str]:
    return set(re.findall(r"\bdelayq_\w+", text))


def test_the_alert_rules_name_metrics_that_exist() -> None:
    text = (FILES / "alerts.yml").read_text()
    assert len(named(text)) >= 8
    assert named(text) <= SERIES


def test_the_dashboard_names_metrics_that_exist() -> None:
    board = json.loads((FILES / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [each["query"] for each in board["templating"]["list"]]
    assert len(queries) >= 12
    assert len(named(" ".join(queries))) >= 10
    assert named(" ".join(queries)) <= SERIES


def test_the_how_to_names_all_metrics_and_no_others() -> None:
    text = (FILES.parent / "how-to" / "prometheus.md").read_text()
    assert named(text) - SERIES == {"delayq_lateness_seconds", "delayq_run_seconds"}
    assert set(METRICS) <= named(text)


def test_queries_group_by_labels_that_exist() -> None:
    texts = [(FILES / name).read_text() for name in ("alerts.yml", "grafana.json")]
    groups = re.findall(r"\b(?:by|on) \(([\w, ]+)\)", " ".join(texts))
    assert groups and {label for group in groups for label in group.split(", ")} <= LABELS


def test_what_the_queue_knows_is_never_added_up_over_workers() -> None:
    """Each worker reports it: a sum would count it once for each."""
    shared = {name for name in METRICS if not re.search("_runs_|lateness|_run_", name)}
    rules = re.findall(
        r"expr: ?\|?\s*(.+?)\n\s+(?:for|labels)", (FILES / "alerts.yml").read_text(), re.S
    )
    board = json.loads((FILES / "grafana.json").read_text())
    rules += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(rules) >= 20
    for rule in rules:
        for name in named(rule) & shared:
            assert re.search(
                rf"(max|min)( by \([\w, ]+\) )?\((rate\(|increase\()?{name}|absent\({name}", rule
            ), rule


def promtool(*arguments: str, text: bytes = b"") -> None:
    """Fails with what promtool says."""
    if (program := which("promtool")) is None:
        pytest.skip("promtool is not here (apt-get install prometheus)")
    done = subprocess.run([program, *arguments], input=text, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", str(FILES / "alerts.yml"))


@pytest.mark.django_db(transaction=True)
def test_promtool_accepts_the_page(hands: Hands) -> None:
    worker = WorkerMetrics(1, has_database=True)
    with worker.counting(0):
        record.enqueue(1)
        hands.work()
        ours = worker.page().partition(b"# HELP python_")[0]
    assert b"delayq_run_seconds_bucket" in ours
    promtool("check", "metrics", text=ours)
