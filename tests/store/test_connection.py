"""connection.py: the client that DELAYQ["REDIS"] names."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import redis
from django.core.cache import caches

from django_delayq.core.conf import Settings, parse_settings
from django_delayq.core.exceptions import ConfigurationError, OutcomeUnknown, StoreUnavailable
from django_delayq.store import get_store
from django_delayq.store.connection import mask, open_client
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from tests.servers import MASTER, SINGLE, Server, launcher, wait_until
from tests.store.factories import PARTITION, TASKS, claim, enqueue, outgoing


def settings_of(url: str, **others: Any) -> Settings:
    return parse_settings({"REDIS": url, **others})


def kwargs_of(url: str, **others: Any) -> dict[str, Any]:
    return dict(open_client(settings_of(url, **others)).connection_pool.connection_kwargs)


# URLs


def test_a_url_connects_to_each_kind(server: Server, prefix: str) -> None:
    client = open_client(settings_of(server.url))
    store = RedisStore(client, settings_of(server.url, PREFIX=prefix))
    assert claim(store).attempts.attempt == 1
    store.close()


def test_a_unix_socket_connects(server: Server, prefix: str) -> None:
    url = f"unix://{server.primaries[0].socket}"
    store = RedisStore(open_client(settings_of(url)), settings_of(url, PREFIX=prefix))
    assert store.clock_ms() > 0
    store.close()


@pytest.mark.parametrize(
    "url",
    ["redis://u:p%40ss@h:1/3", "rediss://u:p%40ss@h:1/3", "redis+sentinel://u:p%40ss@h:1/m/3"],
)
def test_credentials_and_database_are_taken_from_the_url(url: str) -> None:
    kwargs = kwargs_of(url)
    assert (kwargs["username"], kwargs["password"], kwargs["db"]) == ("u", "p@ss", 3)


@pytest.mark.parametrize(
    "url", ["redis://h:1", "rediss://h:1", "unix:///s", "redis+sentinel://h:1/m"]
)
def test_the_client_neither_retries_nor_decodes_and_has_timeouts(url: str) -> None:
    client = open_client(settings_of(url, CONNECT_TIMEOUT=0.5, SOCKET_TIMEOUT=0.25))
    kwargs = client.connection_pool.connection_kwargs
    assert kwargs["retry"].get_retries() == 0
    assert not kwargs.get("decode_responses")
    assert (kwargs["socket_connect_timeout"], kwargs["socket_timeout"]) == (0.5, 0.25)


def test_a_cluster_client_does_not_retry_either(server: Server, client: Any) -> None:
    retry = (
        client.retry
        if server.kind == "cluster"
        else client.connection_pool.connection_kwargs["retry"]
    )
    assert retry.get_retries() == 0


@pytest.mark.parametrize("url", ["rediss://h:1/0", "rediss+sentinel://h:1/m"])
def test_a_double_s_means_tls(url: str) -> None:
    assert issubclass(
        open_client(settings_of(url)).connection_pool.connection_class, redis.SSLConnection
    )


def test_a_sentinel_url_names_sentinels_primary_and_database() -> None:
    url = "redis+sentinel://:secret@one:26379,[::1]:26380/orders/2?sentinel_password=other"
    pool = open_client(settings_of(url)).connection_pool
    addresses = [s.connection_pool.connection_kwargs for s in pool.sentinel_manager.sentinels]
    assert [(a["host"], a["port"]) for a in addresses] == [("one", 26379), ("::1", 26380)]
    assert {a["password"] for a in addresses} == {"other"}
    assert (pool.service_name, pool.is_master) == ("orders", True)
    assert (pool.connection_kwargs["password"], pool.connection_kwargs["db"]) == ("secret", 2)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "is missing"),
        ("http://u:secret@host", "use one of redis, rediss"),
        ("redis+sentinel://host:1", "name the primary"),
        ("redis+sentinel://host/mymaster", "every host needs a port"),
        ("redis+sentinel://host:x/mymaster", "Port could not be cast"),
        ("redis+sentinel://host:1/mymaster/x", "invalid literal"),
        ("redis+cluster://host", "every host needs a port"),
        ("redis://host:port/0", "Port could not be cast"),
        ("redis://:secret@host:6390/foo", "'foo' is not the number of a database"),
        ("rediss://host/1/2", "'1/2' is not the number of a database"),
        ("redis://host/-1", "'-1' is not the number of a database"),
        ("redis://:secret/0@host/0", "write the special characters of its password as %2F"),
        ("redis://:secret#1@host/0", "write the special characters of its password as %2F"),
        ("redis://:se?secret@host:port/0", "write the special characters of its password as %2F"),
        ("redis://:[secret]@host/0", "write the special characters of its password as %2F"),
        ("redis://:secret\u2100@host/0", "write the special characters of its password as %2F"),
        ("nowhere", "neither a URL nor an entry of CACHES"),
        ("default", "not a django-redis cache"),
    ],
)
def test_a_wrong_url_says_what_is_wrong_and_keeps_the_password(url: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as error:
        open_client(settings_of(url))
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:secret@host:6379/0", "redis://:***@host:6379/0"),
        ("rediss://user:secret@host/0", "rediss://user:***@host/0"),
        ("redis://user:sec/r@et@host/0", "redis://user:***@host/0"),
        ("redis://us/er:secret@host/0", "redis://us/er:***@host/0"),
        ("redis+sentinel://u:secret@a:1,b:2/m/0", "redis+sentinel://u:***@a:1,b:2/m/0"),
        ("redis://host/0?password=secret&db=1", "redis://host/0?password=***&db=1"),
        (
            "redis+sentinel://a:1/m?sentinel_password=secret",
            "redis+sentinel://a:1/m?sentinel_password=***",
        ),
        ("default", "default"),
    ],
)
def test_no_password_is_shown(url: str, masked: str) -> None:
    assert mask(url) == masked


def test_a_cluster_that_is_not_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(
        StoreUnavailable, match="Cannot reach Redis at redis\\+cluster://:\\*\\*\\*@"
    ):
        open_client(settings_of(f"redis+cluster://:secret@127.0.0.1:{port}"))


# The default store, and an alias of CACHES


def use_alias(settings: Any, location: str | list[str], prefix: str, **options: Any) -> RedisStore:
    settings.CACHES = {
        **settings.CACHES,
        "queue": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": location,
            "OPTIONS": options,
        },
    }
    settings.DELAYQ = {"REDIS": "queue", "PREFIX": prefix}
    return get_store()


#: django-redis has no client for a cluster.
singles = pytest.mark.parametrize("server_kind", SINGLE, indirect=True, scope="session")


@singles
def test_an_alias_of_caches_names_the_server(settings: Any, server: Server, prefix: str) -> None:
    store = use_alias(settings, server.url, prefix)
    enqueue(store)
    assert caches["queue"].client.get_client().exists(f"{prefix}:{{orders:0}}:messages")
    assert store.client.where == "queue"
    store.close()


@singles
def test_an_alias_over_a_unix_socket_works(settings: Any, server: Server, prefix: str) -> None:
    store = use_alias(settings, f"unix://{server.primaries[0].socket}?db=0", prefix)
    assert claim(store).attempts.attempt == 1
    store.close()


@singles
def test_the_options_of_the_cache_do_not_change_ours(
    settings: Any, server: Server, prefix: str
) -> None:
    pool = {"decode_responses": True, "max_connections": 5, "retry_on_timeout": True}
    store = use_alias(settings, server.url, prefix, CONNECTION_POOL_KWARGS=pool, SOCKET_TIMEOUT=99)
    kwargs = store.client.redis.connection_pool.connection_kwargs
    assert (kwargs["socket_timeout"], kwargs["retry"].get_retries()) == (5.0, 0)
    assert claim(store, body=b"\xff").record.endswith(b"\xff")
    assert (
        store.client.redis.connection_pool
        is not caches["queue"].client.get_client().connection_pool
    )
    store.close()


def test_the_default_store_is_made_once_and_anew_when_the_settings_change(
    delayq: RedisStore, settings: Any
) -> None:
    assert get_store() is delayq
    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": "other"}
    assert get_store() is not delayq
    assert get_store().client.prefix == "other"


# Failover: one run each, with servers of their own


def works(store: RedisStore, partition: Partition = PARTITION) -> bool:
    """False while the failover goes on; any error that is not one of ours fails the test."""
    try:
        store.enqueue(partition, TASKS, [outgoing()])
    except (StoreUnavailable, OutcomeUnknown):
        return False
    return True


@pytest.mark.long
def test_a_store_behind_sentinel_goes_on_after_a_failover(settings: Any, prefix: str) -> None:
    with launcher("sentinel") as server:
        store = RedisStore(
            open_client(settings_of(server.url)), settings_of(server.url, PREFIX=prefix)
        )
        cached = alias_of_sentinel(settings, server, prefix)
        message_id = enqueue(store)
        assert server.client().wait(1, 5000) == 1
        server.kill()
        wait_until(lambda: works(store), "the store works again", 20)
        wait_until(lambda: works(cached), "the store of the alias works again", 20)
        assert [lease.id for lease in cached.claim(PARTITION, 1).leases] == [message_id]
        store.close()
        cached.close()


def alias_of_sentinel(settings: Any, server: Server, prefix: str) -> RedisStore:
    settings.DJANGO_REDIS_CONNECTION_FACTORY = "django_redis.pool.SentinelConnectionFactory"
    return use_alias(
        settings,
        f"redis://{MASTER}/0",
        prefix,
        CLIENT_CLASS="django_redis.client.SentinelClient",
        SENTINELS=[("127.0.0.1", server.others[-1].port)],
    )


@pytest.mark.long
def test_a_store_on_a_cluster_goes_on_when_a_node_is_back(prefix: str) -> None:
    with launcher("cluster") as server:
        store = RedisStore(
            open_client(settings_of(server.url)), settings_of(server.url, PREFIX=prefix)
        )
        partitions = [Partition("orders", number) for number in range(12)]
        assert all(works(store, partition) for partition in partitions)
        server.primaries[0].kill()
        assert not all(works(store, partition) for partition in partitions)
        server.restart()
        for partition in partitions:
            wait_until(lambda p=partition: works(store, p), f"{partition} works again", 20)
        store.close()
