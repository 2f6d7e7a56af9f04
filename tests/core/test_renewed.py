"""Connections of threads that work all the time are kept for a second beyond CONN_MAX_AGE."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from unittest import mock

import pytest
from django.db import connections as of_django

from django_delayq.core import connections
from django_delayq.core.connections import note_connections, renew, renew_all


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


def in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.django_db
@pytest.mark.parametrize("noted", [True, False])
def test_a_thread_renews_the_connections_that_it_has_made(
    monkeypatch: pytest.MonkeyPatch, noted: bool
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(connections, "renew", seen.append)

    def work() -> None:
        if noted:
            note_connections()
        renew_all()
        assert seen == []
        mine = of_django["default"]
        try:
            mine.connect()
            mine.connect()  # as after a close
            renew_all()
            assert seen == [mine]
        finally:
            mine.close()
        seen.append("the end")

    in_thread(work)
    assert seen[-1] == "the end"


def test_a_thread_that_notes_its_connections_does_not_ask_django_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = mock.Mock()
    monkeypatch.setattr(connections, "connections", asked)

    def work() -> None:
        note_connections()
        renew_all()

    in_thread(work)
    assert not asked.all.called
