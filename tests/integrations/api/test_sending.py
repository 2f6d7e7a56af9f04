"""Programs enqueue, cancel and reschedule over HTTP."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from django_delayq.models import OutboxMessage
from tests.faults import unreachable
from tests.integrations.api.conftest import Caller

HOUR = 3600


def lines(*messages: dict[str, Any]) -> bytes:
    return "\n".join(map(json.dumps, messages)).encode()


def test_a_message_waits_for_its_delay(caller: Caller) -> None:
    caller.send(delay=HOUR)
    figures = caller.get("/topics/mail").json()
    assert (figures["delayed"], figures["backlog"]) == (1, 0)
    assert caller.consume() == []


def test_an_answer_says_when_the_message_is_due(caller: Caller) -> None:
    at = datetime.now(tz=timezone.utc) + timedelta(hours=2)
    sent = caller.post("/topics/mail/messages", due_at=at.isoformat()).json()
    assert sent["outcome"] == "stored"
    assert abs(datetime.fromisoformat(sent["due_at"]) - at) < timedelta(milliseconds=2)


def test_options_of_a_message_travel_with_it(caller: Caller) -> None:
    caller.send(key="order:1", priority="high", ttr=7, headers={"trace": "x"}, expires=HOUR)
    message = caller.next()
    assert (message["key"], message["ttr"], message["headers"]) == ("order:1", 7, {"trace": "x"})


def test_a_second_message_with_a_live_key_is_refused_kept_or_replaces(caller: Caller) -> None:
    first = caller.send(key="order:1", delay=HOUR, args=[1])
    again = caller.post("/topics/mail/messages", key="order:1", delay=HOUR)
    assert (again.status_code, again.json()["type"]) == (409, "urn:django-delayq:duplicate")
    for word, outcome, args in (("keep", "kept", [1]), ("replace", "replaced", [2])):
        sent = caller.post(
            "/topics/mail/messages", key="order:1", delay=HOUR, args=[2], on_duplicate=word
        ).json()
        assert (sent["id"], sent["outcome"]) == (first, outcome)
        assert caller.get("/topics/mail/message", key="order:1").json()["args"] == args


def test_the_same_message_under_the_same_id_is_stored_once(caller: Caller) -> None:
    message = {"id": "0190163d8694739b9d61cc7d5f5a8a5c", "delay": HOUR, "args": [1]}
    assert [caller.send(**message) for _ in range(2)] == [message["id"]] * 2
    assert caller.get("/topics/mail").json()["delayed"] == 1


def test_a_window_refuses_a_key_that_has_ended(caller: Caller) -> None:
    caller.send(key="order:1", window=HOUR)
    caller.post("/leases/ack", lease=caller.next()["lease"])
    batch = lines({"key": "order:1", "window": HOUR}, {"key": "order:2", "window": HOUR})
    sent = caller.post("/topics/mail/messages/batch", batch).json()["messages"]
    assert [message["outcome"] for message in sent] == ["duplicate", "stored"]


def test_a_batch_is_stored_in_one_call(caller: Caller) -> None:
    batch = lines(*({"kwargs": {"n": n}, "key": f"n:{n}"} for n in range(500)))
    answer = caller.post("/topics/mail/messages/batch", batch)
    assert answer.status_code == 200
    assert {message["outcome"] for message in answer.json()["messages"]} == {"stored"}
    assert caller.get("/topics/mail").json()["backlog"] == 500


def test_a_duplicate_in_a_batch_is_an_outcome_of_its_own(caller: Caller) -> None:
    caller.send(key="b", delay=HOUR)
    batch = lines({"key": "a"}, {"key": "b"}, {"key": "b", "on_duplicate": "keep"}, {"key": "c"})
    sent = caller.post("/topics/mail/messages/batch", batch).json()["messages"]
    assert [message["outcome"] for message in sent] == ["stored", "duplicate", "kept", "stored"]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"{", 400),
        (b"NaN", 400),
        (b"", 400),
        (b'{"delay": -1}', 422),
        (b'{"dela": 1}', 422),
        (b'{"due_at": "tomorrow"}', 422),
        (b'{"args": [' + b"[" * 40 + b"]" * 40 + b"]}", 422),
        (b'{"key": "a\\u0000"}', 422),
        (b'{"key": "a", "key": "b"}', 400),
        (b'{"args": [{"n": 1, "m": {}, "n": 1}]}', 400),
    ],
)
def test_a_batch_with_a_bad_line_sends_nothing_and_names_the_line(
    caller: Caller, line: bytes, status: int
) -> None:
    answer = caller.post("/topics/mail/messages/batch", b'{"args": [1]}\n' + line + b"\n{}")
    assert (answer.status_code, answer.json()["line"]) == (status, 2)
    assert caller.get("/topics/mail").status_code == 404  # the topic has never had a message


def test_a_name_that_stands_twice_is_refused(caller: Caller) -> None:
    answer = caller.post("/topics/mail/messages", b'{"kwargs": {"to": "ann", "to": "bob"}}')
    assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")
    assert "twice" in answer.json()["detail"]
    caller.send(args=[{"to": "ann"}, {"to": "bob"}], kwargs={"args": 1})  # of two objects


def test_a_batch_has_1_to_500_lines(caller: Caller) -> None:
    for body in (b"", b"{}\n" * 501):
        assert caller.post("/topics/mail/messages/batch", body).status_code == 422


def test_a_waiting_message_is_moved_and_taken_back(caller: Caller) -> None:
    message_id = caller.send(key="order:1", delay=HOUR)
    moved = caller.post("/topics/mail/reschedule", key="order:1", delay=2 * HOUR)
    assert moved.status_code == 200
    at = datetime.fromisoformat(moved.json()["due_at"].replace("Z", "+00:00"))  # Python 3.10
    assert timedelta(minutes=119) < at - datetime.now(tz=timezone.utc) < timedelta(minutes=121)
    assert caller.post("/topics/mail/cancel", id=message_id).json() == {"state": "cancelled"}
    assert caller.post("/topics/mail/cancel", id=message_id).status_code == 404
    ended = caller.get("/topics/mail/message", id=message_id).json()
    assert (ended["state"], ended["key"]) == ("cancelled", "order:1")


def test_what_a_consumer_holds_cannot_be_taken_back(caller: Caller) -> None:
    caller.send(key="order:1")
    caller.next()
    for verb, fields in (("cancel", {}), ("reschedule", {"delay": 1})):
        answer = caller.post(f"/topics/mail/{verb}", key="order:1", **fields)
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:django-delayq:running")


def test_a_durable_message_is_a_row_too(caller: Caller) -> None:
    caller.send(durable=True, delay=HOUR)
    assert OutboxMessage.objects.count() == 1


def test_a_declared_task_gets_what_fits_it(caller: Caller) -> None:
    task = "tests.app.tasks.record"
    assert caller.post("/topics/default/messages", task=task, args=[1]).status_code == 201
    wrong = caller.post("/topics/default/messages", task=task, kwargs={"no_such": 1})
    assert (wrong.status_code, wrong.json()["type"]) == (422, "urn:django-delayq:invalid")


def test_a_declared_task_is_sent_to_its_own_topic_only(caller: Caller) -> None:
    for topic in ("mail", "orders"):
        answer = caller.post(f"/topics/{topic}/messages", task="tests.app.tasks.record", args=[1])
        assert answer.status_code == 422


def test_a_topic_of_workers_takes_no_unknown_task(caller: Caller) -> None:
    answer = caller.post("/topics/default/messages", task="os.system", args=["true"])
    assert answer.status_code == 422


def test_what_redis_cannot_take_waits_in_the_outbox(caller: Caller) -> None:
    caller.send()
    with unreachable():
        answer = caller.post("/topics/mail/messages")
    assert answer.json()["outcome"] == "outbox"
