"""Connections to a server: how many there may be, and when they are dropped."""

from __future__ import annotations

import socket
import weakref
from contextlib import suppress
from typing import Any

import redis

#: redis-py 8 refuses the 101st connection by default. We need one for each thread, and a few more
#: for each thread that sends in bulk, so their number is bounded. A refusal would send messages to
#: the outbox although Redis is well.
MOST_CONNECTIONS = 2**31


#: Connections that are in use and wait for no answer: subscriptions.
LISTENING: weakref.WeakSet[Any] = weakref.WeakSet()


class ConnectionPool(redis.ConnectionPool):
    """Connections to one address. Another server may have it later: behind a name or a proxy."""

    def suspect(self, timed_out: bool) -> None:
        """A call has failed. Idle connections may lead to a server that is down: they are made
        anew."""
        hang_up(self, in_use=False)


def hang_up(pool: Any, *, in_use: bool = True) -> None:
    """Use none of these connections any more. With `in_use`, calls that wait for an answer get an
    error at once."""
    with pool._lock:  # redis-py 6 has one that cannot be taken twice, so not pool.disconnect()
        for connection in pool._available_connections:
            connection.disconnect()
        for connection in list(pool._in_use_connections):
            mark = getattr(connection, "mark_for_reconnect", None)  # redis-py 6 has none
            if mark is not None:
                mark()
            sock = connection._sock
            if in_use and sock is not None:
                # Only the socket: the thread that reads from it closes the rest. Not ssl's own
                # shutdown, which would close the rest here.
                with suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
