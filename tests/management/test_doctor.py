"""manage.py delayq doctor: finds and repairs what Redis, the outbox and the archive contradict one
another in, without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq.core.job_report import Code, Report, ignore
from django_delayq.core.message import new_id
from django_delayq.models import AuditRun, OperatorAction, OutboxMessage
from django_delayq.operators.doctor import conclusion
from django_delayq.operators.doctor.conclusion import Looks
from django_delayq.operators.doctor.doctor import examine, suspected
from django_delayq.operators.doctor.repairs import repaired
from django_delayq.store.store import RedisStore
from tests.app.tasks import close_order, record
from tests.faults import unreachable
from tests.hands import ORDERS, Hands
from tests.pipeline import damage
from tests.pipeline.damage import World
from tests.pipeline.test_audit import at_work

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.databases]

LOOKS = Looks(pause=0, repair=False, by="", most=10_000)


@pytest.fixture
def world(delayq: RedisStore) -> World:
    return World(delayq, lambda: None, "")


def look(world: World, topic: str = "", **options: Any) -> Report:
    return examine(world.store, LOOKS._replace(**options), topic)


def said(*args: str) -> tuple[int, str]:
    """The exit code, and what the command writes."""
    out, code = StringIO(), 0
    try:
        call_command("delayq", "doctor", "--pause", "0s", *args, stdout=out, stderr=StringIO())
    except SystemExit as end:
        code = int(end.code or 0)
    return code, out.getvalue()


def kinds(report: Report) -> dict[str, list[str]]:
    return {row["difference"]: row["ids"] for row in report.rows if row["confirmed"]}


@pytest.mark.parametrize("kind", damage.PLANTS, ids=lambda kind: kind.value)
def test_each_kind_is_found_and_repaired_and_the_next_look_is_clean(
    world: World, kind: Any
) -> None:
    record.using(delay=60, durable=True).enqueue("healthy")
    planted = damage.PLANTS[kind](world)
    found = look(world)
    assert kinds(found) == {kind.value: [planted]}
    assert found.code == Code.DIFFERENT and OperatorAction.objects.count() == 0
    repaired = look(world, repair=True, by="ops")
    assert [(row["confirmed"], row["repaired"]) for row in repaired.rows] == [(1, 1)]
    action = OperatorAction.objects.get(action="audit repair")
    assert (action.operator, action.selection, action.count) == ("ops", kind.value, 1)
    again = look(world)
    assert (again.code, again.rows, again.problems) == (Code.DONE, (), [])


def test_a_healthy_system_in_every_state_shows_nothing(world: World, hands: Hands) -> None:
    for durable in (False, True):
        world.waiting(durable=durable)
        world.claimed(durable=durable)
        world.ended(durable=durable)
        world.archived(durable=durable)
        world.archived(durable=durable, key=f"again {durable}")
        world.waiting(durable=durable, key=f"again {durable}")
    record.using(key="follows").enqueue(1)
    report = look(world)
    assert (report.code, report.rows, report.figures["confirmed"]) == (Code.DONE, (), 0)
    assert report.figures["read"] > 8
    assert list(suspected(world.store, "", report, ignore)) == []


def test_what_another_doctor_has_sent_again_meanwhile_is_not_repaired_twice(world: World) -> None:
    damage.lost(world)
    found = list(suspected(world.store, "", Report(job="doctor"), ignore))
    assert len(found) == len(repaired(world.store, found, "one")) == 1
    assert repaired(world.store, found, "other") == []
    assert OperatorAction.objects.get().operator == "one"


@pytest.mark.long
def test_a_system_at_work_shows_nothing(hands: Hands, world: World) -> None:
    with at_work(hands) as rounds:
        while rounds[0] < 8:
            report = look(world, pause=0.3)
            assert (report.code, report.figures["confirmed"]) == (Code.DONE, 0)


def test_an_empty_system_is_healthy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(conclusion, "sleep", slept.append)
    assert (look(world, pause=7).code, slept) == (Code.DONE, [])


def test_what_is_gone_at_the_second_look_is_no_difference(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, there = bytes.fromhex(damage.no_place(world)), damage.no_place(world)
    monkeypatch.setattr(
        conclusion, "sleep", lambda seconds: world.do("ZADD", "normal", damage.FAR, gone)
    )
    (row,) = look(world, pause=7).rows
    assert (row["found"], row["confirmed"], row["ids"]) == (2, 1, [there])


def test_of_very_many_all_are_counted_and_some_repaired(world: World) -> None:
    world.waiting()
    for _ in range(12):
        damage.stray_attempts(world)
    report = look(world, repair=True, most=11)
    (row,) = report.rows
    assert (row["found"], row["confirmed"], row["repaired"], len(row["ids"])) == (12, 11, 11, 10)
    assert "only 11 of 12" in report.problems[0]
    assert AuditRun.objects.get().findings == 1
    assert look(world, repair=True).rows[0]["repaired"] == 1
    assert AuditRun.objects.order_by("-pk")[0].findings == 0


def test_one_topic_can_be_looked_at_alone(world: World) -> None:
    damage.no_place(world)
    damage.lost(world)
    close_order.using(delay=60).enqueue(1)
    stray = new_id()
    world.store.client.command("HSET", world.key("attempts", ORDERS), stray, bytes(38))
    assert kinds(look(world, topic="orders")) == {"stray attempts": [stray.hex()]}
    assert not AuditRun.objects.exists(), "alerts are about all topics"


def test_many_pages_are_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    record.using(delay=60).enqueue_many([(n,) for n in range(1_200)])
    record.using(delay=60, durable=True).enqueue_many([(n,) for n in range(1_200)])
    lost = damage.lost(world)
    assert kinds(look(world)) == {"lost": [lost]}


@pytest.mark.long
def test_memory_does_not_grow_with_what_waits(world: World) -> None:
    def peak() -> int:
        tracemalloc.start()
        assert look(world).code == Code.DONE
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    record.using(delay=60).enqueue_many([(n,) for n in range(10_000)])
    small = peak()
    record.using(delay=60).enqueue_many([(n,) for n in range(40_000)])
    assert peak() < 1.3 * small + 1_000_000


# The command


def test_the_command_says_what_it_found_and_repairs(world: World) -> None:
    assert said()[0] == 0
    assert "all is well" in said()[1]
    planted = damage.no_place(world)
    code, text = said()
    assert code == 3
    assert "no place" in text and planted in text and "--repair repairs" in text
    code, text = said("--json")
    data = json.loads(text)
    assert (code, data["code"], data["confirmed"], data["repaired"]) == (3, 3, 1, 0)
    assert data["differences"][0]["ids"] == [planted]
    code, text = said("--repair", "--by", "ops")
    assert (code, "repaired 1" in text) == (3, True)
    assert said() == (0, said()[1])
    assert OperatorAction.objects.get(action="audit repair").operator == "ops"


def test_without_redis_the_code_is_no_difference(world: World) -> None:
    with unreachable(), pytest.raises(CommandError) as failed:
        said()
    assert failed.value.returncode == 1


def test_progress_has_a_total(world: World) -> None:
    record.using(delay=timedelta(minutes=5), durable=True).enqueue_many([(n,) for n in range(600)])
    seen: list[tuple[str, int, int]] = []
    examine(world.store, LOOKS, tell=lambda *step: seen.append(step))
    assert all(0 < done <= total for _, done, total in seen)
    assert seen[-1][1] == seen[-1][2] >= OutboxMessage.objects.count()


def test_it_needs_neither_spark_nor_arrow() -> None:
    code = (
        "import django, sys; django.setup(); import django_delayq.management.verbs.doctor; "
        "print({'pyspark', 'pyarrow', 'numpy', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run(
        (sys.executable, "-c", code), capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.strip() == "set()"
