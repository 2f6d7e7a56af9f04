"""Watches which nodes of a Cluster are primaries while calls wait for them.

A node that stands still answers nobody, and redis-py waits for it until the socket times out,
although a replica has taken over long before. Nobody tells a Cluster's clients; so while calls
wait, other nodes are asked.
"""

from __future__ import annotations

import os
import random
import threading
import weakref
from contextlib import suppress
from typing import Any

from redis.cluster import RedisCluster

from .connection_pool import LISTENING, hang_up
from .redis_errors import ERRORS

Address = tuple[str, int]

#: Seconds between two checks. A call that still waits at the second check waits for longer than it
#: should.
INTERVAL = 0.25
#: Most seconds to wait for the node that is asked.
TIMEOUT = 0.5
#: Nodes that must agree: a single node may lag behind.
ANSWERS = 2


class Watch:
    """A thread in each process that has connections. It sends nothing while no call waits."""

    def __init__(self) -> None:
        self._client: weakref.ref[RedisCluster] | None = None
        self._runs_in = 0
        """The process whose thread runs: a fork inherits none."""
        self._closed = threading.Event()
        self._asking: dict[str, Any] = {}
        """Node -> a client with short timeouts, on connections that nothing else uses."""

    def watch(self, client: RedisCluster) -> None:
        """Watch this client's nodes."""
        client.delayq_watch = self  # type: ignore[attr-defined]
        self._client = weakref.ref(client)

    def begin(self, connection: Any = None) -> None:
        """A connection is being made: check from now on."""
        if self._runs_in == os.getpid() or self._closed.is_set():
            return
        self._runs_in = os.getpid()
        with suppress(RuntimeError):  # no threads here: then a call waits for its timeout
            threading.Thread(target=self._run, name="delayq-cluster", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _run(self) -> None:
        waited: set[int] = set()
        while not self._closed.wait(INTERVAL) and self._runs_in == os.getpid():
            if self._client is None:
                continue  # it is being made
            client = self._client()
            if client is None:
                return
            waiting = _waiting(client)
            slow = {name for name, connections in waiting.items() if connections & waited}
            waited = set().union(*waiting.values())
            if slow:
                with suppress(*ERRORS, OSError):
                    self._check_slow(client, slow)
            del client
        for asking in self._asking.values():
            asking.close()

    def _check_slow(self, client: RedisCluster, slow: set[str]) -> None:
        """Ask other nodes whether the nodes that calls wait for are primaries still; leave those
        that are not."""
        nodes = client.nodes_manager
        others = [node for node in list(nodes.nodes_cache.values()) if node.name not in slow]
        others = others or list(nodes.nodes_cache.values())
        random.shuffle(others)
        ours = {node.name for node in client.get_primaries()} & slow
        answers: list[set[str]] = []
        for node in others:
            with suppress(*ERRORS, OSError):
                answers.append(self._primaries(client, node))
            if len(answers) == ANSWERS:
                break
        gone = {
            name for name in ours if answers and all(name not in primaries for primaries in answers)
        }
        for name in gone:
            left = nodes.nodes_cache.get(name)
            if left is not None and left.redis_connection is not None:
                hang_up(left.redis_connection.connection_pool)
        if gone:
            _refresh(nodes, gone)

    def _primaries(self, client: RedisCluster, node: Any) -> set[str]:
        """The primaries, as the node sees them."""
        asking = self._asking.get(node.name)
        if asking is None:
            kwargs = dict(client.nodes_manager.connection_kwargs)
            kwargs.pop("redis_connect_func", None)
            kwargs |= {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}
            asking = self._asking[node.name] = client.nodes_manager.create_redis_node(
                node.host, node.port, **kwargs
            )
        remap = client.nodes_manager.remap_host_port
        answer = asking.execute_command("CLUSTER SLOTS")
        addresses = [
            (_text(primary[0]) or node.host, int(primary[1])) for _, _, primary, *_ in answer
        ]
        return {"{}:{}".format(*remap(*address)) for address in addresses}


def _refresh(nodes: Any, gone: set[str]) -> None:
    """Learn the nodes anew, but not from those."""
    try:
        nodes.initialize(last_failed_node_name=next(iter(gone)))
    except TypeError:  # redis-py 6 and 7
        for name in gone:
            nodes.startup_nodes.pop(name, None)
        nodes.initialize()


def _waiting(client: RedisCluster) -> dict[str, set[int]]:
    """Node -> its connections that wait for an answer."""
    found: dict[str, set[int]] = {}
    for node in list(client.nodes_manager.nodes_cache.values()):
        pool = node.redis_connection and node.redis_connection.connection_pool
        if pool is not None:
            found[node.name] = {
                id(connection)
                for connection in list(pool._in_use_connections)
                if connection not in LISTENING
            }
    return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
