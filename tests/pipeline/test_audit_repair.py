"""Each damage is planted, found, repaired, and gone in the next audit; real servers, a real
lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from django_delayq.core.job_report import Code, Report, ignore
from django_delayq.models import ArchivedMessage, LakeBatch, OperatorAction, OutboxMessage
from django_delayq.pipeline.audit import audit
from django_delayq.pipeline.export import export
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.lake.lake_source import read_lake
from django_delayq.pipeline.params import Params
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from tests.pipeline import damage
from tests.pipeline.damage import CROWD, DEFAULT, FAR, World, plant_all
from tests.pipeline.rows import INSTANTS, make_rows

Make = Callable[..., Params]
pytestmark = pytest.mark.databases


@pytest.fixture
def world(spark: Any, delayq: RedisStore, parameters: Make, lake: str) -> Iterator[World]:
    """Some messages in each state, and a lake."""

    def exported() -> Report:
        return export.run(spark, parameters(job={"settle": 0}), ignore)

    world = World(delayq, exported, lake)
    for durable in (False, True):
        world.archived(durable=durable)
        world.ended(durable=durable)
        world.waiting(durable=durable)
        world.claimed(durable=durable)
    return world


@pytest.fixture
def look(spark: Any, parameters: Make) -> Callable[..., Report]:
    """One audit."""

    def run(**options: Any) -> Report:
        return audit.run(spark, parameters(job={"pause": 0, **options}), ignore)

    return run


def confirmed(report: Report) -> dict[str, list[str]]:
    return {row["difference"]: row["ids"] for row in report.rows if row["confirmed"]}


@pytest.mark.long
def test_every_damage_is_found_and_repaired(world: World, look: Callable[..., Report]) -> None:
    planted = plant_all(world)
    repaired = look(repair=True, by="on call")
    assert confirmed(repaired) == planted
    assert (repaired.code, len(repaired.problems)) == (Code.DIFFERENT, 1)
    # What SQL has lost is told, and brought back by hand.
    assert "lost row: 1 were not repaired" in repaired.problems[0]
    assert {row["difference"]: row["repaired"] for row in repaired.rows} == {
        kind: int(kind != "lost row") for kind in planted
    }
    actions = OperatorAction.objects.filter(
        action="audit repair", count=1, operator="on call", finished_at__isnull=False
    )
    named = [
        (action.selection, action.message_id.hex if action.message_id else str(action.archived_id))
        for action in actions
    ]
    assert sorted(named) == sorted(
        (kind, name) for kind, (name,) in planted.items() if kind != "lost row"
    )

    world.archive()
    again = look()
    assert (list(confirmed(again)), again.problems) == (["lost row"], [])
    check_redis(
        world, {kind: bytes.fromhex(ids[0]) for kind, ids in planted.items() if len(ids[0]) == 32}
    )
    check_sql(planted)


def check_redis(world: World, ids: dict[str, bytes]) -> None:
    """Where everything is after the repair."""

    def held(kind: str, partition: Partition = DEFAULT) -> dict[str, Any]:
        return content(world, ids[kind], partition)

    now_ms = world.store.clock_ms()
    assert not held("no record").keys() & {"high", "normal", "low", "leased"}
    assert now_ms + 1_200_000 < held("no place")["normal"] <= now_ms + 1_800_000, (
        "it waits as long as before"
    )
    assert held("two lanes").keys() == {"normal", "messages"}
    assert held("lane and lease").keys() == {"leased", "messages", "attempts"}
    assert held("wrong lane").keys() == {"normal", "messages"}
    assert held("wrong lane")["normal"] == float(FAR)
    assert held("wrong partition", CROWD) == held("live again") == {}
    moved = held("wrong partition", Partition("crowd", 0))
    assert moved.keys() == {"normal", "messages", "attempts"} and moved["normal"] == float(FAR)
    assert held("stray attempts") == held("stale end") == held("lost end") == {}
    assert held("stray follower").keys() == {"normal", "messages"}
    assert held("stray follower")["normal"] == float(FAR)
    assert held("lost").keys() == {"normal", "messages"}


def content(world: World, message_id: bytes, partition: Partition) -> dict[str, Any]:
    """What a partition holds under an id."""
    found: dict[str, Any] = {}
    for name in ("high", "normal", "low", "leased", "messages", "attempts", "followers"):
        command = "ZSCORE" if name in ("high", "normal", "low", "leased") else "HGET"
        value = world.store.client.command(command, world.key(name, partition), message_id)
        if value is not None:
            found[name] = float(value) if command == "ZSCORE" else value
    return found


def check_sql(planted: dict[str, list[str]]) -> None:
    """What the archive and the outbox say after the repair."""
    ids = {kind: one for kind, (one,) in planted.items()}
    rows = ArchivedMessage.objects
    assert rows.get(message_id=ids["no record"]).reason == "body_missing"
    ended = rows.get(message_id=ids["lost end"])
    assert (ended.state, ended.reason, ended.body) == (
        "dead",
        "end_lost",
        '{"args":["planted"],"kwargs":{}}',
    )
    assert (
        not rows.filter(pk=ids["lost row"]).exists()
        and rows.get(pk=ids["changed row"]).worker == "somebody else"
    )
    promised = {row.message_id.hex for row in OutboxMessage.objects.all()}
    assert ids["lost"] in promised and not promised & {ids["unclosed"], ids["lost end"]}


def held(spark: Any, lake: str) -> dict[int, Any]:
    return {row["id"]: row for row in read_lake(spark, Lake(lake)).collect()}


@pytest.mark.long
def test_rows_that_are_exported_again_leave_all_others_as_they_are(
    world: World, look: Callable[..., Report], spark: Any, lake: str
) -> None:
    row, late = world.archived(), damage.late_row(world)
    next(late)
    world.export()
    before = held(spark, lake)
    with pytest.raises(StopIteration) as end:
        next(late)
    ArchivedMessage.objects.filter(pk=row.pk).update(worker="somebody else")
    LakeBatch.objects.update(counted_at=row.finished_at)
    version = Lake(lake).version
    assert look(repair=True).figures["repaired"] == 2
    after = held(spark, lake)
    assert after[row.pk]["worker"] == "somebody else"
    assert after.keys() == {*before, int(end.value.value)}
    assert all(after[pk] == before[pk] for pk in before if pk != row.pk)
    assert Lake(lake).version == version + 1, "all in one commit"
    assert set(LakeBatch.objects.values_list("version", "counted_at")) == {(version + 1, None)}
    assert look().code == Code.DONE


@pytest.mark.long
def test_of_a_period_only_its_rows_are_compared(
    world: World, look: Callable[..., Report], spark: Any, parameters: Make
) -> None:
    days = [INSTANTS[0] + timedelta(days=n) for n in range(3)]
    pks = make_rows(3, finished_at=lambda n: days[n])
    world.export()
    ArchivedMessage.objects.filter(pk__in=pks).update(worker="somebody else")
    damage.stray_attempts(world)
    period = {"since": f"{days[1]:%Y-%m-%dT00:00:00Z}", "until": f"{days[2]:%Y-%m-%dT00:00:00Z}"}
    params = parameters(job={"pause": 0, "repair": True}, **period)
    report = audit.run(spark, params, ignore)
    assert confirmed(report) == {"changed row": [str(pks[1])]}
    assert report.figures["days_that_differ"] == [f"{days[1]:%Y-%m-%d}"]
    assert report.figures["rows_compared"] == 1
    assert audit.run(spark, params, ignore).code == Code.DONE
    assert sorted(confirmed(look())["changed row"]) == sorted(map(str, (pks[0], pks[2])))


@pytest.mark.long
def test_rows_that_were_pruned_are_not_lost(world: World, look: Callable[..., Report]) -> None:
    pks = make_rows(4)
    world.export()
    ArchivedMessage.objects.filter(pk__in=pks).delete()
    assert sorted(confirmed(look())["lost row"]) == sorted(map(str, pks))
    assert "lost row: 4 were not repaired" in look(repair=True).problems[0]
    OperatorAction.objects.create(action="prune", operator="ops", before=damage.LONG_AHEAD)
    assert confirmed(look()) == {}


@pytest.mark.long
def test_a_row_of_another_life_is_told_and_nothing_is_done(
    world: World, look: Callable[..., Report], spark: Any, lake: str
) -> None:
    row, late = world.archived(), damage.late_row(world)
    next(late)
    world.export()
    with pytest.raises(StopIteration):
        next(late)  # its batch is written anew
    kept = row.message_id.hex
    row.message_id = "1" * 32
    row.save()
    report = look(repair=True)
    told = {one["difference"]: (one["ids"], one["repaired"]) for one in report.rows}
    assert told["another life"] == ([str(row.pk)], 0) and told["late row"][1] == 1
    assert ArchivedMessage.objects.get(pk=row.pk).message_id.hex == "1" * 32
    assert held(spark, lake)[row.pk]["message_id"] == kept
    assert list(confirmed(look())) == ["another life"]


@pytest.mark.long
def test_when_nobody_knows_when_it_was_due_it_becomes_a_dead_letter(
    world: World, look: Callable[..., Report]
) -> None:
    message_id = damage.no_place(world, durable=False)
    (row,) = look(repair=True).rows
    assert (row["difference"], row["repaired"], row["ids"]) == ("no place", 1, [message_id])
    world.archive()
    ended = ArchivedMessage.objects.get(message_id=message_id)
    assert (ended.state, ended.reason, ended.body) == (
        "dead",
        "due_lost",
        '{"args":["planted"],"kwargs":{}}',
    )
    assert look().code == Code.DONE
