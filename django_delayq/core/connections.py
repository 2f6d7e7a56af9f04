"""The connections of the worker's threads. Django closes those of requests, but not these."""

from __future__ import annotations

import logging
import threading
import time

from django.core.cache import caches
from django.db import close_old_connections, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

logger = logging.getLogger("delayq.worker")


class _Made(threading.local):
    connections: list[BaseDatabaseWrapper] | None = None
    """Those that this thread has made; None where nobody notes them."""


_made = _Made()


def note_connections() -> None:
    """At the start of a thread, note the connections that it makes, for renew_all(). To ask Django
    for them after each message takes a twentieth of a task with one UPDATE."""
    _made.connections = []
    connection_created.connect(_note, dispatch_uid="delayq")


def _note(connection: BaseDatabaseWrapper, **_: object) -> None:
    if _made.connections is not None and connection not in _made.connections:
        _made.connections.append(connection)


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


def renew_all() -> None:
    """Between two pieces of work that follow each other: renew() for the connections of this
    thread. Never raises."""
    try:
        made = _made.connections
        for connection in connections.all(initialized_only=True) if made is None else made:
            renew(connection)
    except Exception:
        logger.exception("a database connection could not be closed")


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
