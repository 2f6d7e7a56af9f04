"""How services reach the database of DELAYQ, which may be away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import Error, connections

from .conf import get_settings
from .exceptions import DatabaseUnavailable


@contextmanager
def reached() -> Iterator[None]:
    """Around one turn of a service: a connection that does not work any more is made anew, now or the next time.

    Raises DatabaseUnavailable in place of what the database raises.
    """
    connection = connections[get_settings().database]
    connection.close_if_unusable_or_obsolete()
    try:
        yield
    except Error as error:
        connection.close()
        raise DatabaseUnavailable(f"{type(error).__name__}: {error}".strip()) from error
