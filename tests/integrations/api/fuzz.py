"""Fuzzes the API by its own OpenAPI document: `python -m tests.integrations.api.fuzz --seconds
600`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import schemathesis

from tests.integrations.api.served import serving

ROOT = Path(__file__).resolve().parents[3]
#: A value can fit the schema and still be refused, with 422: two fields that contradict each other,
#: a UUID of another variant, a date that is past.
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "413", "422", "429"]
[checks.negative_data_rejection]
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "411", "413", "415", "422", "429"]
"""


@schemathesis.serializer("application/x-ndjson")
def in_lines(context: Any, value: Any) -> bytes:
    """A batch; what is no list is no batch."""
    lines = value if isinstance(value, list) else [value]
    return b"\n".join(json.dumps(line).encode() for line in lines)


def fuzz(seconds: int, seed: int | None = None) -> int:
    """Run schemathesis with all its checks. Returns its exit code."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as served:
        for n in range(20):
            served.call("/topics/mail/messages", {"args": [n], "key": f"key:{n}"})
        config = Path(folder, "schemathesis.toml")
        config.write_text(CONFIG)
        command = ["schemathesis.cli", f"--config-file={config}", "run"]
        command += [f"{served.url}/openapi.json", f"--max-time={seconds}", "--checks=all"]
        command += ["--header", f"Authorization: Bearer {served.token}", "--request-timeout=40"]
        command += ["--max-response-time=40"]  # a long poll waits for 20 s
        command += ["--workers=1", "--suppress-health-check=all", "--continue-on-failure"]
        command += [f"--seed={seed}"] if seed is not None else []
        environment = os.environ | {"SCHEMATHESIS_HOOKS": __spec__.name, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [sys.executable, "-m", *command], check=False, cwd=folder, env=environment
        ).returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    sys.exit(fuzz(options.seconds, options.seed))
