"""Builds the Redis client that DELAYQ["REDIS"] names: single, Sentinel or Cluster."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import redis
from django.conf import settings as django_settings
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool, SentinelManagedSSLConnection

from ..core.conf import Settings
from ..core.exceptions import ConfigurationError
from .connection_pool import MOST_CONNECTIONS, ConnectionPool, hang_up
from .redis_errors import ERRORS, translate

SCHEMES = (
    "redis",
    "rediss",
    "unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)
_ADDRESS = {
    "host",
    "port",
    "path",
    "db",
    "username",
    "password",
    "credential_provider",
    "client_name",
}
#: Caches whose clear() is FLUSHDB.
CACHES_ON_REDIS = ("django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache")
#: The user and the password of a URL, also of one that is not written rightly.
_PASSWORD = re.compile(r"(://[^:@]*):(.*)@")
RedisPy = Any  # redis.Redis or RedisCluster: they share commands, not a base class


def open_client(settings: Settings) -> RedisPy:
    """A client that never retries by itself: a script that runs twice unseen can run a message
    twice.

    Raises ConfigurationError when REDIS is missing or not understood. Does not touch the network,
    except for Cluster: StoreUnavailable when no node answers.
    """
    where = settings.redis
    if not where:
        raise ConfigurationError(
            'DELAYQ["REDIS"] is missing. Name an entry of CACHES that uses django-redis, or give a '
            "URL such as "
            '"redis://127.0.0.1:6379/0".'
        )
    if "://" not in where:
        return _from_cache_alias(where, settings)
    scheme = where.split("://", 1)[0]
    if scheme not in SCHEMES:
        raise ConfigurationError(
            f'DELAYQ["REDIS"] is {mask(where)!r}: use one of {", ".join(SCHEMES)}.'
        )
    try:
        if scheme.endswith("+sentinel"):
            return _from_sentinel(where, settings)
        if scheme.endswith("+cluster"):
            return _from_cluster(where, settings)
        database = unquote(urlsplit(where).path).strip("/")
        # redis-py takes database 0 for a name that is no number.
        if scheme != "unix" and database and not database.isdecimal():
            raise ValueError(f"{database!r} is not the number of a database")
        return redis.Redis.from_pool(
            ConnectionPool.from_url(where, **_options(settings, tcp=scheme != "unix"))
        )
    except ValueError as error:
        problem = _fault_of(where, error)
        raise ConfigurationError(f'DELAYQ["REDIS"] is {mask(where)!r}: {problem}.') from None


def _fault_of(where: str, error: ValueError) -> str:
    """What is wrong with a URL. The error itself may show a part of the password, which it takes
    for the rest of the URL."""
    found = _PASSWORD.search(where)
    if found and re.search(r"[/?#\[\]]|[^!-~]", found[2]):
        return "write the special characters of its password as %2F, %23 and so on"
    return str(error)


def _options(settings: Settings, *, tcp: bool = True) -> dict[str, Any]:
    options = {
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": settings.connect_timeout,
        "socket_timeout": settings.socket_timeout,
        "decode_responses": False,
        "protocol": 2,
        "max_connections": MOST_CONNECTIONS,
    }
    return options | {"socket_keepalive": True} if tcp else options


def _from_cache_alias(alias: str, settings: Settings) -> RedisPy:
    if alias not in django_settings.CACHES:
        raise ConfigurationError(
            f'DELAYQ["REDIS"] is {alias!r}: neither a URL nor an entry of CACHES.'
        )
    from django_redis import get_redis_connection

    try:
        pool = get_redis_connection(alias).connection_pool
    except (NotImplementedError, AttributeError):
        raise ConfigurationError(f"CACHES[{alias!r}] is not a django-redis cache.") from None
    # A pool of our own with the cache's address and credentials: the cache's pool may retry and
    # decode, ours must not.
    address = {
        k: v for k, v in pool.connection_kwargs.items() if k in _ADDRESS or k.startswith("ssl_")
    }
    tcp = not issubclass(pool.connection_class, redis.UnixDomainSocketConnection)
    if isinstance(pool, SentinelConnectionPool):
        from .sentinel import PrimaryPool, Sentinels

        ssl = issubclass(pool.connection_class, SentinelManagedSSLConnection)
        options = _options(settings)
        theirs = [
            sentinel.connection_pool.connection_kwargs
            for sentinel in pool.sentinel_manager.sentinels
        ]
        access = {
            k: v
            for k, v in theirs[0].items()
            if k in _ADDRESS - {"host", "port"} or k.startswith("ssl_")
        }
        addresses = [(str(kwargs["host"]), int(kwargs["port"])) for kwargs in theirs]
        sentinels = Sentinels(addresses, pool.service_name, **options, **access)
        return redis.Redis.from_pool(PrimaryPool(sentinels, ssl=ssl, **{**address, **options}))
    return redis.Redis.from_pool(
        ConnectionPool(
            connection_class=pool.connection_class, **address, **_options(settings, tcp=tcp)
        )
    )


def caches_beside(settings: Settings) -> list[str]:
    """The caches that use our database: their clear() is FLUSHDB, whatever their key prefix."""
    where = settings.redis
    if "://" not in where:
        return [where] if where else []
    ours, beside = _place(where), []
    for name, entry in django_settings.CACHES.items():
        if ours and entry.get("BACKEND") in CACHES_ON_REDIS:
            location = entry.get("LOCATION") or ""
            urls = location.split(",") if isinstance(location, str) else location
            if ours in [_place(str(url)) for url in urls if "://" in str(url)]:
                beside.append(name)
    return beside


def _place(url: str) -> tuple[str, int, int] | None:
    """Host, port and database; None when the URL says it in another way."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss"):
        return None
    try:
        database = dict(parse_qsl(parts.query)).get("db") or parts.path.strip("/") or 0
        host = "127.0.0.1" if parts.hostname in (None, "localhost") else str(parts.hostname)
        return host, parts.port or 6379, int(database)
    except ValueError:
        return None


