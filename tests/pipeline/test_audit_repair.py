"""Each damage is planted, found, repaired, and gone in the next audit; real servers, a real lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq.models import ArchivedMessage, OperatorAction, OutboxMessage
from django_delayq.pipeline import audit_lake
from django_delayq.pipeline.audit_kinds import Difference, Kind
from django_delayq.pipeline.errors import Code
from django_delayq.pipeline.jobs import audit, export
from django_delayq.pipeline.lake import Lake
from django_delayq.pipeline.ledger import Ledger
from django_delayq.pipeline.params import Params, Report
from django_delayq.pipeline.sources.lake import read_lake
from django_delayq.store.keys import Partition
from django_delayq.store.mending import Look
from django_delayq.store.redis import RedisStore
from tests.pipeline.damage import CROWD, DEFAULT, FAR, World, altered_batch, plant_all

Make = Callable[..., Params]
NOTHING = Look((None, None, None), None, False, None, 1, False, None, None)
pytestmark = pytest.mark.databases


@pytest.fixture
def world(spark: Any, delayq: RedisStore, parameters: Make, lake: str) -> Iterator[World]:
    """Some messages in each state, and a lake."""

    def exported() -> Report:
        return export.run(spark, parameters(job={"settle": 0}), bool)

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
        return audit.run(spark, parameters(job={"pause": 0, **options}), bool)

    return run


def confirmed(report: Report) -> dict[str, list[str]]:
    return {row["difference"]: row["ids"] for row in report.rows if row["confirmed"]}


def test_every_damage_is_found_and_repaired(world: World, look: Callable[..., Report]) -> None:
    planted = plant_all(world)
    repaired = look(repair=True, by="on call")
    assert confirmed(repaired) == planted
    assert (repaired.code, repaired.problems) == (Code.DIFFERENT, [])
    assert {row["difference"]: row["repaired"] for row in repaired.rows} == dict.fromkeys(planted, 1)
    actions = OperatorAction.objects.filter(
        action="audit repair", count=1, operator="on call", finished_at__isnull=False
    )
    assert sorted(actions.values_list("selection", flat=True)) == sorted(selections(planted))

    world.archive()
    again = look()
    assert (list(again.rows), again.problems, again.code) == ([], [], Code.DONE)
    check_redis(world, {kind: bytes.fromhex(ids[0]) for kind, ids in planted.items() if len(ids[0]) == 32})
    check_sql(planted)


def selections(planted: dict[str, list[str]]) -> Iterator[str]:
    for kind, (name,) in planted.items():
        yield f"message {name} ({kind})" if len(name) == 32 else f"row {name} of the archive ({kind})"


def check_redis(world: World, ids: dict[str, bytes]) -> None:
    """Where everything is after the repair."""

    def look(kind: str, partition: Partition = DEFAULT) -> Look:
        return world.store.look(partition, [ids[kind]])[0]

    now_ms = world.store.clock_ms()
    assert not look("no record").waits and not look("no record").leased
    assert now_ms - 600_000 < (look("no place").lanes[1] or 0) <= now_ms
    assert look("two lanes").lanes[0] is None and look("two lanes").lanes[1]
    assert look("lane and lease").leased and not look("lane and lease").waits
    assert look("wrong lane").lanes == (None, int(FAR), None)
    assert look("wrong partition", CROWD) == look("live again") == NOTHING
    moved = look("wrong partition", Partition("crowd", 0))
    assert moved.lanes[1] == int(FAR) and moved.has_attempts
    assert look("stray attempts") == look("stale end") == look("lost end") == NOTHING
    assert look("stray follower").lanes[1] == int(FAR) and look("stray follower").follower_us is None
    assert look("lost").waits and look("lost").stamp_us


def check_sql(planted: dict[str, list[str]]) -> None:
    """What the archive and the outbox say after the repair."""
    ids = {kind: one for kind, (one,) in planted.items()}
    rows = ArchivedMessage.objects
    assert rows.get(message_id=ids["no record"]).reason == "body_missing"
    ended = rows.get(message_id=ids["lost end"])
    assert (ended.state, ended.reason, ended.body) == ("dead", "end_lost", '{"args":["planted"],"kwargs":{}}')
    assert rows.get(pk=ids["lost row"]).worker == "" and rows.get(pk=ids["changed row"]).worker == "somebody else"
    promised = {row.message_id.hex for row in OutboxMessage.objects.all()}
    assert ids["lost"] in promised and not promised & {ids["unclosed"], ids["lost end"]}


def test_a_row_too_many_leaves_the_lake(world: World, spark: Any, parameters: Make, lake: str) -> None:
    stays, goes = world.archived(), world.archived()
    world.export()
    ArchivedMessage.objects.filter(pk=goes.pk).delete()
    ledger = Ledger(Lake(lake))
    some = audit_lake.batches_of(ledger, ledger.follow())
    work = audit_lake.LakeRepair(spark, parameters().database, ledger, some)
    found = Difference(Kind.SURPLUS_ROW, row=goes.pk, batch=0, message_id=goes.message_id.hex)
    assert work.run([found], spark.createDataFrame([], "row bigint")) == [True]
    left = {row["id"] for row in read_lake(spark, ledger.lake, ["id"]).collect()}
    assert stays.pk in left and left == set(ArchivedMessage.objects.values_list("pk", flat=True))
    (batch,) = audit_lake.batches_of(ledger, ledger.follow())
    assert batch.said[0] == len(left) == ledger.batches[0].rows
    assert ledger.batches[0].counted_at is None


def test_a_batch_that_nobody_can_vouch_for_is_told(world: World, look: Callable[..., Report]) -> None:
    name = altered_batch(world)
    report = look(repair=True)
    (row,) = report.rows
    assert (row["difference"], row["repaired"], row["ids"]) == ("altered batch", 0, [name])
    assert "altered batch: 1 were not repaired" in report.problems[0]
    assert report.code == Code.DIFFERENT
