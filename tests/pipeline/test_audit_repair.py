"""Each damage is planted, found, repaired, and gone in the next audit; real servers, a real lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq.models import ArchivedMessage, OperatorAction, OutboxMessage
from django_delayq.pipeline.audit_kinds import Kind
from django_delayq.pipeline.errors import Code
from django_delayq.pipeline.jobs import audit, export
from django_delayq.pipeline.params import Params, Report
from django_delayq.store.redis import RedisStore
from tests.pipeline.damage import DEFAULT, PLANTS, World, altered_batch

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


def test_every_damage_is_found_and_repaired(world: World, look: Callable[..., Report]) -> None:
    planted = {kind.value: [plant(world)] for kind, plant in PLANTS.items()}
    report = look()
    assert confirmed(report) == planted
    assert report.code == Code.DIFFERENT

    repaired = look(repair=True, by="on call")
    assert repaired.problems == []
    assert {row["difference"]: row["repaired"] for row in repaired.rows} == dict.fromkeys(planted, 1)
    actions = OperatorAction.objects.filter(action="audit repair")
    assert actions.filter(count=1, operator="on call").exclude(finished_at=None).count() == len(planted)

    again = look()
    assert (again.rows, again.problems, again.code) == ([], [], Code.DONE) or again.rows == ()
