"""The plugin of pytest: a delay queue for each test that asks for one.

It stands beside the package, because `import django_delayq` imports Django: a project that does not
use it pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django_delayq.testing import QueueUnderTest


@pytest.fixture
def delay_queue(db: None) -> Iterator[QueueUnderTest]:
    """An empty queue of this test's own, whose time the test moves. Works with `db` and
    `transactional_db`; name it before fixtures that enqueue."""
    from django_delayq.testing import QueueUnderTest

    with QueueUnderTest() as queue:
        yield queue
