"""The audit moves a message from a partition where nobody looks for it; whatever happens meanwhile,
none is lost."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.client import moving
from django_delayq.pipeline.audit.audit_repair import AuditRepair
from django_delayq.pipeline.audit.finding_kinds import Difference, Kind
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from tests.pipeline import damage
from tests.pipeline.damage import CROWD, FAR, World
from tests.pipeline.test_audit_repair import NOTHING

pytestmark = pytest.mark.databases


@pytest.fixture
def world(delayq: RedisStore, transactional_db: None) -> World:
    return World(delayq, lambda: None, "")


def crowded(world: World) -> tuple[bytes, Partition, Difference]:
    """A message in a wrong partition, and where it belongs."""
    message_id = bytes.fromhex(damage.wrong_partition(world))
    (look,) = world.store.repair.look(CROWD, [message_id])
    return (
        message_id,
        Partition("crowd", 0),
        Difference(Kind.WRONG_PARTITION, "crowd", 1, message_id.hex(), look.stamp_us),
    )


def test_a_message_is_not_moved_where_another_life_is(world: World) -> None:
    message_id, home, found = crowded(world)
    world.store.client.command(
        "ZADD", world.key("leased", home), FAR, message_id
    )  # runs, and its record is lost
    assert AuditRepair(world.store, "").run([found]) == []
    assert (
        world.store.repair.look(CROWD, [message_id])[0].waits
        and not world.store.repair.look(home, [message_id])[0].recorded
    )


def test_a_move_that_was_interrupted_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    message_id, home, found = crowded(world)

    def interrupt(*arguments: Any, **options: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(moving, "_leave", interrupt)
        with pytest.raises(KeyboardInterrupt):
            AuditRepair(world.store, "").run([found])
    assert world.store.repair.look(home, [message_id])[0].waits
    assert AuditRepair(world.store, "").run([found]) == [found]
    moved = world.store.repair.look(home, [message_id])[0]
    assert (moved.lanes[1], moved.has_attempts) == (int(FAR), True)
    assert world.store.repair.look(CROWD, [message_id])[0] == NOTHING


def test_what_another_audit_has_moved_meanwhile_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    message_id, home, found = crowded(world)
    mend = world.store.repair.mend

    def moved(partition: Partition, what: Any, items: Any, archive: str = "") -> Any:
        if what == "out" and partition == CROWD:
            assert mend(partition, what, items, archive) == [True]
        return mend(partition, what, items, archive)

    monkeypatch.setattr(world.store.repair, "mend", moved)
    assert AuditRepair(world.store, "").run([found]) == []
    assert world.store.repair.look(home, [message_id])[0].waits
