"""The connections of the worker's threads. Django closes those of requests, but not these."""

from __future__ import annotations

import logging

from django.core.cache import caches
from django.db import close_old_connections, connections

logger = logging.getLogger("delayq.worker")


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


def close_broken() -> None:
    """Between two pieces of work, close the connections that the server has closed or that are too
    old (CONN_MAX_AGE).

    If a connection cannot be closed, that is logged: the work before it is done all the same.
    """
    try:
        close_old_connections()
    except Exception:
        logger.exception("a database connection could not be closed")


def close_all() -> None:
    """Close all connections at the end of a thread. Otherwise they stay open until the garbage is
    collected."""
    try:
        connections.close_all()
    except Exception:
        logger.exception("a database connection could not be closed")