def url_of(settings: Settings) -> str:
    """The URL of DELAYQ["REDIS"], for processes without CACHES. Raises ConfigurationError for a
    cache that has none."""
    where = settings.redis
    if "://" in where:
        return where
    kwargs = _from_cache_alias(where, settings).connection_pool.connection_kwargs
    if "host" not in kwargs or any(name.startswith("ssl_") for name in kwargs):
        raise ConfigurationError(
            f"CACHES[{where!r}] has options that no URL can carry. Write a URL in DELAYQ['REDIS'] "
            "instead."
        )
    user, password = (quote(kwargs.get(name) or "", safe="") for name in ("username", "password"))
    credentials = f"{user}:{password}@" if user or password else ""
    return f"redis://{credentials}{kwargs['host']}:{kwargs.get('port', 6379)}/{kwargs.get('db', 0)}"


def _addresses(where: str) -> tuple[list[tuple[str, int]], dict[str, Any], list[str]]:
    """Hosts, credentials and TLS, path parts of
    scheme://user:password@host:port,host:port/part/part?option=value."""
    parts = urlsplit(where)
    credentials, _, hosts = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    options: dict[str, Any] = {
        "username": unquote(username) or None,
        "password": unquote(password) or None,
        "ssl": parts.scheme.startswith("rediss"),
        **dict(parse_qsl(parts.query)),
    }
    hosts_and_ports = [urlsplit(f"//{address}") for address in hosts.split(",")]
    addresses = [(parts.hostname or "127.0.0.1", parts.port or 0) for parts in hosts_and_ports]
    if not all(port for _, port in addresses):
        raise ValueError("every host needs a port, as in host1:26379,host2:26379")
    return addresses, options, [part for part in parts.path.split("/") if part]


def _from_sentinel(where: str, settings: Settings) -> RedisPy:
    # Imported here: most projects have no Sentinel.
    from .sentinel import PrimaryPool, Sentinels

    addresses, options, path = _addresses(where)
    if not path:
        raise ValueError("name the primary, as in redis+sentinel://host:26379/mymaster/0")
    tls = {"ssl": True} if options.pop("ssl") else {}
    password = options.pop("sentinel_password", None)
    sentinels = Sentinels(addresses, path[0], **_options(settings), **tls, password=password)
    database = int(path[1]) if len(path) > 1 else 0
    pool = PrimaryPool(sentinels, **{**_options(settings), **tls, "db": database, **options})
    return redis.Redis.from_pool(pool)


def _from_cluster(where: str, settings: Settings) -> RedisPy:
    from .cluster import Watch

    addresses, options, _ = _addresses(where)
    nodes = [ClusterNode(host, port) for host, port in addresses]
    watch = Watch()
    try:
        client = RedisCluster(
            startup_nodes=nodes, redis_connect_func=watch.begin, **_options(settings), **options
        )
    except ERRORS as error:
        raise translate(error, mask(where)) from error
    watch.watch(client)
    return client


def close_client(client: RedisPy) -> None:
    """End the connections, and the threads that watch where they lead."""
    client.close()
    _end_watch(client)


def retire(client: RedisPy) -> None:
    """The same for a client of a single server or behind Sentinel that other threads may be using:
    their calls end first."""
    hang_up(client.connection_pool, in_use=False)
    _end_watch(client)


def _end_watch(client: RedisPy) -> None:
    pool = getattr(client, "connection_pool", None)  # a cluster's client has one per node
    watch = getattr(client, "delayq_watch", None) or getattr(pool, "sentinel_manager", None)
    if watch is not None:
        watch.close()


def mask(where: str) -> str:
    """The URL without its passwords."""
    where = _PASSWORD.sub(r"\1:***@", where)
    return re.sub(r"(password=)[^&]*", r"\1***", where)
