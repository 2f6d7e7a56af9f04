"""Reports on the server: version, eviction policy, persistence, clock."""

from __future__ import annotations

import ssl
import time
from typing import Any, NamedTuple

import redis
from redis.sentinel import SentinelConnectionPool

from .redis_errors import ERRORS, translate
from .store import RedisStore

OLDEST_VERSION = (6, 2, 0)
#: The first version of each line of Redis without CVE-2025-49844, -46817, -46818 and -46819.
LUA_FLOORS = ((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2))
#: The same of Valkey.
VALKEY_LUA_FLOORS = ((7, 2, 11), (8, 0, 6), (8, 1, 4))
#: Seconds by which Redis' clock and this machine's may differ before we warn: absolute due times
#: suffer.
CLOCK_SKEW = 5.0


class ServerReport(NamedTuple):
    """The state of one primary. None: unknown, because CONFIG is forbidden."""

    name: str
    version: tuple[int, ...]
    eviction: str | None
    maxmemory: int
    aof: bool
    fsync: str | None
    skew_ms: float
    replicas: int = 0
    """How many are connected now."""
    min_replicas: int | None = None
    """min-replicas-to-write: with fewer replicas the server refuses writes."""
    sentinel: bool = False
    """Whether it was found through Sentinel."""
    connections: int = 0
    """How many clients are connected now."""
    most_connections: int | None = None
    """How many may be connected."""
    bits: int = 64
    """Those of its numbers. The scripts pack and write times, which do not fit into 32."""


def lua_holes(report: ServerReport) -> str:
    """The version that mends the known holes of the Lua engine, when this one has them; else
    empty."""
    floors = VALKEY_LUA_FLOORS if report.name.startswith("Valkey") else LUA_FLOORS
    floor = next((floor for floor in floors if floor[:2] >= report.version[:2]), None)
    if floor is None or report.version >= floor:
        return ""
    return ".".join(map(str, floor))


def skips_certificate(client: Any) -> bool:
    """Whether the connections to Redis use TLS without checking who answers."""
    pool = getattr(client, "connection_pool", None)
    options = pool.connection_kwargs if pool else client.nodes_manager.connection_kwargs
    uses_tls = options.get("ssl") or any(name.startswith("ssl_") for name in options)
    return bool(uses_tls) and options.get("ssl_cert_reqs") in ("none", ssl.CERT_NONE)


def inspect_server(store: RedisStore) -> list[ServerReport]:
    """One report per primary. Raises StoreUnavailable when one cannot be reached."""
    try:
        client = store.client.redis
        if not hasattr(client, "get_primaries"):
            return [_report(client)]
        nodes = [client.get_redis_connection(node) for node in client.get_primaries()]
        return [_report(node) for node in nodes]
    except ERRORS as error:
        raise translate(error, store.client.where) from error


def _report(client: Any) -> ServerReport:
    info = client.info()
    before = time.time()
    seconds, microseconds = client.time()
    after = time.time()
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    version = str(info.get("valkey_version") if name == "Valkey" else info["redis_version"])
    min_replicas = _config(client, "min-replicas-to-write") or ""
    most = info.get("maxclients") or _config(client, "maxclients")
    return ServerReport(
        name=f"{name} {version}",
        version=tuple(int(part) for part in str(info["redis_version"]).split(".")[:3]),
        eviction=_config(client, "maxmemory-policy") or info.get("maxmemory_policy"),
        maxmemory=int(info.get("maxmemory", 0)),
        aof=bool(info.get("aof_enabled")),
        fsync=_config(client, "appendfsync"),
        skew_ms=(seconds + microseconds / 1e6 - (before + after) / 2) * 1000,
        replicas=int(info.get("connected_slaves", 0)),
        min_replicas=int(min_replicas) if min_replicas.isdecimal() else None,
        sentinel=isinstance(client.connection_pool, SentinelConnectionPool),
        connections=int(info.get("connected_clients", 0)),
        most_connections=int(most) if most else None,
        bits=int(info.get("arch_bits", 64)),
    )


def _config(client: Any, name: str) -> str | None:
    try:
        values = client.config_get(name)
    except redis.ResponseError:
        return None
    value = next(iter(values.values()), None)
    return value.decode() if isinstance(value, bytes) else value
