"""Who may do what: tokens, rights, topics and tenants."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_delayq.core.exceptions import InvalidMessage, OutcomeUnknown
from django_delayq.integrations.api.bearer import bearer
from django_delayq.management.cli import ShellUser
from django_delayq.models import ApiToken, OperatorAction
from django_delayq.operators.api_tokens import TokenOptions, create_token, revoke_token
from django_delayq.store.requests import Requests
from django_delayq.store.store import RedisStore
from tests.faults import unreachable
from tests.hands import Hands
from tests.integrations.api.conftest import ALL, Caller, Callers

#: Each call, the right that it needs, and whether its topic is in the address.
CALLS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "enqueue": ("send", "POST", "/topics/{}/messages", {}),
    "batch": ("send", "POST", "/topics/{}/messages/batch", {}),
    "cancel": ("send", "POST", "/topics/{}/cancel", {"key": "k"}),
    "reschedule": ("send", "POST", "/topics/{}/reschedule", {"key": "k", "delay": 1}),
    "consume": ("consume", "POST", "/consume", {"topics": ["{}"]}),
    "topic": ("inspect", "GET", "/topics/{}", {}),
    "peek": ("inspect", "GET", "/topics/{}/messages", {}),
    "get": ("inspect", "GET", "/topics/{}/message", {"key": "k"}),
    "dead letters": ("inspect", "GET", "/topics/{}/dead-letters", {}),
    "pause": ("operate", "POST", "/topics/{}/pause", {"reason": "r"}),
    "resume": ("operate", "POST", "/topics/{}/resume", {}),
    "replay": ("operate", "POST", "/topics/{}/dead-letters/replay", {}),
    "discard": ("operate", "POST", "/topics/{}/dead-letters/discard", {"reason": "r"}),
}


def call(caller: Caller, name: str, topic: str) -> Any:
    _, method, address, fields = CALLS[name]
    fields = {field: [topic] if field == "topics" else value for field, value in fields.items()}
    if method == "GET":
        return caller.get(address.format(topic), **fields)
    body = b"{}" if name == "batch" else None
    return caller.post(address.format(topic), body, **fields)


@pytest.mark.parametrize("right", ALL)
@pytest.mark.parametrize("name", CALLS)
def test_a_right_allows_its_own_calls_in_its_own_topics(
    caller: Caller, caller_with: Callers, name: str, right: str
) -> None:
    caller.send("mail", key="k", delay=3600)
    caller.send("acme.b", key="k", delay=3600)
    by = caller_with(right, topics=["mail"])
    wanted = CALLS[name][0]
    assert (call(by, name, "mail").status_code < 300) is (right == wanted)
    for topic in ("acme.b", "no-such-topic"):  # the same words: nobody learns which topics exist
        refused = call(by, name, topic)
        assert (refused.status_code, refused.json()["detail"]) == (
            403,
            f"This token may not {wanted} in this topic.",
        )


@pytest.mark.parametrize("name", CALLS)
def test_a_tenant_never_reaches_the_topics_of_another(
    caller: Caller, caller_with: Callers, name: str
) -> None:
    acme, umbrella = caller_with(namespace="acme."), caller_with(namespace="umbrella.")
    acme.send("b", key="k", delay=3600)
    for topic in ("acme.b", "..acme.b", "b"):
        answer = call(umbrella, name, topic)
        assert b"acme" not in answer.content.replace(topic.encode(), b"")
    figures = caller.get("/topics/acme.b").json()
    assert (figures["delayed"], figures["paused"]) == (1, None)


def test_a_tenant_does_not_see_its_namespace(caller_with: Callers) -> None:
    acme, umbrella = caller_with(namespace="acme."), caller_with(namespace="umbrella.")
    umbrella.send("hidden")
    acme.send("b", key="k")
    assert acme.next("b")["topic"] == "b"
    listed = acme.get("/topics").json()["topics"]
    assert [figures["topic"] for figures in listed] == ["b"]
    assert acme.get("/stats").json()["topics"] == 1
    for answer in (
        acme.get("/topics/b/message", key="k"),
        acme.post("/topics/b/messages", key="k"),
        acme.post("/topics/b/messages", task="tests.app.tasks.record"),
        acme.get("/topics/nothing"),
    ):
        assert b"acme" not in answer.content
        assert b"umbrella" not in answer.content


def test_a_lease_of_another_tenant_is_worth_nothing(caller_with: Callers) -> None:
    acme, umbrella = caller_with(namespace="acme."), caller_with(namespace="umbrella.")
    acme.send("b")
    lease = acme.next("b")["lease"]
    assert umbrella.post("/leases/ack", lease=lease).status_code == 409
    assert acme.post("/leases/ack", lease=lease).status_code == 200


def test_dead_letters_of_another_topic_cannot_be_named(
    caller: Caller, caller_with: Callers, hands: Hands
) -> None:
    caller.send("acme.b")
    caller.post("/leases/nack", lease=caller.next("acme.b")["lease"], dead=True)
    (row,) = hands.archive()
    mine = caller_with(topics=["mail"])
    mine.send()
    answer = mine.post("/topics/mail/dead-letters/replay", ids=[row.pk])
    assert answer.json() == {"count": 0, "skipped": {}}
    assert mine.get("/topics/mail/message", id=row.message_id.hex).status_code == 404


@pytest.mark.parametrize(
    "header",
    ["", "Basic dXNlcjpwYXNz", "Bearer", "Bearer nothing", "Bearer dq_0123456789ab_" + "x" * 43,
     "Bearer dq_0123456789ab_\u00e9", "Bearer " + "dq_" * 5000, "Bearer dq_%_x"],
)  # fmt: skip
def test_no_token_and_a_wrong_one_are_refused(api: RedisStore, header: str) -> None:
    answer = Client().get("/delayq/api/topics", headers={"Authorization": header})
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Bearer"
    assert answer["Content-Type"] == "application/problem+json"


def test_a_token_in_the_address_is_no_token(caller: Caller) -> None:
    answer = Client().get(
        "/delayq/api/topics", {"token": caller.token, "access_token": caller.token}
    )
    assert answer.status_code == 401


def test_a_token_with_another_secret_is_refused(caller: Caller) -> None:
    assert caller.get("/topics").status_code == 200
    assert Caller(caller.token[:-1] + "-").get("/topics").status_code == 401


def test_a_revoked_token_ends_at_the_latest_when_the_process_reads_it_again(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert caller.get("/topics").status_code == 200
    revoke_token(ShellUser("tests"), caller.public_id, reason="lost")
    assert caller.get("/topics").status_code == 200
    monkeypatch.setattr("django_delayq.integrations.api.bearer.REMEMBERED", 0.0)
    assert caller.get("/topics").status_code == 401


def test_a_token_ends_at_its_time(caller_with: Callers) -> None:
    soon = caller_with(expires_at=timezone.now() + timedelta(hours=1))
    assert soon.get("/topics").status_code == 200
    ApiToken.objects.update(expires_at=timezone.now())
    bearer.forget()
    assert soon.get("/topics").status_code == 401


def test_a_token_is_read_once_in_a_while(caller: Caller) -> None:
    caller.send()
    with CaptureQueriesContext(connection) as queries:
        caller.send()
    assert len(queries) == 0
    assert ApiToken.objects.get().last_used_at is not None


def test_calls_beyond_the_rate_of_a_token_wait(caller_with: Callers) -> None:
    slow = caller_with(rate="3/h")
    statuses = [slow.get("/topics").status_code for _ in range(5)]
    assert statuses == [200, 200, 200, 429, 429]
    assert 0 < int(slow.get("/topics")["Retry-After"]) <= 3600
    assert caller_with().get("/topics").status_code == 200


def test_calls_at_the_same_time_share_the_rate(caller_with: Callers) -> None:
    slow, statuses = caller_with(rate="10/h"), list[int]()

    def call_five_times() -> None:
        statuses.extend(slow.get("/topics").status_code for _ in range(5))
        connections.close_all()

    threads = [threading.Thread(target=call_five_times) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(statuses) == {200: 10, 429: 30}


def test_while_redis_is_away_only_one_call_waits_to_be_counted(
    caller_with: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, asked = caller_with(rate="100/h"), list[str]()

    def count(self: Requests, token: str, window: int, seconds: int) -> int:
        asked.append(token)
        raise OutcomeUnknown("Redis does not answer")

    caller.send()
    monkeypatch.setattr(Requests, "count", count)
    with unreachable():
        for _ in range(3):
            assert caller.post("/topics/mail/messages").json()["outcome"] == "outbox"
    assert len(asked) == 1


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_who_waits_for_a_message_gets_none_when_the_token_ends(
    caller: Caller, caller_with: Callers, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr("django_delayq.integrations.api.bearer.REMEMBERED", 0.0)
    waiting, answers = caller_with(), list[Any]()

    def wait() -> None:
        answers.append(waiting.post("/consume", topics=["mail"], wait=10))
        connections.close_all()

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    if end == "revoked":
        revoke_token(ShellUser("tests"), waiting.public_id, reason="lost")
    else:
        rows = ApiToken.objects.filter(public_id=waiting.public_id)
        rows.update(expires_at=timezone.now())
    caller.send()
    thread.join(15)
    assert [answer.status_code for answer in answers] == [401]
    assert caller.get("/topics/mail").json()["backlog"] == 1


def test_the_table_has_no_token_and_neither_has_the_log(
    caller: Caller, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    settings.DEBUG = True
    secret = caller.token.rpartition("_")[2]
    with caplog.at_level(logging.DEBUG):
        caller.send()
        caller.get("/nothing")
        Client(headers={"Authorization": f"Token {caller.token}"}).get("/delayq/api/topics")
        Caller(f"{caller.token}x").get("/topics")
    assert secret not in caplog.text
    row = ApiToken.objects.get()
    assert all(secret not in str(value) for value in vars(row).values())
    assert all(secret not in str(vars(action)) for action in OperatorAction.objects.all())


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "two words"},
        {"rights": []},
        {"rights": ["everything"]},
        {"topics": []},
        {"topics": ["a b"]},
        {"namespace": "acme"},
        {"namespace": "acme.eu."},  # the tenant acme. would reach it
        {"namespace": "acme-"},
        {"rate": "fast"},
        {"expires_at": timezone.now() - timedelta(days=1)},
    ],
)
def test_a_token_that_cannot_be_meant_is_not_made(
    transactional_db: None, wrong: dict[str, Any]
) -> None:
    with pytest.raises(InvalidMessage):
        create_token(ShellUser("tests"), TokenOptions(**{"name": "a", "rights": ["send"], **wrong}))
    assert not ApiToken.objects.exists()


def test_what_callers_change_is_on_record(caller: Caller) -> None:
    caller.send()
    caller.post("/topics/mail/pause", reason="deploy")
    caller.post("/topics/mail/resume")
    done = OperatorAction.objects.filter(operator="api:program").values_list("action", flat=True)
    assert list(done) == ["pause", "resume"]
