"""The audit moves a message from a partition where nobody looks for it; whatever happens meanwhile,
none is lost."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.client import moving
from django_delayq.core.message import stamp_us_of
from django_delayq.operators.doctor.findings import Finding, FindingKind
from django_delayq.operators.doctor.repairs import repaired
from django_delayq.store.keys import Partition
from django_delayq.store.queries import Life
from django_delayq.store.store import RedisStore
from tests.pipeline import damage
from tests.pipeline.damage import CROWD, FAR, World
from tests.pipeline.test_audit_repair import content

pytestmark = pytest.mark.databases


@pytest.fixture
def world(delayq: RedisStore, transactional_db: None) -> World:
    return World(delayq, lambda: None, "")


def crowded(world: World) -> tuple[bytes, Partition, Finding]:
    """A message in a wrong partition, and where it belongs."""
    message_id = bytes.fromhex(damage.wrong_partition(world))
    (found,) = world.store.queries.find(CROWD, [message_id])
    assert found
    life = Life(message_id, stamp_us_of(found.record) or 0)
    return (
        message_id,
        Partition("crowd", 0),
        Finding(FindingKind.WRONG_PARTITION, CROWD, life),
    )


def test_a_message_is_not_moved_where_another_life_is(world: World) -> None:
    message_id, home, found = crowded(world)
    world.store.client.command(
        "ZADD", world.key("leased", home), FAR, message_id
    )  # runs, and its record is lost
    assert repaired(world.store, [found], "") == []
    assert content(world, message_id, CROWD).keys() == {"normal", "messages", "attempts"}
    assert content(world, message_id, home).keys() == {"leased"}


def test_a_move_that_was_interrupted_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    message_id, home, found = crowded(world)

    def interrupt(*arguments: Any, **options: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(moving, "_leave", interrupt)
        with pytest.raises(KeyboardInterrupt):
            repaired(world.store, [found], "")
    assert "normal" in content(world, message_id, home)
    assert repaired(world.store, [found], "") == [found]
    moved = content(world, message_id, home)
    assert moved.keys() == {"normal", "messages", "attempts"} and moved["normal"] == float(FAR)
    assert content(world, message_id, CROWD) == {}


def test_what_another_audit_has_moved_meanwhile_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    message_id, home, found = crowded(world)
    mend = world.store.repair.mend

    def moved(partition: Partition, what: Any, items: Any, archive: str = "") -> Any:
        if what == "surplus" and partition == CROWD:
            assert mend(partition, what, items, archive) == [True]
        return mend(partition, what, items, archive)

    monkeypatch.setattr(world.store.repair, "mend", moved)
    assert repaired(world.store, [found], "") == []
    assert "normal" in content(world, message_id, home)
