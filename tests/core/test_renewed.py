"""Connections of threads that work all the time are kept for a second beyond CONN_MAX_AGE."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from unittest import mock

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, transaction
from django.db import connections as of_django
from django.db.backends.base.base import BaseDatabaseWrapper

from django_delayq.core import connections
from django_delayq.core.connections import check_shared, note_connections, renew, renew_all
from tests.app.models import Counter
from tests.hands import together


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


@pytest.fixture
def renewed(monkeypatch: pytest.MonkeyPatch) -> list[BaseDatabaseWrapper]:
    """What was renewed, instead of that."""
    seen: list[BaseDatabaseWrapper] = []
    monkeypatch.setattr(connections, "renew", seen.append)
    return seen


@pytest.mark.django_db
@pytest.mark.parametrize("noted", [True, False])
def test_a_thread_renews_the_connections_that_it_has_made(
    renewed: list[BaseDatabaseWrapper], noted: bool
) -> None:
    def work() -> None:
        if noted:
            note_connections()
        mine = of_django["default"]
        try:
            mine.connect()
            mine.close()
            mine.connect()
            renewed.clear()
            renew_all()
            assert renewed.count(mine) == 1
        finally:
            mine.close()

    together(work)


@pytest.mark.django_db
def test_a_connection_that_fails_while_it_connects_is_renewed(
    monkeypatch: pytest.MonkeyPatch, renewed: list[BaseDatabaseWrapper]
) -> None:
    """Django keeps it, and each message that follows on the thread would fail."""
    ended = mock.Mock(side_effect=OperationalError("the server has ended it"))
    monkeypatch.setattr(of_django["default"].__class__, "init_connection_state", ended)

    def work() -> None:
        note_connections()
        renew_all()
        with pytest.raises(OperationalError):
            of_django["default"].ensure_connection()
        renewed.clear()
        renew_all()
        assert of_django["default"] in renewed

    together(work)


@pytest.mark.django_db
def test_a_connection_that_a_task_has_made_for_itself_is_left_to_it() -> None:
    """It is not renewed, and not kept: with one for each message the server would soon have no
    more."""
    own: list[weakref.ref[BaseDatabaseWrapper]] = []

    def task() -> None:
        connection = of_django["default"].copy()
        connection.connect()
        connection.close()
        own.append(weakref.ref(connection))

    def work() -> None:
        note_connections()
        task()
        renew_all()
        gc.collect()
        assert own[0]() is None

    together(work)


@pytest.mark.django_db
def test_a_connection_of_an_alias_that_came_later_is_renewed(
    renewed: list[BaseDatabaseWrapper],
) -> None:
    def work() -> None:
        note_connections()
        renew_all()
        of_django.settings["tenant"] = of_django["default"].settings_dict
        try:
            of_django["tenant"].connect()
            renew_all()
            assert of_django["tenant"] in renewed
        finally:
            of_django["tenant"].close()
            del of_django["tenant"], of_django.settings["tenant"]

    together(work)


def test_a_thread_asks_django_once_for_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = mock.MagicMock()
    monkeypatch.setattr(connections, "connections", asked)

    def work() -> None:
        note_connections()
        for _ in range(3):
            renew_all()

    together(work)
    assert asked.all.call_count == 1


def test_an_alias_whose_connection_cannot_be_made_harms_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = mock.MagicMock()
    broken.__iter__.return_value = ["default", "broken"]
    broken.__getitem__.side_effect = ImproperlyConfigured("no driver")
    monkeypatch.setattr(connections, "connections", broken)
    together(note_connections)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("between", [renew_all, check_shared])
@pytest.mark.parametrize(
    "leave_open",
    [
        lambda: transaction.atomic().__enter__(),
        lambda: transaction.set_autocommit(False),
    ],
    ids=["atomic", "autocommit"],
)
def test_a_transaction_that_a_task_leaves_open_is_undone(
    caplog: pytest.LogCaptureFixture,
    leave_open: Callable[[], None],
    between: Callable[[], None],
    closed: bool,
) -> None:
    """Otherwise the next tasks of the thread would write into it, and nobody would commit that."""

    def work() -> None:
        note_connections()
        leave_open()
        Counter.objects.create(name="left open")
        if closed:
            of_django["default"].close()
        between()
        with transaction.atomic(durable=True):
            Counter.objects.create(name="of the next task")
        between()

    together(work)
    assert [counter.name for counter in Counter.objects.all()] == ["of the next task"]
    assert closed or "left a transaction open" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_block_that_is_left_open_is_told_when_its_connection_cannot_be_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise the message would be acked, and what the task wrote be undone."""
    told: list[bool] = []

    def work() -> None:
        note_connections()
        transaction.atomic().__enter__()
        left = of_django["default"]
        with mock.patch.object(left, "close", side_effect=OperationalError("Already closed")):
            told.append(renew_all())
        left.connection.close()
        assert of_django["default"] is not left

    together(work)
    assert told == [True]
    assert "a database connection could not be closed" in caplog.text
