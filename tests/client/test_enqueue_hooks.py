"""DELAYQ["ENQUEUE_HOOKS"]: functions that give headers to each new message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction

from django_delayq import InvalidMessage, list_messages
from django_delayq.core.exceptions import ConfigurationError
from django_delayq.store.store import RedisStore
from tests.app.tasks import act, record
from tests.client.hooks import called, request_id
from tests.sending import with_transactions

pytestmark = with_transactions
Hooked = Callable[..., None]


@pytest.fixture
def hooked(settings: Any, delayq: RedisStore) -> Iterator[Hooked]:
    """Gives the project these hooks."""
    called.clear()

    def give(*names: str) -> None:
        paths = [f"tests.client.hooks.{name}" for name in names]
        settings.DELAYQ = {**settings.DELAYQ, "ENQUEUE_HOOKS": paths}

    token = request_id.set("r-1")
    yield give
    request_id.reset(token)


def headers(topic: str = "default") -> list[dict[str, str]]:
    return [dict(message.headers) for message in list_messages(topic).messages]


def test_each_new_message_has_the_headers_of_the_hooks_and_later_ones_win(hooked: Hooked) -> None:
    hooked("with_request_id", "silent", "second")
    record.enqueue(1)
    record.enqueue_many([(2,), (3,)])
    assert headers() == [{"request-id": "r-1", "by": "second"}] * 3
    assert called == [("default", record.name)] * 2


def test_the_headers_of_using_win(hooked: Hooked) -> None:
    hooked("with_request_id")
    record.using(headers={"by": "hand", "note": "n"}).enqueue(1)
    assert headers() == [{"request-id": "r-1", "by": "hand", "note": "n"}]


def test_calls_with_a_key_or_a_due_time_of_their_own_have_them_too(hooked: Hooked) -> None:
    hooked("with_request_id")
    calls = [record.prepare(n).using(key=f"k{n}", delay=60) for n in range(2)]
    handles = record.enqueue_many([*calls, (2,)])
    assert [handle.key for handle in handles] == ["k0", "k1", None]
    assert [found["request-id"] for found in headers()] == ["r-1"] * 3


def test_each_enqueue_asks_anew(hooked: Hooked) -> None:
    hooked("with_request_id")
    for name in ("r-2", "r-3"):
        request_id.set(name)
        record.enqueue(name)
    assert sorted(found["request-id"] for found in headers()) == ["r-2", "r-3"]


@pytest.mark.parametrize("durable", [False, True])
def test_the_hook_is_asked_by_the_caller_and_not_at_the_commit(
    hooked: Hooked, durable: bool
) -> None:
    hooked("with_request_id")
    with transaction.atomic():
        handle = record.using(durable=durable).enqueue(1)
        request_id.set("later")
    message = record.get(id=handle.id)
    assert message is not None and message.headers["request-id"] == "r-1"


def test_an_enqueue_of_several_tasks_asks_for_each_of_them(hooked: Hooked) -> None:
    hooked("with_request_id")
    record.enqueue_many([record.prepare(1), act.prepare("return"), record.prepare(2)])
    assert sorted(set(called)) == sorted({("default", record.name), ("modes", act.name)})


def test_what_are_no_headers_is_refused_and_nothing_is_sent(hooked: Hooked) -> None:
    hooked("wrong")
    with pytest.raises(InvalidMessage, match=r"hooks\.wrong of DELAYQ.*mapping of str to str"):
        record.enqueue(1)
    assert headers() == []


def test_error_of_a_hook_is_the_callers(hooked: Hooked) -> None:
    hooked("fails")
    with pytest.raises(LookupError, match="no request"):
        record.enqueue(1)
    assert headers() == []


def test_hook_that_is_missing_is_a_wrong_setting(hooked: Hooked) -> None:
    hooked("missing")
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        record.enqueue(1)
