"""The connections of the worker's threads: Django looks after those of requests, and knows none of
ours."""

from __future__ import annotations

import logging

from django.core.cache import caches
from django.db import close_old_connections, connections

logger = logging.getLogger("delayq.worker")


def make_caches() -> None:
    """At the start of a thread that runs tasks.

    Django keeps a thread's caches in its context, and each task has a context of its own: what is
    made in there would end with the task, connections and all.
    """
    for alias in caches:
        try:
            caches[alias]
        except Exception:  # whoever uses it will hear
            logger.debug("cache %r cannot be made", alias, exc_info=True)


def close_broken() -> None:
    """Between two pieces of work: drop what the server has closed meanwhile, or what is too old
    (CONN_MAX_AGE).

    A connection that cannot even be closed says nothing about the work that has been done.
    """
    try:
        close_old_connections()
    except Exception:
        logger.exception("a database connection could not be closed")


def close_all() -> None:
    """At the end of a thread. A connection that is only dropped stays open until the garbage is
    collected."""
    try:
        connections.close_all()
    except Exception:
        logger.exception("a database connection could not be closed")
