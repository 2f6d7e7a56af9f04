"""Every id that a message can have is one that the database holds."""

from __future__ import annotations

import pytest

from django_delayq.core.exceptions import InvalidMessage
from django_delayq.models import OutboxMessage
from tests.app.tasks import record
from tests.hands import DAY, Hands

pytestmark = pytest.mark.databases

KEYS = [f"key {number}" for number in range(40)]


def test_the_archive_knows_every_key_by_its_id(hands: Hands) -> None:
    handles = [record.using(key=key).enqueue(key) for key in KEYS]
    hands.work()
    assert {(row.message_id.hex, row.key) for row in hands.archive()} == {
        (h.id, h.key) for h in handles
    }


def test_the_outbox_knows_every_key_by_its_id(hands: Hands) -> None:
    handles = [record.using(key=key, durable=True, delay=DAY).enqueue(key) for key in KEYS]
    found = OutboxMessage.objects.values_list("message_id", "key")
    assert {(message_id.hex, key) for message_id, key in found} == {(h.id, h.key) for h in handles}


@pytest.mark.parametrize("version", [1, 4, 7, 8, 15])
def test_an_id_of_ones_own_may_be_of_any_version(hands: Hands, version: int) -> None:
    own = f"{'1' * 12}{version:x}1119{'1' * 15}"
    record.using(id=own, durable=True).enqueue("x")
    hands.work()
    assert [row.message_id.hex for row in hands.archive()] == [own]


def test_an_id_that_not_every_database_takes_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="RFC 9562"):
        record.using(id="1" * 32)
