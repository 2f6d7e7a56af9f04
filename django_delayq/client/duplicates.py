"""Tells at the call, inside a transaction, of keys that are live already. The commit finds those
that come later."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.exceptions import OutcomeUnknown, StoreUnavailable
from ..core.message import is_same_content, without_stamp
from ..outbox import postponed
from ..store import get_store
from ..tasks.builder import Item
from ..tasks.handle import Handle
from . import on_commit
from .on_commit import Place


def split_live(items: list[Item]) -> tuple[list[Item], list[Handle]]:
    """The items to accept, and the handles of those that a live message forbids.

    Redis is asked once per partition, and only for keys and given ids that may not be live; for
    durable ones the outbox decides. While Redis is away nobody is refused here.
    """
    asked = [item for item in items if _is_asked(item)]
    if not asked:
        return items, []
    # What is cancelled, and Redis has yet to hear of it, is told before the message is sent.
    gone = postponed.unsaid
    taken = _in_redis(
        [
            one
            for one in asked
            if not gone.get(_place(one)) and not on_commit.is_cancelled(*_place(one))
        ]
    )
    accepted: list[Item] = []
    refused: list[Handle] = []
    for item in items:
        place = _place(item)
        standing = on_commit.find(*place) if _is_asked(item) else None
        other = standing[1].message[4] if standing else taken.get(place)
        if (
            _is_asked(item)
            and other is not None
            and not (item.template.may_exist and _is_same(other, item))
        ):
            refused.append(item.handle)
            continue
        accepted.append(item)
        if item.template.fixed:
            taken[place] = item.message[4]
    return accepted, refused


def _is_asked(item: Item) -> bool:
    return item.template.fixed and item.message[1] == "raise" and not item.template.durable


def _place(item: Item) -> Place:
    return item.template.topic, item.message[0]


def _is_same(record: bytes, item: Item) -> bool:
    """But for the flags, as in enqueue.lua: one of them tells whether SQL has it."""
    return is_same_content(record, item.message[4])


def _in_redis(items: Sequence[Item]) -> dict[Place, bytes]:
    """The live records, without their stamps, under the ids of these items."""
    store = get_store()
    live: dict[Place, bytes] = {}
    if not items or store.breaker.open:
        return live
    try:
        for partition, found in store.find_many(map(_place, items)):
            live[partition.topic, found.id] = without_stamp(found.record)
    except (StoreUnavailable, OutcomeUnknown):
        if items[0].template.spills:
            store.breaker.trip()  # the commit does not wait for a timeout once more
    return live
