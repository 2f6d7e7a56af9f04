"""How a batch task is declared, and what its messages take."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from django_delayq import Batch, delayed_task
from django_delayq.core.exceptions import InvalidArguments, InvalidMessage, InvalidTask
from django_delayq.tasks import registry
from django_delayq.testing import fake_batch
from tests.app.batch_tasks import gather, gather_few
from tests.app.tasks import record


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "by_name", dict(registry.by_name))
    monkeypatch.setattr(registry, "by_code", dict(registry.by_code))


def declare(func: Any, **options: Any) -> Any:
    return delayed_task(name=f"tests.{uuid4().hex}", **({"batch": 5} | options))(func)


def pairs(messages: Batch[UUID, str]) -> list[Any]:
    return [message.args for message in messages]


def anything(messages: Batch) -> list[Any]:  # type: ignore[type-arg]
    return [(message.args, dict(message.kwargs)) for message in messages]


def no_batch(number: int) -> None: ...


def two(messages: Batch[int], more: int) -> None: ...


def test_arguments_arrive_by_their_annotations() -> None:
    task, identity = declare(pairs), uuid4()
    assert task(fake_batch(task, (identity, "x"), (str(identity), "y"))) == [
        (identity, "x"),
        (identity, "y"),
    ]


@pytest.mark.parametrize("args", [(), ("x", 1), (1, 2, 3)])
def test_what_does_not_fit_is_refused_at_enqueue(args: Any) -> None:
    with pytest.raises(InvalidArguments):
        declare(pairs).definition.stored(args, {})


def test_batch_that_does_not_say_what_it_takes_takes_all() -> None:
    task = declare(anything)
    assert task(fake_batch(task, (1, "x"), {"a": 2})) == [((1, "x"), {}), ((), {"a": 2})]


def test_key_is_made_of_the_arguments() -> None:
    assert declare(pairs, key="order:{arg2}").key_for(str(uuid4()), "7") == "order:7"


@pytest.mark.parametrize("func", [no_batch, two])
def test_function_that_takes_no_batch_is_refused(func: Any) -> None:
    with pytest.raises(InvalidTask, match="its function takes one Batch"):
        declare(func)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"batch": 1}, "from 2 to 1,000"),
        ({"batch": 1001}, "from 2 to 1,000"),
        ({"batch": True}, "from 2 to 1,000"),
        ({"linger": 61}, "from 0 to 60 seconds"),
        ({"linger": -1}, "delay|linger"),
        ({"batch": None, "linger": 1}, "give batch too"),
        ({"isolate": True}, "isolate"),
        ({"rate": "1/s"}, "rate, concurrency or limit_by"),
        ({"concurrency": 1}, "rate, concurrency or limit_by"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: Any, why: str) -> None:
    with pytest.raises(InvalidMessage, match=why):
        declare(pairs, **options)


def test_recurring_batch_is_refused() -> None:
    with pytest.raises(InvalidTask, match="recurring"):
        declare(pairs, every=60)


def test_copy_of_a_batch_task_is_one() -> None:
    assert type(gather.using(delay=5)) is type(gather)


def test_fake_batch_shows_what_the_function_has_said() -> None:
    batch = fake_batch(gather, (1,), (2,), (3,), attempt=2)
    batch[1].reject("no such order")
    assert [str(message.verdict or "") for message in batch] == ["", "no such order", ""]
    assert {message.attempt for message in batch} == {2}
    assert len(batch[1:]) == 2
    with pytest.raises(InvalidMessage, match="keeps no results"):
        batch[0].keep_result(1)
    with pytest.raises(InvalidMessage):
        batch[0].snooze(-1)


def test_result_that_is_no_json_is_a_dead_letter() -> None:
    batch = fake_batch(gather_few, (1,))
    batch[0].keep_result(object())
    assert "no JSON" in str(batch[0].verdict)


def test_fake_batch_of_another_task_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="no batch task"):
        fake_batch(record, (1,))
