"""What the partition holds of a message, decoded: for the tests of enqueues that SQL has
accepted."""

from __future__ import annotations

from django_delayq.core.message import Record
from django_delayq.store.store import RedisStore
from tests.store.factories import STAMP, dump

NEWER, OLDER = STAMP + 1, STAMP - 1
REPLACED = (b"cancelled", b'{"reason":"replaced"}')


def stored(store: RedisStore, message_id: bytes) -> Record:
    return Record.decode(dump(store)["messages"][message_id])


def state(store: RedisStore) -> dict[str, object]:
    """Everything but the names of tasks."""
    content = dump(store)
    content["meta"] = {
        name: value for name, value in content["meta"].items() if not name.startswith(b"task:")
    }
    return content


def follower(store: RedisStore, message_id: bytes) -> Record:
    return Record.decode(dump(store)["followers"][message_id][6:])
