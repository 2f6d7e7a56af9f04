"""Connections to a server: how many there may be, and when they are not to be trusted any more."""

from __future__ import annotations

import socket
import weakref
from contextlib import suppress
from typing import Any

import redis

#: redis-py 8 refuses the 101st connection. We need one for each thread, and a few more for each
#: that sends in bulk: that bounds them, and a refusal would send messages into the outbox although
#: Redis is well.
MOST_CONNECTIONS = 2**31


#: Connections that are in use and wait for no answer: subscriptions.
LISTENING: weakref.WeakSet[Any] = weakref.WeakSet()


class ConnectionPool(redis.ConnectionPool):
    """Connections to one server, which may be another tomorrow: behind a name or a proxy."""

    def suspect(self, timed_out: bool) -> None:
        """A call has failed: what is idle may lead to a server that is out, and is connected
        anew."""
        hang_up(self, in_use=False)


def hang_up(pool: Any, *, in_use: bool = True) -> None:
    """Use none of these connections any more. With `in_use` whoever waits for an answer gets an
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
                # Only the socket: its thread is reading, and takes the rest apart. Past ssl's own
                # shutdown, which would do that here.
                with suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
