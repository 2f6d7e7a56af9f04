"""Connections of threads that work all the time are kept for a second beyond CONN_MAX_AGE."""

from __future__ import annotations

import time
from unittest import mock

import pytest

from django_delayq.core.connections import renew


@pytest.mark.parametrize(
    ("age", "errors", "closed"),
    [(0.5, False, False), (1.5, False, True), (None, False, False), (0.5, True, True)],
    ids=["young", "old", "without a limit", "after an error"],
)
def test_a_connection_is_looked_at_when_it_is_old_or_has_failed(
    age: float | None, errors: bool, closed: bool
) -> None:
    connection = mock.Mock(
        errors_occurred=errors, close_at=None if age is None else time.monotonic() - age
    )
    renew(connection)
    assert connection.close_if_unusable_or_obsolete.called is closed
