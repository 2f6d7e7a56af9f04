"""The queue under test runs batch tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_delayq.testing import QueueUnderTest
from tests.app.batch_tasks import calls, count_many, gather, gather_async, then
from tests.app.models import Counter
from tests.app.tasks import record, seen

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    calls.clear()
    then.clear()
    seen.clear()
    yield
    then.clear()


def test_all_that_is_due_of_a_task_is_one_call(delay_queue: QueueUnderTest) -> None:
    gather.enqueue_many([(1,), (2,)])
    record.enqueue("beside them")
    gather.using(delay=60).enqueue(3)
    runs = delay_queue.run_due()
    assert [sorted(call) for call in calls] == [[1, 2]]
    assert runs.of(gather).outcomes == ["acked", "acked"]
    assert runs.of(record).outcomes == ["acked"]
    delay_queue.travel(60)
    delay_queue.run_due()
    assert calls[1:] == [[3]]


def test_coroutine_gets_a_batch(delay_queue: QueueUnderTest) -> None:
    gather_async.enqueue_many([(1,), (2,)])
    assert delay_queue.run_due().outcomes == ["acked", "acked"]
    assert len(calls) == 1


def test_planned_failure_is_that_of_a_call(delay_queue: QueueUnderTest) -> None:
    gather.enqueue_many([(1,), (2,)])
    delay_queue.fail_next(ValueError("now"), task=gather)
    assert delay_queue.run_due().outcomes == ["acked", "acked"]
    assert sorted(map(len, calls)) == [1, 1]


def test_exactly_once_runs_on_the_connection_of_the_test(delay_queue: QueueUnderTest) -> None:
    count_many.enqueue_many([("a",), ("a",)])
    assert delay_queue.run_due().outcomes == ["acked", "acked"]
    assert Counter.objects.get(name="a").value == 2
