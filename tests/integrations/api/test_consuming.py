"""Programs consume over HTTP: what they do becomes what a worker would do."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from django.db import connections

from django_delayq.models import ArchivedMessage
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from tests.hands import Hands
from tests.integrations.api.conftest import Caller, Callers

MAIL = Partition("mail", 0)


def settle(caller: Caller, verb: str, message: dict[str, Any], **fields: Any) -> Any:
    return caller.post(f"/leases/{verb}", lease=message["lease"], **fields)


def test_a_message_is_sent_consumed_and_acked(caller: Caller, hands: Hands) -> None:
    message_id = caller.send(task="letter", kwargs={"to": "ada"}, headers={"trace": "1"})
    message = caller.next()
    assert message["id"] == message_id
    assert (message["task"], message["kwargs"], message["attempt"]) == ("letter", {"to": "ada"}, 1)
    answer = settle(caller, "ack", message)
    assert (answer.status_code, answer.json()) == (200, {"id": message_id, "state": "acked"})
    (row,) = hands.archive()
    assert (row.state, row.task, row.worker, row.attempts) == (
        "acked",
        "letter",
        "api:program",
        1,
    )
    assert row.run_ms is not None and 0 <= row.run_ms < 60_000
    assert row.lateness_ms is not None and row.lateness_ms >= 0


def test_a_failed_message_waits_for_its_backoff_and_is_dead_after_its_attempts(
    caller: Caller, hands: Hands
) -> None:
    caller.send(max_attempts=2, kwargs={"to": "ada"})
    answer = settle(caller, "nack", caller.next(), error="no answer", error_class="Timeout")
    assert answer.json()["state"] == "retried"
    assert answer.json()["due_in"] > 1
    (waiting,) = caller.get("/topics/mail/messages").json()["messages"]
    assert (waiting["state"], waiting["attempt"]) == ("delayed", 1)
    caller.post("/topics/mail/reschedule", id=waiting["id"], delay=0)
    message = caller.next()
    assert message["attempt"] == 2
    last = settle(caller, "nack", message, error="still none", error_class="Timeout", traceback="t")
    assert last.json()["state"] == "dead"
    (row,) = hands.archive()
    assert (row.state, row.attempts, row.error_class) == ("dead", 2, "Timeout")
    assert (row.error_message, row.traceback, row.reason) == ("still none", "t", "failed")
    assert "no answer" in row.history


def test_a_consumer_chooses_the_wait_or_gives_up(caller: Caller, hands: Hands) -> None:
    caller.send()
    answer = settle(caller, "nack", caller.next(), delay=0)
    assert answer.json() == {"id": answer.json()["id"], "state": "retried", "due_in": 0}
    assert settle(caller, "nack", caller.next(), dead=True).json()["state"] == "dead"
    assert [row.attempts for row in hands.archive()] == [2]


def test_a_released_message_has_its_attempt_back(caller: Caller) -> None:
    caller.send()
    assert settle(caller, "release", caller.next()).json()["state"] == "released"
    assert caller.next()["attempt"] == 1


def test_a_message_that_was_settled_is_settled(caller: Caller) -> None:
    caller.send()
    message = caller.next()
    assert settle(caller, "ack", message).status_code == 200
    for verb in ("ack", "nack", "release", "extend"):
        answer = settle(caller, verb, message)
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:django-delayq:lease-lost")


def test_a_lease_that_has_ended_is_refused_once_another_holds_the_message(
    caller: Caller, api: RedisStore
) -> None:
    caller.send(ttr=1)
    old = caller.next()
    api.client.redis.zadd(f"{api.client.prefix}:{{mail:0}}:leased", {bytes.fromhex(old["id"]): 1})
    new = caller.next()  # the consumer itself takes it back
    assert (new["id"], new["attempt"]) == (old["id"], 2)
    assert settle(caller, "ack", old).status_code == 409
    assert settle(caller, "ack", new).status_code == 200


def test_the_third_crash_of_its_consumers_makes_a_message_a_dead_letter(
    caller: Caller, api: RedisStore, hands: Hands
) -> None:
    caller.send(ttr=1)
    for _ in range(3):
        message = caller.next()
        leased = f"{api.client.prefix}:{{mail:0}}:leased"
        api.client.redis.zadd(leased, {bytes.fromhex(message["id"]): 1})
        api.reclaim(MAIL)
        caller.post("/topics/mail/reschedule", id=message["id"], delay=0)
    assert [row.reason for row in hands.archive()] == ["poison"]


def test_an_extended_lease_goes_on(caller: Caller, api: RedisStore) -> None:
    caller.send(ttr=30)
    message = caller.next()
    api.client.redis.zadd(
        f"{api.client.prefix}:{{mail:0}}:leased", {bytes.fromhex(message["id"]): 1}
    )
    assert settle(caller, "extend", message).json()["lease_until"] > message["due_at"]
    assert caller.consume() == []
    assert settle(caller, "ack", message).status_code == 200


@pytest.mark.parametrize("change", ["another caller", "one character", "nothing of ours", "topic"])
def test_a_lease_is_of_its_caller_and_message(
    caller: Caller, caller_with: Callers, change: str
) -> None:
    caller.send()
    message = caller.next()
    lease = message["lease"]
    forged = {
        "another caller": lease,
        "one character": ("A" if lease[0] != "A" else "B") + lease[1:],
        "nothing of ours": "A" * len(lease),
        "topic": lease[:-2] + "AA",
    }[change]
    by = caller_with() if change == "another caller" else caller
    for verb in ("ack", "nack", "release", "extend"):
        assert by.post(f"/leases/{verb}", lease=forged).status_code == 409
    assert settle(caller, "ack", message).status_code == 200


def test_the_first_topic_comes_first_and_count_holds_for_all(caller: Caller) -> None:
    for topic in ("mail", "acme.b"):
        for n in range(3):
            caller.send(topic, args=[n])
    time.sleep(0.002)
    found = [message["topic"] for message in caller.consume("acme.b", "mail", count=4)]
    assert found == ["acme.b"] * 3 + ["mail"]


def test_a_long_poll_gets_a_message_when_it_comes(caller: Caller) -> None:
    took: list[float] = []
    found: list[dict[str, Any]] = []

    def wait() -> None:
        begun = time.monotonic()
        found.extend(caller.consume(wait=10))
        took.append(time.monotonic() - begun)
        connections.close_all()

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    message_id = caller.send()
    thread.join(15)
    assert [message["id"] for message in found] == [message_id]
    assert took[0] < 2


def test_a_long_poll_sleeps_until_a_delayed_message_is_due(caller: Caller) -> None:
    caller.send(delay=0.3)
    begun = time.monotonic()
    assert len(caller.consume(wait=5)) == 1
    assert 0.2 < time.monotonic() - begun < 0.9


def test_a_long_poll_without_a_message_ends(caller: Caller) -> None:
    begun = time.monotonic()
    assert caller.consume(wait=0.2) == []
    assert 0.2 <= time.monotonic() - begun < 2


def test_nothing_is_claimed_in_a_paused_topic(caller: Caller) -> None:
    caller.send()
    assert (
        caller.post("/topics/mail/pause", reason="deploy").json()["paused"]["by"] == "api:program"
    )
    assert caller.consume() == []
    assert caller.post("/topics/mail/resume").json()["paused"] is None
    assert len(caller.consume()) == 1


def test_what_expired_is_not_given_out(caller: Caller, hands: Hands) -> None:
    caller.send(expires=0)
    time.sleep(0.005)
    assert caller.consume() == []
    assert [row.state for row in hands.archive()] == ["expired"]


def test_a_damaged_message_is_dead(caller: Caller, api: RedisStore, hands: Hands) -> None:
    message_id = caller.send()
    (found,) = api.find_many([("mail", bytes.fromhex(message_id))])
    messages = f"{api.client.prefix}:{{mail:0}}:messages"
    damaged = found.found.record[:23] + b"[no json"
    api.client.redis.hset(messages, bytes.fromhex(message_id), damaged)
    assert caller.consume() == []
    hands.archive()
    assert ArchivedMessage.objects.get().state == "dead"


def test_a_limit_of_a_topic_holds_for_consumers(
    caller: Caller, settings: Any, api: RedisStore
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"mail": {"concurrency": 2}}}
    for _ in range(3):
        caller.send()
    time.sleep(0.002)
    first, second = caller.consume(count=10)
    assert caller.consume(count=10) == []
    settle(caller, "ack", first)
    assert len(caller.consume(count=10)) == 1
    settle(caller, "ack", second)


def test_a_program_may_consume_beside_workers(caller: Caller, hands: Hands) -> None:
    for n in range(4):
        caller.send("default", task="tests.app.tasks.record", args=[n])
    time.sleep(0.002)
    mine = caller.consume("default", count=2)
    assert {message["task"] for message in mine} == {"tests.app.tasks.record"}
    assert hands.work() == 2
    for message in mine:
        assert settle(caller, "ack", message).status_code == 200
    rows = hands.archive()
    assert sorted(row.worker for row in rows) == ["api:program"] * 2 + ["host:1:hands"] * 2
    assert len({row.message_id for row in rows}) == 4
