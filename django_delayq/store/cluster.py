"""Watches which nodes of a Cluster are primaries while calls wait for them.

redis-py waits for a node that stands still until the socket times out, although a replica has taken
over long before. Nobody tells the clients of a Cluster. So while calls wait, we ask other nodes.
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
        """redis-py makes a connection: check from now on."""
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
                continue  # redis-py is still making the client
            client = self._client()
            if client is None:
                return
            # Node -> its connections that wait for an answer.
            waiting = {
                node.name: {
                    id(connection)
                    for connection in list(
                        node.redis_connection.connection_pool._in_use_connections
                    )
                    if connection not in LISTENING
                }
                for node in list(client.nodes_manager.nodes_cache.values())
                if node.redis_connection is not None
            }
            slow = {name for name, connections in waiting.items() if connections & waited}
            waited = set().union(*waiting.values())
            if slow:
                with suppress(*ERRORS, OSError):
                    self._check_slow(client, slow)
            del client
        for asking in self._asking.values():
            asking.close()

    def _check_slow(self, client: RedisCluster, slow: set[str]) -> None:
        """Ask other nodes whether the nodes that calls wait for are still primaries. Hang up on
        those that are not."""
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
            # Learn the nodes anew, but not from those that are gone.
            try:
                nodes.initialize(last_failed_node_name=next(iter(gone)))
            except TypeError:  # redis-py 6 and 7
                for name in gone:
                    nodes.startup_nodes.pop(name, None)
                nodes.initialize()

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
        primaries = set()
        for _, _, (host, port, *_), *_ in asking.execute_command("CLUSTER SLOTS"):
            name = host.decode() if isinstance(host, bytes) else str(host or "")
            address = client.nodes_manager.remap_host_port(name or node.host, int(port))
            primaries.add("{}:{}".format(*address))
        return primaries
