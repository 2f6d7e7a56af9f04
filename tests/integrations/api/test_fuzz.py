"""A short run of the fuzzer; `make fuzz` runs for ten minutes."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.acceptance
@pytest.mark.long
@pytest.mark.timeout(300)
def test_schemathesis_finds_nothing() -> None:
    # A process of its own: the library changes how Python parses source, which other tests do.
    command = [sys.executable, "-m", "tests.integrations.api.fuzz", "--seconds=60", "--seed=1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5_000:]
