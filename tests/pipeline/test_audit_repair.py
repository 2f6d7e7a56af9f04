"""Each damage is planted, found, repaired, and gone in the next audit; real servers, a real
lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from django_delayq.client.decorator import DelayedTask
from django_delayq.models import ArchivedMessage, OperatorAction, OutboxMessage
from django_delayq.pipeline.audit import audit, audit_lake
from django_delayq.pipeline.audit.findings import Finding, FindingKind
from django_delayq.pipeline.export import export
from django_delayq.pipeline.job_errors import Code, LakeError
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.lake.ledger import Ledger
from django_delayq.pipeline.lake.reader import read_lake
from django_delayq.pipeline.params import Params, Report
from django_delayq.pipeline.sources.archive_source import read_archive
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from tests.app.tasks import record
from tests.pipeline import damage
from tests.pipeline.damage import CROWD, DEFAULT, FAR, World, altered_batch, plant_all
from tests.pipeline.rows import make_rows

Make = Callable[..., Params]
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


@pytest.mark.long
def test_every_damage_is_found_and_repaired(world: World, look: Callable[..., Report]) -> None:
    planted = plant_all(world)
    repaired = look(repair=True, by="on call")
    assert confirmed(repaired) == planted
    assert (repaired.code, repaired.problems) == (Code.DIFFERENT, [])
    assert {row["difference"]: row["repaired"] for row in repaired.rows} == dict.fromkeys(
        planted, 1
    )
    actions = OperatorAction.objects.filter(
        action="audit repair", count=1, operator="on call", finished_at__isnull=False
    )
    named = [
        (action.selection, action.message_id.hex if action.message_id else str(action.archived_id))
        for action in actions
    ]
    assert sorted(named) == sorted((kind, name) for kind, (name,) in planted.items())

    world.archive()
    again = look()
    assert (list(again.rows), again.problems, again.code) == ([], [], Code.DONE)
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
        rows.get(pk=ids["lost row"]).worker == ""
        and rows.get(pk=ids["changed row"]).worker == "somebody else"
    )
    promised = {row.message_id.hex for row in OutboxMessage.objects.all()}
    assert ids["lost"] in promised and not promised & {ids["unclosed"], ids["lost end"]}


@pytest.mark.long
def test_a_row_too_many_leaves_the_lake(
    world: World, spark: Any, parameters: Make, lake: str
) -> None:
    stays, goes = world.archived(), world.archived()
    world.export()
    ArchivedMessage.objects.filter(pk=goes.pk).delete()
    ledger = Ledger(Lake(lake))
    some = audit_lake.batches_of(ledger, ledger.catch_up())
    work = audit_lake.LakeRepair(spark, parameters().database, ledger, some)
    found = Finding(FindingKind.SURPLUS_ROW, row=goes.pk, batch=0, message_id=goes.message_id.hex)
    assert work.run([found], spark.createDataFrame([], "row bigint")) == [True]
    left = {row["id"] for row in read_lake(spark, ledger.lake, ["id"]).collect()}
    assert stays.pk in left and left == set(ArchivedMessage.objects.values_list("pk", flat=True))
    (batch,) = audit_lake.batches_of(ledger, ledger.catch_up())
    assert batch.committed[0] == len(left) == ledger.batches[0].rows
    assert ledger.batches[0].counted_at is None


def rewrite(world: World, spark: Any, parameters: Make, lake: str, *found: Finding) -> list[bool]:
    """AuditRepair the newest batch, of what SQL has once and no longer when it is read again."""
    ledger = Ledger(Lake(lake))
    some = audit_lake.batches_of(ledger, ledger.catch_up())
    work = audit_lake.LakeRepair(spark, parameters().database, ledger, some)
    return work.run(found, spark.createDataFrame([], "row bigint"))


def held(spark: Any, lake: str) -> dict[int, Any]:
    return {row["id"]: row for row in read_lake(spark, Lake(lake)).collect()}


@pytest.mark.long
def test_rows_that_are_pruned_while_their_batch_is_written_anew_stay_in_the_lake(
    world: World,
    spark: Any,
    parameters: Make,
    lake: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = world.archived()
    world.export()
    before = held(spark, lake)
    ArchivedMessage.objects.filter(pk=row.pk).update(worker="somebody else")
    reads = tmp_path / "reads"

    def pruned_after_the_first(*arguments: Any) -> Any:
        def once(parts: Iterator[Any]) -> Iterator[Any]:
            if not reads.exists():
                yield from parts
                reads.touch()

        frame = read_archive(*arguments, parts=1).repartition(1)
        return frame.mapInArrow(once, frame.schema)

    monkeypatch.setattr(audit_lake, "read_archive", pruned_after_the_first)
    number = len(Lake(lake).commits()) - 1
    found = Finding(
        FindingKind.CHANGED_ROW, row=row.pk, batch=number, message_id=row.message_id.hex
    )
    assert rewrite(world, spark, parameters, lake, found) == [True]
    after = held(spark, lake)
    assert reads.exists() and after.keys() == before.keys()
    assert after[row.pk]["worker"] == "somebody else"


@pytest.mark.long
def test_a_batch_that_would_lack_rows_is_not_committed(
    world: World, spark: Any, parameters: Make, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = world.archived()
    world.export()
    monkeypatch.setattr(
        audit_lake.frames, "archive_over_lake", lambda stored, stays: stored.where("id < 0")
    )
    with pytest.raises(LakeError, match="at least"):
        rewrite(world, spark, parameters, lake, Finding(FindingKind.LATE_ROW, row=row.pk, batch=0))
    assert {commit.kind for commit in Lake(lake).commits()} == {"append"}


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


def test_a_dead_letter_that_comes_back_is_not_open(
    world: World, spark: Any, parameters: Make, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pks = make_rows(4, state="dead")
    make_rows(1, replay_of=pks[0], message_id=b"0" * 16)
    (gone,) = make_rows(1, replay_of=pks[1], message_id=b"1" * 16)
    world.export()
    durable = record.using(durable=True, delay=60)
    replay = DelayedTask(durable.definition, replace(durable.options, replay_of=pks[2])).enqueue(1)
    ArchivedMessage.objects.filter(pk__in=[*pks, gone]).delete()
    found = [Finding(FindingKind.LOST_ROW, row=pk, batch=0) for pk in (*pks, 999_999)]
    monkeypatch.setattr(audit_lake.LakeRepair, "_rewrite", None)
    assert rewrite(world, spark, parameters, lake, *found) == [True] * 4 + [False], (
        "what is nowhere is not repaired"
    )
    by = [ArchivedMessage.objects.get(pk=pk) for pk in pks]
    assert [one.replayed_by and one.replayed_by.bytes for one in by[:2]] == [b"0" * 16, b"1" * 16]
    assert by[2].replayed_by and by[2].replayed_by.bytes == replay.identity
    assert all(one.replayed_at for one in by[:3]) and not any(one.discarded_at for one in by[:3])
    assert by[3].discarded_at and by[3].replayed_at is None
    assert rewrite(world, spark, parameters, lake, *found) == [False] * 5, "they are there"


@pytest.mark.long
def test_a_batch_that_nobody_can_vouch_for_is_told_whoever_pruned_it(
    world: World, look: Callable[..., Report]
) -> None:
    assert confirmed(look(repair=True)) == {}
    assert confirmed(look()) == {}
    name = altered_batch(world, by_export=False)
    assert confirmed(look())["altered batch"] == [name]


@pytest.mark.long
def test_a_batch_that_nobody_can_vouch_for_is_told(
    world: World, look: Callable[..., Report]
) -> None:
    name = altered_batch(world)
    report = look(repair=True)
    (row,) = report.rows
    assert (row["difference"], row["repaired"], row["ids"]) == ("altered batch", 0, [name])
    assert "altered batch: 1 were not repaired" in report.problems[0]
    assert report.code == Code.DIFFERENT
