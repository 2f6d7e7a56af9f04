"""What a Redis that is really down, or whose answers are really lost, leaves to the outbox."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import transaction

from django_delayq.core import exceptions
from django_delayq.models import OutboxMessage
from django_delayq.store import breaker, get_store
from django_delayq.store.keys import Partition
from tests.app.tasks import crowd, record, seen
from tests.database_faults import without_table
from tests.faults import lost_answers
from tests.hands import DAY, Hands, messages_in, only_row, outbox, rows, statuses
from tests.proxy import Proxy
from tests.servers import Server, launcher, wait_until

Use = Callable[[str], Hands]


@pytest.fixture(scope="module")
def own(server_kind: str) -> Iterator[Server]:
    with launcher(server_kind) as server:
        yield server


@pytest.fixture
def mortal(own: Server) -> Server:
    """A server to stop. It runs again at the start of every test."""
    own.restart()
    return own


@pytest.fixture
def use(hands: Hands, settings: Any, prefix: str) -> Iterator[Use]:
    """Lets the package use the Redis at a URL."""
    used = []

    def at(url: str) -> Hands:
        timeouts = {"CONNECT_TIMEOUT": 0.5, "SOCKET_TIMEOUT": 0.5}
        settings.DELAYQ = {**settings.DELAYQ, "REDIS": url, "PREFIX": prefix, **timeouts}
        used.append(get_store())
        return Hands(get_store())

    yield at
    for store in used:
        store.close()


@pytest.fixture
def proxy(mortal: Server) -> Iterator[Proxy]:
    with Proxy(mortal.url) as proxy:
        yield proxy


def back(hands: Hands) -> None:
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    near = OutboxMessage.objects.filter(status="waiting")
    near.update(relay_at_ms=0)
    hands.relay()


def test_a_commit_goes_well_while_redis_is_down(use: Use, mortal: Server) -> None:
    hands = use(mortal.url)
    with transaction.atomic():
        handles = [record.enqueue("lone"), *record.enqueue_many([("a",), ("b",)])]
        mortal.kill()
    assert {handle.outcome for handle in handles} == {"outbox"}
    assert statuses() == ["waiting"] * 3
    mortal.restart()
    back(hands)
    hands.work()
    hands.archive()
    assert (sorted(seen), len(rows()), statuses()) == (["a", "b", "lone"], 3, [])


def test_a_durable_message_waits_for_redis_too(use: Use, mortal: Server) -> None:
    hands = use(mortal.url)
    with transaction.atomic():
        handle = record.using(durable=True).enqueue("x")
        mortal.kill()
    assert (handle.outcome, statuses()) == ("outbox", ["waiting"])
    mortal.restart()
    back(hands)
    hands.work()
    assert seen == ["x"]


def test_it_is_due_when_it_was_to_be(use: Use, mortal: Server) -> None:
    hands = use(mortal.url)
    mortal.kill()
    handle = record.using(delay=60, expires=5, key="k").enqueue("x")
    mortal.restart()
    back(hands)
    found = record.get(key="k")
    assert found is not None and handle.due_at is not None and found.expires_at is not None
    assert found.due_at == handle.due_at
    assert (found.expires_at - found.due_at).total_seconds() == 5


class Counting:
    """Listens, counts who connects, and hangs up."""

    def __init__(self) -> None:
        self.count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.count += 1
                client.close()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def test_after_one_failure_nobody_connects(
    use: Use, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "PROBE_INTERVAL", 3_600.0)
    nobody = Counting()
    try:
        _use_without_hands(use, nobody.url)
        record.enqueue("first")
        tried = nobody.count
        began = time.monotonic()
        for number in range(200):
            record.enqueue(number)
        assert nobody.count == tried
        assert time.monotonic() - began < 15
        assert len(statuses()) == 201
    finally:
        nobody.close()


def _use_without_hands(use: Use, url: str) -> None:
    with suppress(exceptions.DelayQError):
        use(url)  # a worker cannot begin
    get_store().breaker.stop()
    get_store().breaker._closed_for_good.clear()


def test_the_breaker_finds_out_that_redis_is_back(use: Use, mortal: Server) -> None:
    hands = use(mortal.url)
    mortal.kill()
    record.enqueue(1)
    assert hands.store.breaker.open
    mortal.restart()
    wait_until(lambda: not hands.store.breaker.open, "the breaker is closed")
    assert record.enqueue(2).outcome == "stored"


@pytest.mark.parametrize("many", [False, True])
def test_a_lost_answer_makes_no_second_message(
    use: Use, proxy: Proxy, mortal: Server, many: bool
) -> None:
    hands = use(proxy.url)
    warm = ["warm", "warmer"]  # Redis knows both scripts of an enqueue then
    for word in warm:
        record.enqueue(word)
    proxy.mode = "drop_reply"
    handles = (
        record.enqueue_many((number,) for number in range(20)) if many else [record.enqueue(0)]
    )
    proxy.mode = "forward"
    assert {handle.outcome for handle in handles} == {"outbox"}
    assert len(messages_in(use(mortal.url).store)) == len(handles) + len(warm)
    hands = use(mortal.url)
    back(hands)
    hands.work()
    hands.archive()
    assert (sorted(map(str, seen)), statuses()) == (
        sorted([*warm, *(str(n) for n in range(len(handles)))]),
        [],
    )
    assert len(rows()) == len(handles) + len(warm)


def test_a_server_that_is_silent_is_waited_for_once(use: Use, proxy: Proxy) -> None:
    use(proxy.url)
    proxy.mode = "black_hole"
    began = time.monotonic()
    for number in range(20):
        record.enqueue(number)
    assert time.monotonic() - began < 5
    assert len(statuses()) == 20
    proxy.mode = "forward"


def test_what_may_not_spill_raises(use: Use, mortal: Server) -> None:
    use(mortal.url)
    mortal.kill()
    with pytest.raises(exceptions.StoreError):
        record.using(on_redis_error="raise").enqueue(1)
    assert statuses() == []


def test_of_many_only_what_may_spill_does(use: Use, mortal: Server) -> None:
    use(mortal.url)
    mortal.kill()
    calls = [record.prepare(1), record.using(on_redis_error="raise").prepare(2), record.prepare(3)]
    with pytest.raises(exceptions.StoreError) as caught:
        record.enqueue_many(calls)
    assert [handle.outcome for handle in caught.value.enqueued] == ["outbox", "outbox"]
    assert len(statuses()) == 2


def test_with_the_database_away_too_it_is_redis_error(use: Use, mortal: Server) -> None:
    use(mortal.url)
    mortal.kill()
    with without_table(OutboxMessage), pytest.raises(exceptions.StoreError):
        record.enqueue(1)
    assert statuses() == []


def test_no_connection_is_left_over_when_both_fail(use: Use, mortal: Server, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": 4}}}
    hands = use(mortal.url)
    crowd.enqueue_many((number,) for number in range(100))
    with lost_answers(4), without_table(OutboxMessage), pytest.raises(exceptions.StoreError):
        crowd.enqueue_many((number,) for number in range(100))
    assert len(hands.store.client.redis.connection_pool._in_use_connections) == 0


@pytest.mark.parametrize(("mode", "runs"), [("keep", "first"), ("replace", "second")])
def test_the_second_of_a_key_while_redis_is_down(
    use: Use, mortal: Server, mode: Any, runs: str
) -> None:
    hands = use(mortal.url)
    mortal.kill()
    keyed = record.using(key="k", delay=60)
    keyed.enqueue("first")
    keyed.using(on_duplicate=mode).enqueue("second")
    assert outbox() == [("waiting", "k")]
    mortal.restart()
    back(hands)
    found = record.get(key="k")
    assert found is not None and found.args == [runs]


def test_a_key_that_is_taken_is_refused_while_redis_is_down(use: Use, mortal: Server) -> None:
    use(mortal.url)
    mortal.kill()
    record.using(key="k").enqueue("first")
    with pytest.raises(exceptions.DuplicateMessage):
        record.using(key="k").enqueue("second")


def test_a_replacement_on_an_unknown_outcome_runs_once(
    use: Use, proxy: Proxy, mortal: Server
) -> None:
    use(proxy.url)
    record.enqueue("warm")
    proxy.mode = "drop_reply"
    record.using(key="k", on_duplicate="replace").enqueue("x")
    hands = use(mortal.url)
    back(hands)
    hands.work()
    hands.archive()
    assert seen.count("x") == 1
    assert statuses() == []


@pytest.mark.parametrize("durable", [False, True])
def test_a_view_that_says_paid_waits_once_for_a_redis_that_stands_still(
    use: Use, proxy: Proxy, mortal: Server, durable: bool
) -> None:
    hands = use(proxy.url)
    handles = record.using(delay=DAY / 48, durable=durable).enqueue_many(
        (number,) for number in range(6)
    )
    hands.store.partitions.counts("default")
    proxy.mode = "black_hole"
    began = time.monotonic()
    for number, handle in enumerate(handles):
        with transaction.atomic():
            _ = handle.cancel() if number % 2 else handle.reschedule(delay=DAY)
    assert time.monotonic() - began < 4
    assert sorted(set(statuses())) == ["cancelled", "moved"]
    proxy.mode = "forward"
    hands = use(mortal.url)
    back(hands)
    hands.archive()
    assert len(messages_in(hands.store)) == 3
    assert {row.state for row in rows()} == {"cancelled"}
    assert statuses() == (["sent"] * 3 if durable else [])


@pytest.mark.parametrize("durable", [False, True])
def test_a_cancel_while_redis_is_killed_and_comes_back_empty(
    use: Use, mortal: Server, durable: bool
) -> None:
    hands = use(mortal.url)
    handle = record.using(delay=60, durable=durable).enqueue("x")
    mortal.kill()
    handle.cancel()
    mortal.restart()
    hands.store.partitions.forget()  # as after 30 s
    back(hands)
    hands.archive()
    assert (hands.reconcile(), messages_in(hands.store), statuses()) == (0, set(), [])
    assert [row.state for row in rows()] == ["cancelled"] * durable


def test_a_spilled_message_is_cancelled(use: Use, mortal: Server) -> None:
    hands = use(mortal.url)
    get_store().partitions.counts("default")
    mortal.kill()
    handle = record.using(delay=DAY).enqueue(1)
    handle.cancel()
    assert (statuses(), only_row().state) == ([], "cancelled")
    mortal.restart()
    back(hands)
    assert messages_in(hands.store, Partition("default", 0)) == set()
