"""The benchmarks are programs that work. How fast anything is does not matter here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.benchmarks import page
from tests.benchmarks.peers import __main__ as peers
from tests.benchmarks.peers import catalogue, install, measure
from tests.benchmarks.peers.catalogue import OURS
from tests.servers import require

ROOT = Path(__file__).resolve().parent.parent
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two workloads with tiny counts, through the command line."""
    require("redis7")
    path = tmp_path_factory.mktemp("bench") / "results.json"
    arguments = [
        "enqueue",
        "burst",
        "--runs",
        "2",
        "--scale",
        "0.01",
        "--json",
        str(path),
        "--peers",
        "",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return path


@pytest.fixture(scope="module")
def content(results: Path) -> Any:
    return json.loads(results.read_text())


@pytest.mark.long
def test_results_name_the_machine_and_have_a_figure_a_ceiling_and_a_ratio(content: Any) -> None:
    assert content["machine"]["python"] and content["machine"]["date"]
    assert [one["workload"] for one in content["results"]] == ["enqueue", "burst"]
    for one in content["results"]:
        assert one["figure"] > 0 and one["ceiling"] > 0 and one["ratio"] > 0 and one["runs"] == 2


@pytest.mark.long
def test_no_burst_began_early(content: Any) -> None:
    assert content["results"][1]["early"] == 0


@pytest.mark.long
def test_the_page_has_tables_bars_and_a_chart(results: Path, tmp_path: Path) -> None:
    page.main([str(results), "--docs", str(tmp_path)])
    text = (tmp_path / "benchmarks.md").read_text()
    assert "## burst" in text and "| burst |" in text and "## Bars" in text
    assert "(images/burst.svg)" in text and (tmp_path / "images" / "burst.svg").exists()


@pytest.mark.long
def test_charts_can_be_read_aloud(content: Any) -> None:
    peer = {
        "workload": "burst",
        "peer": "other & co",
        "figure": 10.0,
        "ours": 90.0,
        "unit": "messages/s",
    }
    lateness = {"workload": "precision", "figure": 0.5, "p99_ms": 2.0, "unit": "ms p50"}
    growth = [
        {"workload": "growth", "waiting": n, "figure": 3.0, "p50_ms": 1.0, "p99_ms": 2.0}
        for n in (10, 1000)
    ]
    drawn = page.charts([*content["results"], peer, lateness, *growth])
    assert set(drawn) == {"burst.svg", "lateness.svg", "growth.svg"}
    for svg in drawn.values():
        root = ElementTree.fromstring(svg)
        assert root.findtext(f"{SVG}title") and root.findtext(f"{SVG}desc")


@pytest.mark.long
def test_ours_runs_as_the_peers_do() -> None:
    require("redis7")
    assert measure.enqueue(OURS, 0.01).figure > 0


def test_a_peer_that_cannot_be_installed_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(catalogue, "PEERS", tmp_path)
    monkeypatch.setattr(install.shutil, "which", lambda name: None)
    assert peers.main(["burst", "bullmq"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "burst [bullmq]: node is missing"


def test_an_unknown_workload_is_refused() -> None:
    command = [sys.executable, "-m", "tests.benchmarks", "fastest"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "no workload 'fastest'" in done.stderr
