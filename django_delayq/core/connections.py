"""The connections of the worker's threads. Django closes those of requests, but not these."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence

from django.core.cache import caches
from django.db import close_old_connections, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

logger = logging.getLogger("delayq.worker")


class _OfThread(threading.local):
    noted = False
    """Whether the thread has called note_connections()."""
    known: Sequence[BaseDatabaseWrapper] | None = None
    """The connections that Django has for this thread; None: ask Django."""


_of_thread = _OfThread()


def note_connections() -> None:
    """At the start of a thread, make its connections, not connected, for renew_all(). To ask Django
    for them after each message takes a twentieth of a task with one UPDATE.

    The signal alone would not do: a connection that fails while it connects sends none, and would
    never be renewed. It is for aliases that the project adds or removes later.
    """
    for alias in connections:
        try:
            connections[alias]
        except Exception:  # the task that uses it gets the error
            logger.debug("connection %r cannot be made", alias, exc_info=True)
    _of_thread.noted = True
    connection_created.connect(_ask_again, dispatch_uid="delayq")


def _ask_again(**_: object) -> None:
    # Not noted itself: it may be one that a task has made for itself, as by connection.copy().
    _of_thread.known = None


def make_caches() -> None:
    """Make the caches at the start of a thread that runs tasks.

    Django keeps a thread's caches in its context, and each task has a context of its own. A cache
    that is made there ends with the task, and its connections too.
    """
    for alias in caches:
        try:
            caches[alias]
        except Exception:  # the task that uses it gets the error
            logger.debug("cache %r cannot be made", alias, exc_info=True)


def renew_all() -> bool:
    """Between two pieces of work that follow each other: renew() for the connections of this
    thread. Where they are noted, undo what the work has not committed. Returns whether the work has
    left an atomic block open. Never raises."""
    is_left_open = False
    try:
        known = _known()
        if _of_thread.noted:
            is_left_open = _undo_left_open(known)
        for connection in known:
            renew(connection)
    except Exception:
        logger.exception("a database connection could not be closed")
    return is_left_open


def open_blocks() -> Mapping[str, Sequence[object]]:
    """The atomic blocks that this thread has begun and not ended, by alias."""
    return {
        connection.alias: list(connection.atomic_blocks)
        for connection in _known()
        if connection.atomic_blocks
    }


def _known() -> Sequence[BaseDatabaseWrapper]:
    known = _of_thread.known
    if known is None:
        known = connections.all(initialized_only=True)
        _of_thread.known = known if _of_thread.noted else None
    return known


def check_shared() -> None:
    """On the thread that coroutines share for their queries, between two of these: close what does
    not work, or is too old, and undo what was left open. Never raises."""
    try:
        _undo_left_open(connections.all(initialized_only=True))
    except Exception:
        logger.exception("a database connection could not be closed")
    close_broken()


def _undo_left_open(known: Sequence[BaseDatabaseWrapper]) -> bool:
    """Returns whether there was an atomic block."""
    was_in_block = False
    for connection in known:
        if _is_left_open(connection):
            was_in_block = was_in_block or connection.in_atomic_block
            _undo(connection)
    return was_in_block


def _is_left_open(connection: BaseDatabaseWrapper) -> bool:
    return connection.in_atomic_block or (
        connection.connection is not None
        and connection.autocommit != connection.settings_dict["AUTOCOMMIT"]
    )


def _undo(connection: BaseDatabaseWrapper) -> None:
    """A task has left a transaction open, or has switched autocommit off. What the next tasks of
    this thread write would be part of it, and never be committed."""
    alias = connection.alias
    logger.error(
        "a task has left a transaction open, or autocommit off, on the connection %r: what was not "
        "committed is undone",
        alias,
    )
    try:
        connection.close()
    except Exception:  # of PyMySQL, when the task has closed its connection below Django's
        logger.exception("a database connection could not be closed")
    # Django would keep it, closed, until the block of the transaction ends. It never does.
    del connections[alias]
    _of_thread.known = None
    connections[alias]


def renew(connection: BaseDatabaseWrapper) -> None:
    """Close a connection that does not work any more, or that is older than CONN_MAX_AGE and a
    second.

    With the usual CONN_MAX_AGE of 0 who works all the time would connect for each message, or each
    batch of the archive: a task with one UPDATE takes eight times as long on PostgreSQL.
    """
    too_old = connection.close_at is not None and time.monotonic() > connection.close_at + 1
    if too_old or connection.errors_occurred:
        connection.close_if_unusable_or_obsolete()


def close_broken() -> None:
    """Before and after a wait, close the connections that the server has closed or that are too
    old (CONN_MAX_AGE).

    If a connection cannot be closed, that is logged: the work before it is done all the same.
    """
    try:
        close_old_connections()
    except Exception:
        logger.exception("a database connection could not be closed")


def close_before_fork() -> None:
    """Close all connections of this thread, and the pools: a child would use the same sockets."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if close_pool := getattr(connection, "close_pool", None):  # PostgreSQL, Django 5.1
            close_pool()


def close_all() -> None:
    """Close all connections at the end of a thread. Otherwise they stay open until the garbage is
    collected."""
    try:
        connections.close_all()
    except Exception:
        logger.exception("a database connection could not be closed")
