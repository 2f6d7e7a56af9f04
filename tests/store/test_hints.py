"""hints.py: the subscription to wake-up hints."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from django_delayq.core.conf import parse_settings
from django_delayq.core.exceptions import DelayQError, StoreUnavailable
from django_delayq.store import keys
from django_delayq.store.connection import open_client
from django_delayq.store.hints import HintStream
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from tests.proxy import Proxy
from tests.servers import SINGLE, Server
from tests.store.factories import PARTITION, enqueue


@pytest.fixture
def hints(store: RedisStore) -> Iterator[HintStream]:
    hints = HintStream(store)
    hints.connect()
    yield hints
    hints.close()


def heard(hints: HintStream) -> tuple[Partition | None, float]:
    """The next hint; subscription answers in between are skipped."""
    while (hint := hints.read(5)) is None:
        pass
    return hint


def say(store: RedisStore, text: str) -> None:
    store.client.redis.publish(keys.wakeups_channel(store.client.prefix), text)


def test_a_sooner_head_is_heard(store: RedisStore, hints: HintStream) -> None:
    hints.read(1)  # the subscription stands
    enqueue(store, when="1763632200123")
    assert heard(hints) == (PARTITION, 1_763_632_200_123)


def test_a_resumed_topic_is_heard(store: RedisStore, hints: HintStream) -> None:
    hints.read(1)
    store.topics.resume("orders")
    assert heard(hints) == (PARTITION, 0)


@pytest.mark.parametrize("text", ["", "x", "a:b:c", "orders:0:", "orders::5", ":", "\xff\xfe"])
def test_what_is_not_understood_is_skipped(store: RedisStore, hints: HintStream, text: str) -> None:
    hints.read(1)
    say(store, text)
    say(store, "some.topic:3:7000")
    assert heard(hints) == (Partition("some.topic", 3), 7000)


def test_silence_is_none_after_the_wait(hints: HintStream) -> None:
    hints.read(1)
    assert hints.read(0.001) is None


def test_connecting_twice_is_one_subscription(store: RedisStore) -> None:
    hints = HintStream(store)
    assert [hints.connect(), hints.connect()] == [True, False]
    hints.close()
    assert hints.connect()
    hints.close()


@pytest.mark.parametrize("server_kind", SINGLE, indirect=True, scope="session")
def test_a_broken_subscription_is_an_error_and_can_be_made_anew(
    server: Server, prefix: str
) -> None:
    with Proxy(server.url) as proxy:
        settings = parse_settings({"REDIS": proxy.url, "PREFIX": prefix})
        store = RedisStore(open_client(settings), settings)
        hints = HintStream(store)
        hints.connect()
        proxy.cut()
        with pytest.raises(Exception, match=r"broke before|Nothing was changed"):
            while True:
                hints.read(1)
        assert hints.connect()
        say(store, "orders:0:5")
        assert heard(hints) == (PARTITION, 5)
        hints.close()
        store.close()


def test_no_server_is_unavailable(prefix: str) -> None:
    settings = parse_settings({"REDIS": "unix:///nowhere/redis.sock", "PREFIX": prefix})
    with pytest.raises(StoreUnavailable):
        HintStream(RedisStore(open_client(settings), settings)).connect()


@pytest.mark.parametrize("server_kind", SINGLE, indirect=True, scope="session")
def test_a_beat_proves_that_all_hints_before_it_have_arrived(
    store: RedisStore, hints: HintStream
) -> None:
    hints.read(0.2)
    began = time.monotonic()
    say(store, "some.topic:3:7000")
    assert heard(hints) == (Partition("some.topic", 3), 7000)
    hints.complete_until = 0.0
    while hints.complete_until < began:
        assert hints.read(0.5) is None
    assert time.monotonic() - hints.complete_until < 5


@pytest.mark.parametrize("server_kind", SINGLE, indirect=True, scope="session")
def test_a_connection_that_brings_no_beat_proves_nothing_and_is_made_anew(
    store: RedisStore, hints: HintStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    hints.read(0.01)
    while hints._asked_at:
        hints.read(0.1)
    monkeypatch.setattr(store.workers, "hint", lambda text: None)  # it leads nowhere
    hints.complete_until = 0.0
    hints.read(0.01)
    assert hints.complete_until == 0.0
    hints._asked_at -= store.client.settings.socket_timeout + 1
    with pytest.raises(DelayQError):
        hints.read(0.01)
    assert hints.connect()


@pytest.mark.parametrize("server_kind", ["cluster", "sentinel"], indirect=True, scope="session")
def test_what_is_more_than_one_server_proves_nothing(hints: HintStream) -> None:
    for _ in range(5):
        hints.read(0.1)
    assert hints.complete_until == 0.0
