"""WAIT_REPLICAS: an enqueue of a plain message waits for replicas, else the outbox answers for the
message, too."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from django_delayq.archive.archiver import Archiver
from django_delayq.core.exceptions import EnqueueUnknown
from django_delayq.models import ArchivedMessage, OutboxMessage, OutboxStatus
from django_delayq.outbox.reconciler import Reconciler
from django_delayq.outbox.relay import Relay
from django_delayq.store import client, get_store
from django_delayq.store.keys import Partition
from django_delayq.store.queries import Life
from django_delayq.store.store import RedisStore
from tests.app.tasks import noop
from tests.servers import Replicated, wait_until

pytestmark = [pytest.mark.django_db(transaction=True)]
PARTITION = Partition("default", 0)


@pytest.fixture(scope="module")
def pair() -> Iterator[Replicated]:
    """A primary and its replica. The sentinel does not mind how long one of them is away."""
    with Replicated(sentinels=1, down_after=60_000) as server:
        yield server


@pytest.fixture
def waiting(
    settings: Any, pair: Replicated, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RedisStore]:
    monkeypatch.setattr(client, "WAIT_TIMEOUT", 0.1)
    settings.DELAYQ = {"REDIS": pair.primaries[0].url, "PREFIX": prefix, "WAIT_REPLICAS": 1}
    yield get_store()
    get_store().close()


@pytest.fixture
def frozen_replica(pair: Replicated) -> Iterator[Any]:
    pid = pair.others[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)

    def wake() -> None:
        os.kill(pid, signal.SIGCONT)

    yield wake
    wake()


def test_what_a_replica_has_stays_in_redis(
    waiting: RedisStore, pair: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "WAIT_TIMEOUT", 5.0)  # it keeps up, however slow the machine is
    handle = noop.using(delay=60).enqueue(1, 2)
    assert handle.outcome == "stored"
    with redis.Redis(unix_socket_path=str(pair.others[0].socket)) as replica:
        key = f"{waiting.client.prefix}:{{default:0}}:messages"
        assert [member.hex() for member in replica.hkeys(key)] == [handle.id]
    assert not OutboxMessage.objects.exists()


def test_what_no_replica_has_is_the_outboxs_too_and_is_still_one_message(
    waiting: RedisStore, frozen_replica: Any
) -> None:
    handle = noop.using(delay=0.2).enqueue(1, 2)
    (row,) = OutboxMessage.objects.all()
    assert (handle.outcome, row.message_id.hex, row.status) == (
        "outbox",
        handle.id,
        OutboxStatus.SENT,
    )
    assert handle.due_ms == row.due_at_ms
    life = Life(row.message_id.bytes, row.enqueued_at_us)
    assert waiting.durable_status("default", life) == (PARTITION, "LIVE")

    wait_until(lambda: waiting.claim(PARTITION, 0).next_due_ms is not None, "it waits")
    leases: list[Any] = []
    wait_until(lambda: leases.extend(waiting.claim(PARTITION, 10).leases) or leases, "it is due")
    assert [lease.id.hex() for lease in leases] == [handle.id]
    waiting.ack(PARTITION, [(leases[0], b"{}")])
    OutboxMessage.objects.update(relay_at_ms=0)
    Relay(waiting).run_once()
    Reconciler(waiting).run_once()
    Archiver(waiting, "test").run_once()
    assert waiting.claim(PARTITION, 10).leases == []
    assert ArchivedMessage.objects.get().message_id.hex == handle.id
    assert not OutboxMessage.objects.exists()


def test_what_has_run_before_the_replicas_were_given_up_does_not_run_again(
    waiting: RedisStore, frozen_replica: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "WAIT_TIMEOUT", 0.1)
    taken: list[Any] = []
    wait = client.RedisClient.begin_replicated

    def run_meanwhile(self: client.RedisClient, *args: Any) -> Any:
        answer = wait(self, *args)

        def read() -> Any:
            try:
                return answer()
            finally:
                taken.extend(waiting.claim(PARTITION, 1).leases)
                waiting.ack(PARTITION, [(lease, b"{}") for lease in taken])

        return read

    monkeypatch.setattr(client.RedisClient, "begin_replicated", run_meanwhile)
    handle = noop.enqueue(1, 2)
    assert [lease.id.hex() for lease in taken] == [handle.id]
    assert handle.outcome == "stored"
    assert not OutboxMessage.objects.exists()


def test_while_replicas_are_away_nobody_waits_for_them_again(
    waiting: RedisStore, frozen_replica: Any
) -> None:
    handles = [noop.using(delay=60).enqueue(1, n) for n in range(3)]
    assert [handle.outcome for handle in handles] == ["outbox"] * 3
    stored = [waiting.find("default", bytes.fromhex(handle.id)) is not None for handle in handles]
    assert stored == [True, False, False]
    assert not waiting.breaker.open  # the relay is not held up
    frozen_replica()
    wait_until(lambda: not waiting.client.replicas.open, "the replica keeps up again")
    assert noop.using(delay=60).enqueue(1, 2).outcome == "stored"


def test_many_at_once_are_kept_as_well(waiting: RedisStore, frozen_replica: Any) -> None:
    handles = noop.using(delay=60).enqueue_many([(1, n) for n in range(1200)])
    assert {handle.outcome for handle in handles} == {"outbox"}
    assert OutboxMessage.objects.count() == 1200


def test_who_wants_errors_gets_one_and_may_send_again(
    waiting: RedisStore, frozen_replica: Any
) -> None:
    task = noop.using(delay=60, on_redis_error="raise")
    with pytest.raises(EnqueueUnknown) as error:
        task.enqueue(1, 2)
    frozen_replica()
    wait_until(lambda: not waiting.client.replicas.open, "the replica keeps up again")
    assert task.using(id=error.value.ids[0]).enqueue(1, 2).outcome == "stored"
    assert waiting.queries.stats(PARTITION).waiting == 1


def test_a_durable_message_does_not_wait(waiting: RedisStore, frozen_replica: Any) -> None:
    assert noop.using(delay=60, durable=True).enqueue(1, 2).outcome == "stored"
    assert not waiting.client.replicas.open
