"""The queue under test for classes of unittest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.test import SimpleTestCase

from ..core.conf import get_settings
from ..core.exceptions import ConfigurationError
from .kit import QueueUnderTest

if TYPE_CHECKING:
    _Case = SimpleTestCase
else:
    _Case = object


class QueueTestMixin(_Case):
    """Gives each test of a TestCase or TransactionTestCase an empty queue of its own, `self.queue`.
    Put it before the TestCase: `class PurchaseTest(QueueTestMixin, TestCase)`."""

    queue: QueueUnderTest
    """The queue of this test."""

    @classmethod
    def setUpClass(cls) -> None:
        """Before setUpTestData(): it must not reach the queue of the project either."""
        queue = QueueUnderTest()
        queue.start()
        cls.addClassCleanup(queue.stop)
        super().setUpClass()
        if get_settings().database not in cls.databases:
            raise ConfigurationError(
                f"{cls.__qualname__} may not use the database {get_settings().database!r}, which "
                "has the archive and the outbox: derive it from TestCase, and name the alias in "
                "`databases`."
            )

    def setUp(self) -> None:
        """An empty queue."""
        super().setUp()
        self.queue = QueueUnderTest()
        self.queue.start()
        self.addCleanup(self.queue.stop)
