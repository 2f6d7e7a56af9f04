"""current_message().progress(): what a running task reports, and where people read it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from django_delayq import InvalidMessage, LeaseLost, current_message
from django_delayq.core.task_report import TaskProgress
from django_delayq.store.lease import Lease
from django_delayq.tasks import context
from django_delayq.tasks.context import CurrentMessage, running
from tests.app.tasks import count_to
from tests.faults import unreachable
from tests.hands import Hands, end_lease, only_row

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lease(hands: Hands) -> Iterator[Lease]:
    """Of a message that runs in this thread."""
    count_to.enqueue(10)
    (lease,) = hands.claim()
    token = running.set(lease)
    yield lease
    running.reset(token)


@pytest.fixture
def message(lease: Lease) -> CurrentMessage:
    return current_message()


def kept(hands: Hands, lease: Lease) -> TaskProgress | None:
    return hands.store.reports.progress("default", lease.id)


def test_handle_reads_what_the_task_reports(hands: Hands) -> None:
    handle = count_to.enqueue(10)
    assert handle.progress() is None
    (lease,) = hands.claim()
    token = running.set(lease)
    current_message().progress(3, 10, "pages")
    running.reset(token)
    assert handle.progress() == TaskProgress(3, 10, "pages", 1)
    assert handle.progress().percent == 30  # type: ignore[union-attr]


def test_reports_are_sent_twice_a_second_at_most(
    hands: Hands, lease: Lease, message: CurrentMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(context, "_send_progress", lambda *args: calls.append(args[1].done))
    for done in range(1, 100):
        message.progress(done, 100)
    assert calls == [1]
    lease.report.sent_at -= context.PROGRESS_INTERVAL  # type: ignore[union-attr]
    message.progress(99, 100)
    message.progress(100, 100)
    assert calls == [1, 99, 100]


def test_last_report_goes_into_the_archive_with_the_result(hands: Hands) -> None:
    count_to.enqueue(10)
    hands.work()
    hands.archive()
    assert msgspec.json.decode(only_row().result) == {
        "result": 10,
        "progress": [10, 10, "pages", 1],
    }


def test_dead_letter_says_how_far_it_came(hands: Hands) -> None:
    count_to.using(max_attempts=1).enqueue(10, fail=True)
    hands.work()
    hands.archive()
    assert msgspec.json.decode(only_row().result) == {"progress": [9, 10, "pages", 1]}


def test_coroutine_reports_without_waiting_for_redis(
    hands: Hands, lease: Lease, message: CurrentMessage
) -> None:
    async def report() -> None:
        message.progress(1, 2)
        await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(report())
    assert kept(hands, lease) == TaskProgress(1, 2, "", 1)


def test_task_goes_on_while_redis_is_away(hands: Hands, message: CurrentMessage) -> None:
    with unreachable():
        message.progress(1, 2)


def test_stale_worker_reports_nothing(hands: Hands, lease: Lease, message: CurrentMessage) -> None:
    end_lease(hands.store, lease)
    message.progress(1, 2)
    assert kept(hands, lease) is None


def test_redis_forgets_a_progress_by_itself(hands: Hands, message: CurrentMessage) -> None:
    message.progress(1, 2)
    (key,) = hands.store.client.redis.keys(f"{hands.store.client.prefix}:*:progress:*")
    assert 0 < hands.store.client.redis.pttl(key) <= context.PROGRESS_TTL_MS


@pytest.mark.parametrize(
    "wrong",
    [
        ("3",),
        (True,),
        (10**5000,),
        (1, -(10**18)),
        (float("nan"),),
        (None,),
        (1, "2"),
        (1, float("inf")),
        (1, 2, 3),
    ],
)
def test_what_is_no_progress_is_refused(message: CurrentMessage, wrong: Any) -> None:
    with pytest.raises(InvalidMessage, match=r"progress\(\)"):
        message.progress(*wrong)


def test_long_note_is_cut(hands: Hands, lease: Lease, message: CurrentMessage) -> None:
    message.progress(1, note="x" * 1000 + "\ud800")
    found = kept(hands, lease)
    assert found is not None
    assert len(found.note) == 200
    assert found.percent is None


# extend()


def test_extend_gives_time_from_now_and_never_takes_any(
    lease: Lease, message: CurrentMessage
) -> None:
    now = time.monotonic()
    message.extend(timedelta(minutes=10))
    message.extend(60)
    assert lease.report is not None
    assert 600 <= lease.report.may_run_until - now < 601


@pytest.mark.parametrize("duration", [0, 0.5, -1, 8 * 86_400, "5", None, float("nan")])
def test_extend_refuses_what_is_no_such_duration(message: CurrentMessage, duration: Any) -> None:
    with pytest.raises(InvalidMessage):
        message.extend(duration)


def test_extend_says_that_the_lease_is_lost(lease: Lease, message: CurrentMessage) -> None:
    lease.lost = True
    with pytest.raises(LeaseLost, match="what the run returns is refused"):
        message.extend(60)
