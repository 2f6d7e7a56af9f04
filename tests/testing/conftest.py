"""The fixture as a project gets it, also where the plugin is not installed."""

from __future__ import annotations

import pytest

from pytest_delayq import delay_queue
from tests.app.tasks import seen

__all__ = ["delay_queue"]

#: A project of its own, which test_projects.py runs.
collect_ignore = ["first_day"]


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    """What the sample tasks have seen in other tests is forgotten."""
    seen.clear()
