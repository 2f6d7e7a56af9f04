"""A short run of the fuzzer; `make fuzz` runs for ten minutes."""

from __future__ import annotations

import pytest

from tests.integrations.api.fuzz import fuzz


@pytest.mark.acceptance
@pytest.mark.long
@pytest.mark.timeout(300)
def test_schemathesis_finds_nothing() -> None:
    assert fuzz(seconds=30, seed=1) == 0
