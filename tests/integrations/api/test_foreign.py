"""The consumers of docs/examples lose nothing when they are killed. `make foreign` runs more."""

from __future__ import annotations

import pytest

from tests.integrations.api.foreign import EXAMPLES, has, run


@pytest.mark.acceptance
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("language", ["node", "go"])
def test_a_consumer_in_another_language_loses_nothing_under_kill_9(language: str) -> None:
    if not has(language):
        pytest.skip(f"this machine has no {language}")
    report = run(language, 10_000)
    assert (report.lost, report.overlaps, report.archived) == (0, 0, 10_000)
    assert report.kills > 3


@pytest.mark.parametrize("name", ["consumer.mjs", "consumer.go"])
def test_a_consumer_is_short(name: str) -> None:
    text = EXAMPLES.joinpath(name).read_text()
    assert len([line for line in text.splitlines() if line.strip()]) <= 50
