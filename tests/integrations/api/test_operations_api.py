"""What holds for each call: its body, its errors, its headers, and dead letters over HTTP."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import pytest
from django.db import connections
from django.test import Client

from django_delayq.client.enqueue import enqueue_built
from django_delayq.core.exceptions import EnqueueUnknown, StoreUnavailable
from django_delayq.core.message import new_id
from django_delayq.integrations.api.operations_api import api as ninja_api
from django_delayq.models import OutboxMessage
from django_delayq.store.requests import Requests
from django_delayq.store.store import RedisStore
from tests.client.hooks import request_id
from tests.faults import unreachable
from tests.hands import Hands
from tests.integrations.api.conftest import Caller, Callers

PROBLEM = "application/problem+json"


def dead_letters(caller: Caller, count: int, hands: Hands) -> list[int]:
    for n in range(count):
        caller.send(args=[n])
        caller.post("/leases/nack", lease=caller.next()["lease"], dead=True, error="no")
    return [row.pk for row in hands.archive()]


@pytest.mark.parametrize(
    ("method", "address", "status"),
    [("GET", "/nothing", 404), ("GET", "/topics/a/b/c", 404), ("DELETE", "/topics", 405),
     ("GET", "/consume", 405), ("PUT", "/topics/mail/messages", 405), ("GET", "/", 404)],
)  # fmt: skip
def test_every_error_is_a_problem_document(
    caller: Caller, method: str, address: str, status: int
) -> None:
    answer = caller.client.generic(method, f"/delayq/api{address}")
    assert (answer.status_code, answer["Content-Type"]) == (status, PROBLEM)
    assert answer.json()["status"] == status
    assert answer["Cache-Control"] == "no-store"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in answer


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"HTTP_CONTENT_ENCODING": "gzip"}, 415),
        ({"HTTP_TRANSFER_ENCODING": "chunked"}, 411),
        ({"CONTENT_LENGTH": "1000000000"}, 413),
        ({"CONTENT_LENGTH": "-1"}, 413),
    ],
)
def test_a_body_of_another_kind_is_not_read(
    caller: Caller, headers: dict[str, Any], status: int
) -> None:
    given = {"content_type": "application/json", **headers}
    answer = caller.client.post("/delayq/api/topics/mail/messages", b"{}", **given)
    assert (answer.status_code, answer["Content-Type"]) == (status, PROBLEM)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"[" * 100_000, 400),
        (b"\xff", 400),
        (b'{"topics": ["mail"], "count": NaN}', 400),
        (b'{"topics": ["mail"], "count": "1"}', 422),
        (b'{"topics": ["mail"], "count": true}', 422),
        (b'{"topics": ["mail"], "wait": 21}', 422),
        (b'{"topics": ["ma il"]}', 422),
        (b'{"topics": ["mail"], "more": 1}', 422),
        (b'{"topics": ["mail"], "count": 1e999}', 400),
        (b'{"topics": ["mail"], "count": 1, "count": 2}', 400),
        (b'{"topics": ["mail"], "count": 1, "\\u0063ount": 1}', 400),
        (b"[]", 422),
    ],
)
def test_a_body_that_does_not_fit_is_refused(caller: Caller, body: bytes, status: int) -> None:
    answer = caller.post("/consume", body)
    assert (answer.status_code, answer["Content-Type"]) == (status, PROBLEM)


def test_a_refusal_names_the_field(caller: Caller) -> None:
    answer = caller.post("/leases/ack", delay=1)
    at = [each["at"] for each in answer.json()["errors"]]
    assert sorted(at) == ["body.delay", "body.lease"]
    assert answer.json()["detail"].startswith("body.")


@pytest.mark.parametrize(
    "name", ["..", "%2e%2e", ".", "a%7Bb%7D", "%2A", "a%0D%0AFLUSHALL", "a" * 65]
)
def test_a_name_that_is_no_topic_is_refused(caller: Caller, name: str, api: RedisStore) -> None:
    refused = [
        caller.post(f"/topics/{name}/messages").status_code,
        caller.post(f"/topics/{name}/messages/batch", b"{}").status_code,
        caller.post(f"/topics/{name}/pause", reason="x").status_code,
        caller.post("/consume", topics=[unquote(name)]).status_code,
        caller.get(f"/topics/{name}").status_code,
    ]
    assert refused == [422] * 5
    assert not api.topics.used_partitions()


def test_a_call_that_cannot_be_read_is_the_callers_fault(caller: Caller) -> None:
    many = "&".join(["limit=1"] * 1001)
    refused = [caller.client.get(f"/delayq/api/topics/mail/messages?{many}")]

    class Gone(io.BytesIO):
        def read(self, *args: Any) -> bytes:
            raise OSError("the caller has gone")

    for address in ("/topics/mail/messages", "/topics/mail/cancel"):
        given = {"wsgi.input": Gone(), "CONTENT_LENGTH": "2", "CONTENT_TYPE": "application/json"}
        refused.append(caller.client.generic("POST", f"/delayq/api{address}", b"{}", **given))
    assert [(each.status_code, each["Content-Type"]) for each in refused] == [(400, PROBLEM)] * 3


def test_a_body_beyond_the_limit_of_the_project_is_refused(caller: Caller, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    assert caller.post("/topics/mail/messages", args=["x" * 100]).status_code == 413


def test_arguments_beyond_the_body_limit_are_refused(caller: Caller) -> None:
    answer = caller.post("/topics/mail/messages", args=["x" * 70_000])
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:django-delayq:body-too-large")


def test_what_redis_does_not_answer_is_a_problem(
    caller: Caller, api: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller.send()
    monkeypatch.setattr(type(api.client), "read_all", away)
    answer = caller.get("/topics")
    assert (answer.status_code, answer["Retry-After"]) == (503, "1")
    assert b"secret-host" not in answer.content


def test_health_needs_no_token(api: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Client().get("/delayq/api/health")
    assert (answer.status_code, answer.json()) == (200, {"redis": True, "database": True})


def test_the_first_answer_comes_again_under_the_same_idempotency_key(caller: Caller) -> None:
    headers = {"Idempotency-Key": "a"}
    first = caller.post("/topics/mail/messages", _headers=headers, args=[1])
    again = caller.post("/topics/mail/messages", _headers=headers, args=[1])
    assert (again.status_code, again.content) == (201, first.content)
    assert again["Idempotent-Replayed"] == "true"
    assert caller.get("/topics/mail").json()["backlog"] == 1


def test_another_body_under_the_same_idempotency_key_is_refused(caller: Caller) -> None:
    headers = {"Idempotency-Key": "a"}
    caller.post("/topics/mail/messages", _headers=headers, args=[1])
    for topic, args in (("mail", [2]), ("acme.b", [1])):
        answer = caller.post(f"/topics/{topic}/messages", _headers=headers, args=args)
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:django-delayq:key-reused")


@pytest.mark.parametrize("key", ["", "a b", "\u00e9", "x" * 256])
def test_an_idempotency_key_has_visible_characters(caller: Caller, key: str) -> None:
    answer = caller.post("/topics/mail/messages", _headers={"Idempotency-Key": key})
    assert answer.status_code == 400


def test_the_idempotency_key_of_another_caller_is_another_key(
    caller: Caller, caller_with: Callers
) -> None:
    for by in (caller, caller_with()):
        by.post("/topics/mail/messages", _headers={"Idempotency-Key": "a"}, args=[by.token[-3:]])
    assert caller.get("/topics/mail").json()["backlog"] == 2


def test_of_many_calls_at_once_with_one_idempotency_key_one_is_carried_out(
    caller: Caller,
) -> None:
    statuses: list[int] = []

    def send() -> None:
        answer = caller.post("/topics/mail/messages", _headers={"Idempotency-Key": "a"})
        statuses.append(answer.status_code)
        connections.close_all()

    threads = [threading.Thread(target=send) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(statuses) == 20
    assert set(statuses) <= {201, 409}
    assert caller.get("/topics/mail").json()["backlog"] == 1


@contextmanager
def lost_answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Redis stores what is sent, and its answer does not come."""
    from django_delayq.integrations.api import sending

    def lost(chunks: Any) -> Any:
        enqueue_built(chunks)
        raise EnqueueUnknown("The answer of Redis was lost.", ids=["1"])

    with monkeypatch.context() as patch:
        patch.setattr(sending, "enqueue_built", lost)
        yield


