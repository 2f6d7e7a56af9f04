"""The files of docs/deployment fit the command that they start."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from django_delayq.management.commands.run_delayq import Command

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "deployment"


def parsed(words: list[str]) -> dict[str, Any]:
    """The options of `... manage.py run_delayq ...`."""
    at = words.index("run_delayq")
    assert words[at - 1] == "manage.py"
    return vars(Command().create_parser("manage.py", "run_delayq").parse_args(words[at + 1 :]))


def test_systemd_waits_longer_than_the_worker_does() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(FOLDER / "delayq.service")
    service = unit["Service"]
    options = parsed(shlex.split(service["ExecStart"]))
    assert options["shutdown_timeout"] + 5 < int(service["TimeoutStopSec"])
    # The parent passes the signal on: if systemd did, each process would get two, and stop at once.
    assert service["KillMode"] == "mixed"


def test_the_image_gives_signals_to_the_worker() -> None:
    words = re.findall(r"^CMD (\[.*\])", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    assert parsed(yaml.safe_load(words[0]))["health_port"] == 8001  # a list: no shell in between


@pytest.mark.parametrize("name", ["worker", "archiver"])
def test_compose_waits_longer_than_the_worker_does(name: str) -> None:
    service = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"][name]
    options = parsed(service["command"])
    assert (options["archiver"], options["no_archiver"]) == (name == "archiver", name == "worker")
    if name == "worker":
        assert options["shutdown_timeout"] + 5 < int(service["stop_grace_period"].rstrip("s"))
        assert f":{options['health_port']}/healthz" in service["healthcheck"]["test"][-1]


def test_redis_of_compose_keeps_messages() -> None:
    command = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["redis"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--maxmemory-policy"] == "noeviction"
    assert options["--appendonly"] == "yes"


@pytest.mark.parametrize("name", ["delayq-worker", "delayq-archiver"])
def test_kubernetes_waits_longer_than_the_worker_does(name: str) -> None:
    documents = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
    (deployment,) = (
        d for d in documents if d["kind"] == "Deployment" and d["metadata"]["name"] == name
    )
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    options = parsed(container["command"])
    if name == "delayq-worker":
        assert options["shutdown_timeout"] + 5 < pod["spec"]["terminationGracePeriodSeconds"]
        assert options["health_port"] == container["ports"][0]["containerPort"]
        probed = {
            container[f"{probe}Probe"]["httpGet"]["path"]
            for probe in ("startup", "liveness", "readiness")
        }
        assert probed == {"/healthz", "/readyz"}
    budgets = [d for d in documents if d["kind"] == "PodDisruptionBudget"]
    labels = pod["metadata"]["labels"]
    assert labels in [budget["spec"]["selector"]["matchLabels"] for budget in budgets]
