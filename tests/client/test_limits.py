"""Tasks with limits: what a message says of its own, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from django_delayq import delayed_task
from django_delayq.checks import check_limits
from django_delayq.client.changes import edit
from django_delayq.client.handle import Handle
from django_delayq.core.conf import get_settings
from django_delayq.core.exceptions import InvalidMessage, InvalidTask
from django_delayq.core.message import LIMITED, Record, limit_id
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from tests.sending import with_transactions

pytestmark = with_transactions


def bill(customer_id: int, amount: int = 1, note: str = "") -> None:
    """A task of a shop."""


@pytest.fixture
def per_customer(declared: Any, delayq: RedisStore) -> Any:
    return delayed_task(
        name="bill", topic="bills", limit_by="customer:{customer_id}", concurrency=1
    )(bill)


def record_of(store: RedisStore, handle: Handle) -> Record:
    (found,) = store.queries.find(Partition(handle.topic, 0), [handle.identity])
    assert found
    return Record.decode(found.record)


def test_a_message_names_its_limit_and_keeps_its_arguments(
    per_customer: Any, delayq: RedisStore
) -> None:
    handle = per_customer.using(delay=60).enqueue(7, amount=3)
    found = record_of(delayq, handle)
    assert (found.limit, bool(found.flags & LIMITED)) == (limit_id("customer:7"), True)
    message = handle.get()
    assert (message.args, message.kwargs) == ([7], {"amount": 3})


def test_a_long_message_names_its_limit_too(per_customer: Any, delayq: RedisStore) -> None:
    handle = per_customer.using(delay=60).enqueue(7, 1, "x" * 5_000)
    assert record_of(delayq, handle).limit == limit_id("customer:7")
    assert handle.get().args == [7, 1, "x" * 5_000]


def test_a_default_counts_as_an_argument(declared: Any, delayq: RedisStore) -> None:
    task = delayed_task(name="bill", topic="bills", limit_by="{amount}", rate="5/s")(bill)
    assert record_of(delayq, task.using(delay=60).enqueue(7)).limit == limit_id("1")


def test_without_a_key_the_task_is_the_limit(declared: Any, delayq: RedisStore) -> None:
    task = delayed_task(name="bill", topic="bills", rate="5/s")(bill)
    assert record_of(delayq, task.using(delay=60).enqueue(7)).limit == limit_id("bill")


def test_a_task_without_limits_has_none(declared: Any, delayq: RedisStore) -> None:
    task = delayed_task(name="bill", topic="bills", too_late=60)(bill)
    found = record_of(delayq, task.using(delay=60).enqueue(7))
    assert (found.limit, found.flags & LIMITED) == (b"", 0)


def test_other_arguments_are_another_limit(per_customer: Any, delayq: RedisStore) -> None:
    handle = per_customer.using(delay=60).enqueue(7)
    edit("bills", handle.identity, args=[8], kwargs={})
    assert record_of(delayq, handle).limit == limit_id("customer:8")
    assert handle.get().args == [8]


def test_a_limit_of_an_argument_that_is_not_there_is_refused(declared: Any) -> None:
    with pytest.raises(InvalidTask, match="has no argument customer, which its limit_by names"):
        delayed_task(name="bill", limit_by="{customer}", rate="5/s")(bill)


def test_arguments_that_give_no_name_are_refused(declared: Any, delayq: RedisStore) -> None:
    task = delayed_task(name="bill", topic="bills", limit_by="{note[a]}", rate="5/s")(bill)
    with pytest.raises(InvalidMessage, match="cannot be made of these arguments: TypeError"):
        task.enqueue(7)


def test_another_topic_is_refused(per_customer: Any, delayq: RedisStore) -> None:
    with pytest.raises(InvalidMessage, match="has a limit, which counts in its own topic 'bills'"):
        per_customer.using(topic="default").enqueue(7)


def test_several_partitions_are_refused_and_found_by_the_checks(
    per_customer: Any, settings: Any, delayq: RedisStore
) -> None:
    assert check_limits() == []
    several = {**settings.DELAYQ, "TOPICS": {"bills": {"partitions": 2}}}
    with override_settings(DELAYQ=several):
        assert get_settings().topics["bills"].partitions == 2
        (found,) = check_limits()
        assert (found.id, "its topic 'bills' has 2 partitions" in found.msg) == (
            "delayq.E005",
            True,
        )
        with pytest.raises(InvalidMessage, match="its topic 'bills' has 2 partitions"):
            per_customer.enqueue(7)