def away(*args: object) -> None:
    raise StoreUnavailable("Redis at redis://user@secret-host is away")


def test_a_call_that_failed_may_be_made_again_under_its_idempotency_key(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_delayq.integrations.api import sending

    with monkeypatch.context() as patch:
        patch.setattr(sending, "enqueue_built", away)
        headers = {"Idempotency-Key": "a"}
        assert caller.post("/topics/mail/messages", _headers=headers).status_code == 503
    assert caller.post("/topics/mail/messages", _headers=headers).status_code == 201


def test_an_answer_that_cannot_be_kept_is_given_all_the_same(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"Idempotency-Key": "a"}
    with monkeypatch.context() as patch:
        patch.setattr(Requests, "answer", away)
        first = caller.post("/topics/mail/messages", _headers=headers, args=[1])
    assert first.status_code == 201
    again = caller.post("/topics/mail/messages", _headers=headers, args=[1])
    assert (again.status_code, again.json()["type"]) == (409, "urn:django-delayq:in-progress")


@pytest.mark.parametrize("durable", [False, True])
def test_what_was_stored_unseen_is_not_stored_again_under_its_idempotency_key(
    caller: Caller, hands: Hands, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    one = json.dumps({"args": [1], "durable": durable}).encode()
    calls = (
        ("/topics/mail/messages", one),
        ("/topics/mail/messages/batch", b"\n".join([one] * 3)),
    )
    for number, (address, body) in enumerate(calls):
        headers = {"Idempotency-Key": f"{number}"}
        with lost_answer(monkeypatch):
            assert caller.post(address, body, headers).status_code == 503
        assert caller.post(address, body, headers).status_code < 300
    hands.relay()
    assert caller.get("/topics/mail").json()["backlog"] == 1 + 3


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("runs", [False, True])
def test_hooks_and_a_run_do_not_make_another_message_of_a_repeated_call(
    caller: Caller,
    hands: Hands,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    durable: bool,
    runs: bool,
) -> None:
    hook = "tests.client.hooks.with_request_id"
    settings.DELAYQ = {**settings.DELAYQ, "ENQUEUE_HOOKS": [hook]}
    line = {"args": [1], "durable": durable, "on_duplicate": "raise"}
    body, headers = json.dumps(line).encode(), {"Idempotency-Key": "a"}
    token = request_id.set("first")
    with lost_answer(monkeypatch):
        assert caller.post("/topics/mail/messages", body, headers).status_code == 503
    hands.relay()
    message = caller.next() if runs else None
    if message is not None:
        assert message["headers"]["request-id"] == "first"
        caller.post("/leases/ack", lease=message["lease"])
        hands.archive()
    request_id.set("second")
    again = caller.post("/topics/mail/messages", body, headers)
    request_id.reset(token)
    assert (again.status_code, again.json()["outcome"]) == (201, "stored")
    assert message is None or again.json()["id"] == message["id"]
    hands.relay()
    assert caller.get("/topics/mail").json()["backlog"] == (0 if runs else 1)


@pytest.mark.parametrize(
    "options",
    [
        {"key": "k"},
        {"key": "k", "on_duplicate": "keep"},
        {"key": "k", "on_duplicate": "replace"},
        {"key": "k", "window": 60},
        {"id": new_id().hex()},
    ],
)
@pytest.mark.parametrize("end", ["waits", "runs", "acked", "cancelled"])
@pytest.mark.parametrize("address", ["/topics/mail/messages", "/topics/mail/messages/batch"])
def test_a_message_with_a_key_of_its_own_is_stored_once_under_an_idempotency_key(
    caller: Caller,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    end: str,
    address: str,
) -> None:
    body = json.dumps({"args": [1], **options}).encode()
    headers = {"Idempotency-Key": "a"}
    with lost_answer(monkeypatch):
        assert caller.post(address, body, headers).status_code == 503
    if end in ("runs", "acked"):
        message = caller.next()
        if end == "acked":
            caller.post("/leases/ack", lease=message["lease"])
    if end == "cancelled":
        named = {name: options[name] for name in ("key", "id") if name in options}
        assert caller.post("/topics/mail/cancel", **named).status_code == 200
    again = caller.post(address, body, headers)
    assert again.status_code in (200, 201), again.content
    (sent,) = again.json().get("messages", [again.json()])
    assert sent["outcome"] == "stored"
    sizes = caller.get("/topics/mail").json()
    assert (sizes["backlog"], sizes["leased"]) == (end == "waits", end == "runs")


def test_another_body_is_refused_also_when_the_first_call_has_no_answer(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"Idempotency-Key": "a"}
    with lost_answer(monkeypatch):
        caller.post("/topics/mail/messages", _headers=headers, args=[1])
    other = caller.post("/topics/mail/messages", _headers=headers, args=[2])
    assert (other.status_code, other.json()["type"]) == (422, "urn:django-delayq:key-reused")
    assert caller.post("/topics/mail/messages", _headers=headers, args=[1]).status_code == 201


def test_a_call_that_was_refused_leaves_its_idempotency_key_free(caller: Caller) -> None:
    headers = {"Idempotency-Key": "a"}
    wrong = caller.post("/topics/mail/messages", _headers=headers, key="")
    assert wrong.json()["type"] == "urn:django-delayq:invalid"
    assert caller.post("/topics/mail/messages", _headers=headers, key="k").status_code == 201
    other = caller.post("/topics/mail/messages", _headers={"Idempotency-Key": "b"}, key="k")
    assert other.json()["type"] == "urn:django-delayq:duplicate"
    headers = {"Idempotency-Key": "b"}
    assert caller.post("/topics/mail/messages", _headers=headers, key="l").status_code == 201


def test_a_call_with_an_idempotency_key_does_not_begin_while_redis_is_away(
    caller: Caller, api: RedisStore
) -> None:
    caller.send()
    headers = {"Idempotency-Key": "a"}
    with unreachable():
        answers = [caller.post("/topics/mail/messages", _headers=headers) for _ in range(2)]
    assert [answer.json()["type"] for answer in answers] == ["urn:django-delayq:unavailable"] * 2
    assert not OutboxMessage.objects.exists()


def test_dead_letters_are_listed_replayed_and_discarded(caller: Caller, hands: Hands) -> None:
    pks = dead_letters(caller, 4, hands)
    page = caller.get("/topics/mail/dead-letters", limit=3).json()
    assert [letter["archived_id"] for letter in page["messages"]] == pks[:0:-1]
    rest = caller.get("/topics/mail/dead-letters", limit=3, cursor=page["cursor"]).json()
    assert [letter["args"] for letter in rest["messages"]] == [[0]]
    answer = caller.post("/topics/mail/dead-letters/replay", ids=pks[:1])
    assert answer.json() == {"count": 1, "skipped": {}}
    answer = caller.post("/topics/mail/dead-letters/discard", limit=1, reason="old")
    assert answer.json()["count"] == 1
    left = caller.get("/topics/mail/dead-letters").json()["messages"]
    assert [letter["archived_id"] for letter in left] == pks[:1:-1]
    hands.relay()
    replayed = caller.next()
    assert (replayed["args"], replayed["task"], replayed["attempt"]) == ([0], "message", 1)
    caller.post("/leases/ack", lease=replayed["lease"])
    assert hands.archive()[-1].replay_of == pks[0]


def test_a_message_is_found_wherever_it_is(caller: Caller, hands: Hands) -> None:
    message_id = caller.send(key="order:1")
    assert caller.get("/topics/mail/message", id=message_id).json()["state"] == "ready"
    lease = caller.next()["lease"]
    assert caller.get("/topics/mail/message", key="order:1").json()["state"] == "leased"
    caller.post("/leases/ack", lease=lease)
    assert caller.get("/topics/mail/message", id=message_id).json()["state"] == "acked"
    hands.archive()
    found = caller.get("/topics/mail/message", id=message_id).json()
    assert (found["state"], found["key"]) == ("acked", "order:1")


def test_waiting_messages_come_in_pages(caller: Caller) -> None:
    for n in range(5):
        caller.send(args=[n], delay=60 + n)
    first = caller.get("/topics/mail/messages", limit=3).json()
    second = caller.get("/topics/mail/messages", limit=3, cursor=first["cursor"]).json()
    found = [message["args"][0] for message in first["messages"] + second["messages"]]
    assert found == list(range(5))


def test_reading_a_topic_that_is_not_there_makes_none(caller: Caller, api: RedisStore) -> None:
    for address in ("", "/messages", "/message?key=a", "/dead-letters"):
        assert caller.client.get(f"/delayq/api/topics/acme.x{address}").status_code in (200, 404)
    assert "acme.x" not in api.topics.names()


def test_the_openapi_document_has_each_call_and_its_errors(api: RedisStore) -> None:
    document = json.loads(Client().get("/delayq/api/openapi.json").content)
    assert len(document["paths"]) == 19
    for operations in document["paths"].values():
        for operation in operations.values():
            assert PROBLEM in operation["responses"]["default"]["content"]
    assert ninja_api.title == "django-delayq"
