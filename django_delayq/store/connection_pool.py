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
    """Connections to one address. Another server may have it later: behind a name or a proxy.

    An idle connection is taken and given back in few steps. What redis-py does beside that, for
    its own metrics, costs a lone enqueue a tenth of its time.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A provider changes the password of connections that come back: redis-py tells it of them.
        self._is_quick = kwargs.get("credential_provider") is None

    def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        """A connection on which nothing waits to be read."""
        self._checkpid()
        connection = None
        if self._is_quick:
            with self._lock:
                if self._available_connections:
                    connection = self._available_connections.pop()
                    self._in_use_connections.add(connection)
        if connection is None:
            return super().get_connection()
        try:
            if connection._sock is not None and not connection.can_read():
                return connection
        except (redis.RedisError, OSError):
            pass
        except BaseException:
            self.release(connection)
            raise
        connection.disconnect()  # the server has hung up, or was asked and not heard
        self.release(connection)
        return super().get_connection()

    def release(self, connection: Any) -> None:
        """Take a connection back."""
        self._checkpid()
        with self._lock:
            if (
                self._is_quick
                and connection in self._in_use_connections
                and connection.pid == self.pid
                and not is_marked(connection)
            ):
                self._in_use_connections.remove(connection)
                self._available_connections.append(connection)
                return
        super().release(connection)

    def suspect(self, timed_out: bool) -> None:
        """A call has failed. Idle connections may lead to a server that is down: they are made
        anew."""
        hang_up(self, in_use=False)


def is_marked(connection: Any) -> bool:
    """Whether the connection is to be made anew before it is used again."""
    mark = getattr(connection, "should_reconnect", None)  # redis-py 6 has none
    return mark is not None and bool(mark())


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
