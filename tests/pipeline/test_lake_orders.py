"""Export, compaction, repair, erasure and vacuum in each other's way: whatever commits between the
files of another one and its commit, the lake has each row of SQL once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from django_delayq.archive.erasure import Person
from django_delayq.core.job_report import ignore
from django_delayq.models import ArchivedMessage
from django_delayq.operators.erase import erase
from django_delayq.pipeline import schemas
from django_delayq.pipeline.export import export
from django_delayq.pipeline.job_errors import LakeConflict
from django_delayq.pipeline.lake import compaction
from django_delayq.pipeline.lake.differences import export_again
from django_delayq.pipeline.lake.files import Store, bits, read_file
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.lake.lake_erasure import LakeErasure
from django_delayq.pipeline.lake.ledger import Ledger
from django_delayq.pipeline.params import Params, Secret, Storage
from django_delayq.pipeline.sources.table_reader import read_rows
from tests.hands import together
from tests.pipeline.lakes import ids_in
from tests.pipeline.rows import make_rows

pytestmark = pytest.mark.spark

ANNA = "anna@example.org"
BEGIN = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
STEPS = ("export", "compact", "repair", "erase", "vacuum")
Step = Callable[[], bool]


class World:
    """An archive and its lake. Each round has work for each step."""

    def __init__(self, spark: Any, params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark, self.params, self.rounds = spark, params, 0
        self.wrong: list[int] = []
        """Ids of rows that differ between SQL and the lake."""
        self.waiting: list[Step] = []
        """What happens at the next commits: each at the next commit of the one before."""
        commit = Lake._commit

        def interrupted(lake: Lake, *arguments: Any) -> int:
            if self.waiting:
                self.waiting.pop(0)()
            return commit(lake, *arguments)

        monkeypatch.setattr(Lake, "_commit", interrupted)

    @property
    def lake(self) -> Lake:
        """As it is now."""
        return Lake(self.params.lake)

    def prepare(self) -> None:
        """A day with two small files, two rows of which change in SQL, and four rows to export; two
        rows are Anna's."""
        self.rounds += 1
        day = BEGIN + timedelta(days=self.rounds)

        def body(number: int) -> str:
            return json.dumps({"args": [ANNA if number == 2 else "otto"], "kwargs": {}})

        pks = []
        for _ in range(2):
            pks += make_rows(4, finished_at=day, body=body)
            assert self.export()
        self.wrong = [pks[0], pks[-1]]
        ArchivedMessage.objects.filter(pk__in=self.wrong).update(run_ms=self.rounds)
        make_rows(4, finished_at=day, body=body)

    # The steps; False: another one was first, run it again

    def export(self) -> bool:
        options = {"settle": 0, "compact": False}
        params = msgspec.structs.replace(self.params, job=options)
        return export.run(self.spark, params, ignore).code == 0

    def compact(self) -> bool:
        now = BEGIN + timedelta(days=9_999)
        waiting = len(compaction.groups(self.lake, now))
        figures = compaction.compact(self.spark, self.lake, now, ignore)
        return figures["compacted_into"] == waiting

    def repair(self) -> bool:
        try:
            export_again(self.params.database, Ledger(self.lake), self.wrong)
        except LakeConflict:
            return False
        return True

    def erase(self) -> bool:
        person = Person(argument="args.0", value=ANNA)
        lake = LakeErasure(self.params.lake)
        return erase(person, wait=0, lake=lake, delete=self.rounds % 2 == 0).complete

    def vacuum(self) -> bool:
        if self.waiting:
            self.waiting.pop(0)()
        self.lake.tidy(86_400)
        return True

    # What has to be true

    def run(self, names: Sequence[str]) -> None:
        """The first step; each other one between the files and the commit of the one before it."""
        self.prepare()
        reader, before = self.lake, ids_in(self.lake)
        first, *self.waiting = (getattr(self, name) for name in names)
        first()
        while self.waiting:  # the one before had nothing to commit
            self.waiting.pop(0)()
        self.check(before)
        assert ids_in(reader) == before  # its files stay
        self.settle()

    def settle(self) -> None:
        """Run all again, as people do who were told of a conflict. Then the lake is SQL."""
        for name in STEPS:
            assert any(getattr(self, name)() for _ in range(3)), name
        ours = pa.Table.from_batches(
            read_rows(self.params.database, schemas.ARCHIVE, (0, 2**62)), schemas.ARCHIVE
        )
        store = Store(self.lake.storage)
        batches = [batch for file in self.lake.files() for batch in read_file(store, file)]
        theirs = pa.Table.from_batches(batches, schemas.ARCHIVE).sort_by("id")
        assert bits(theirs).equals(bits(ours))
        assert not any(ANNA in body for body in theirs["body"].to_pylist())

    def check(self, before: Sequence[int]) -> None:
        """No row is there twice, and none that SQL has is lost."""
        held, stored = ids_in(self.lake), {*ArchivedMessage.objects.values_list("pk", flat=True)}
        assert len(held) == len({*held})
        assert {*before} & stored <= {*held}
        assert len(held) == sum(file.rows for file in self.lake.files())


@contextmanager
def _world(spark: Any, params: Params) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        yield World(spark, params, patch)


@pytest.fixture
def world(spark: Any, parameters: Any) -> Iterator[World]:
    with _world(spark, parameters()) as found:
        yield found


@pytest.fixture
def on_s3(spark: Any, parameters: Any, bucket: dict[str, str], tmp_path: Path) -> Iterator[World]:
    """The executors' Python is older than this test: it reads the secret in a file."""
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    secrets = {"AWS_SECRET_ACCESS_KEY": Secret(f"file:{secret}")}
    storage = Storage(f"s3://shop/{tmp_path.name}", bucket, secrets)
    with _world(spark, parameters(lake=storage)) as found:
        yield found


@pytest.mark.databases
@pytest.mark.parametrize("first", ["export", pytest.param("repair", marks=pytest.mark.long)])
def test_two_steps_of_a_kind(world: World, first: str) -> None:
    world.run([first, first])


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", STEPS)
def test_all_orders_of_two(world: World, first: str) -> None:
    for second in STEPS:
        world.run([first, second])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", STEPS)
def test_all_orders_of_three(world: World, first: str) -> None:
    for rest in permutations([name for name in STEPS if name != first], 2):
        world.run([first, *rest])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", ["export", "repair", "erase"])
def test_orders_of_two_on_s3(on_s3: World, first: str) -> None:
    for second in STEPS:
        on_s3.run([first, second])


@pytest.mark.long
@pytest.mark.timeout(300)
def test_all_at_the_same_time(world: World) -> None:
    for _ in range(5):
        world.prepare()
        before = ids_in(world.lake)
        together(*(getattr(world, name) for name in STEPS))
        world.check(before)
        world.settle()
