"""Which open transaction a message waits for, and a cancel or a reschedule."""

from __future__ import annotations

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from .conf import get_settings
from .exceptions import InvalidMessage


def awaited(database: str | None, after_commit: bool | None) -> str | None:
    """Alias of the open transaction to wait for, whatever its alias; None: act at once.

    If several are open, it is that of DELAYQ["DATABASE"]; a `database` that is named decides alone.
    Raises InvalidMessage when nobody can say which, or when one is open that Django does not
    manage.
    """
    settings = get_settings()
    if not (settings.after_commit if after_commit is None else after_commit):
        return None
    home = connections[database or settings.database]
    if database is None and len(connections.settings) > 1:
        return _of_several(home)
    if home.in_atomic_block:
        return home.alias
    _refuse_manual(home)
    return None


def awaited_by_durable(database: str | None) -> str | None:
    """The same for a durable message, whose row has to be part of that transaction. Raises
    InvalidMessage."""
    home, alias = get_settings().database, awaited(database, True)
    if alias not in (None, home):
        raise InvalidMessage(
            f"A durable message is a row of its transaction, and its table is in "
            f'DELAYQ["DATABASE"], {home!r}; the '
            f"transaction that is open is of {alias!r}. Open one with "
            f"transaction.atomic(using={home!r}), enqueue "
            "outside of both, or without durable=True."
        )
    return alias


def _of_several(home: BaseDatabaseWrapper) -> str | None:
    """The alias among all of the project. What a TestCase opens counts only if nothing else is
    open."""
    if home.in_atomic_block and not _of_a_test(home):
        return home.alias
    known = connections.all(initialized_only=True)
    in_atomic = [connection for connection in known if connection.in_atomic_block]
    in_atomic = [connection for connection in in_atomic if not _of_a_test(connection)] or in_atomic
    if home in in_atomic or len(in_atomic) == 1:
        return home.alias if home in in_atomic else in_atomic[0].alias
    if not in_atomic:
        for connection in known:
            _refuse_manual(connection)
        return None
    raise InvalidMessage(
        f"Transactions are open on {' and '.join(one.alias for one in in_atomic)}, and none on "
        f'DELAYQ["DATABASE"], '
        f"{home.alias!r}: say which one to wait for, with using(database=...), or send at once, "
        f"with "
        "using(after_commit=False)."
    )


def _of_a_test(connection: BaseDatabaseWrapper) -> bool:
    return all(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def _refuse_manual(connection: BaseDatabaseWrapper) -> None:
    """After set_autocommit(False) a rollback would not take back what was sent, and no hook tells
    of the commit."""
    if connection.connection is not None and not connection.autocommit:
        raise InvalidMessage(
            f"The connection {connection.alias!r} is in manual transaction management (autocommit "
            f"is off), where "
            "nobody can tell when it commits: use transaction.atomic(), or say after_commit=False "
            "to act at once."
        )
