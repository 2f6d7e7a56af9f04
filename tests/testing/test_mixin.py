"""The mixin, and the environments of Django's own test classes."""

from __future__ import annotations

import asyncio
import unittest

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase

from django_delayq.core import conf
from django_delayq.models import ArchivedMessage
from django_delayq.testing import QueueTestMixin, QueueUnderTest
from tests.app.models import Counter
from tests.app.sql_tasks import count
from tests.app.tasks import look_async, record, remind, seen


class InATestCase(QueueTestMixin, TestCase):
    def test_nothing_has_to_commit(self) -> None:
        record.using(delay=60).enqueue("x")
        self.queue.assert_enqueued(record, args=["x"], delay=60)
        self.queue.travel(seconds=60)
        assert self.queue.run_due().outcomes == ["acked"]
        assert ArchivedMessage.objects.count() == 1

    def test_captured_callbacks_are_sent_as_ever(self) -> None:
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            record.enqueue("x")
        assert callbacks
        assert [message.args for message in self.queue.messages] == [["x"]]
        assert len(self.queue.run_due()) == 1

    def test_callbacks_of_the_project_are_its_own(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            transaction.on_commit(lambda: record.enqueue("from a hook") and None)
            self.queue.refute_enqueued(record)
        self.queue.assert_enqueued(record, args=["from a hook"])

    async def test_an_async_test_has_the_same_queue(self) -> None:
        await record.using(delay=60).aenqueue("x")
        await remind.aenqueue(7)
        await self.queue.aassert_enqueued(record, args=["x"])
        await self.queue.arefute_enqueued(record, args=["y"])
        assert (await self.queue.arun_due()).of(remind).outcomes == ["acked"]
        await self.queue.atravel(minutes=1)
        assert (await self.queue.arun_due()).outcomes == ["acked"]
        assert await self.queue.amessages() == []
        assert await ArchivedMessage.objects.acount() == 2

    async def test_a_call_that_would_block_the_loop_is_refused(self) -> None:
        with pytest.raises(SynchronousOnlyOperation, match="with an `a` before it"):
            self.queue.run_due()


class ForAllTestsOfAClass(QueueTestMixin, TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        record.using(key="k").enqueue("for all")
        Counter.objects.create(name="runs")

    def test_what_the_class_enqueued_is_there(self) -> None:
        assert [run.args for run in self.queue.run_due()] == [["for all"]]

    def test_what_the_class_enqueued_is_there_in_the_next_test_too(self) -> None:
        count.enqueue()
        assert len(self.queue.run_due()) == 2
        assert Counter.objects.get().value == 1

    def test_and_in_one_that_enqueues_nothing(self) -> None:
        self.queue.assert_enqueued(record, key="k")


class InATransactionTestCase(QueueTestMixin, TransactionTestCase):
    def test_what_commits_is_sent(self) -> None:
        with transaction.atomic():
            count.enqueue()
        assert self.queue.run_due().outcomes == ["acked"]
        assert Counter.objects.get().value == 1

    async def test_async_too(self) -> None:
        await look_async.using(key="k").aenqueue()
        assert (await self.queue.arun_due()).outcomes == ["acked"]
        assert [message.key for message in seen] == ["k", "k"]


def test_an_event_loop_of_its_own_works_with_transactions(
    transactional_db: None, delay_queue: QueueUnderTest
) -> None:
    """As pytest-asyncio runs a test: the database is reached on another thread."""

    async def main() -> None:
        await sync_to_async(connections.close_all)()
        await remind.aenqueue(7)
        await record.using(delay=60).aenqueue("x")
        await delay_queue.aassert_enqueued(remind)
        message = await delay_queue.aassert_enqueued(record)
        await delay_queue.atravel_to(message.due_at)
        assert sorted((await delay_queue.arun_due()).outcomes) == ["acked", "acked"]
        assert await sync_to_async(open_connections)() == []

    asyncio.run(main())
    assert sorted(map(str, seen)) == ["7", "x"]


def open_connections() -> list[str]:
    """The aliases of this thread's connections that reach a database."""
    return [known.alias for known in connections.all() if known.connection is not None]


def test_a_class_that_may_not_use_the_database_is_refused(db: None) -> None:
    class Simple(QueueTestMixin, SimpleTestCase):
        def test_it(self) -> None:
            """Never runs."""

    before = dict(conf.overrides)
    result = unittest.TestResult()
    unittest.TestSuite([Simple("test_it")]).run(result)
    assert "derive it from TestCase" in result.errors[0][1]
    assert conf.overrides == before
