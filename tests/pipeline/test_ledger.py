"""What SQL knows of a lake, while others commit to it and after they died. Without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.models import ArchivedMessage, LakeBatch
from django_delayq.pipeline import schemas
from django_delayq.pipeline.job_errors import LakeConflict
from django_delayq.pipeline.lake import differences
from django_delayq.pipeline.lake.differences import export_again
from django_delayq.pipeline.lake.files import Store, new_name, write_rows
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.lake.ledger import Ledger
from django_delayq.pipeline.params import Database
from django_delayq.pipeline.sources.table_reader import read_rows
from tests.pipeline.lakes import ids_in, rows_of
from tests.pipeline.rows import make_rows

pytestmark = pytest.mark.databases


@pytest.fixture
def database(parameters: Any) -> Database:
    found: Database = parameters().database
    return found


@pytest.fixture
def ledger(parameters: Any, lake: str) -> Ledger:
    made = Lake(lake)
    made.create()
    return Ledger(made)


def copy(ledger: Ledger, database: Database) -> tuple[tuple[int, int], int, int]:
    """Commit what the lake lacks. Returns its ids, the version and the rows: the ledger knows
    nothing of it."""
    lake = ledger.lake
    lake.refresh()
    last = ArchivedMessage.objects.order_by("-pk").values_list("pk", flat=True)[0]
    ids = lake.last_id, last
    rows = read_rows(database, schemas.ARCHIVE, ids)
    files = list(write_rows(Store(lake.storage), rows, new_name(ids)))
    return ids, lake.append(files, ids), sum(file.rows for file in files)


def export(ledger: Ledger, database: Database) -> None:
    ledger.committed(*copy(ledger, database))


def test_what_another_export_commits_after_the_look_is_no_older_copy(
    ledger: Ledger, database: Database, lake: str
) -> None:
    other = Ledger(Lake(lake))
    make_rows(3)
    export(other, database)
    ledger.check()
    assert ledger.lake.last_id == other.lake.last_id


def test_a_commit_whose_export_died_is_found_behind_a_repair(
    ledger: Ledger, database: Database
) -> None:
    first = make_rows(3)
    export(ledger, database)
    make_rows(4)
    ids, *_ = copy(ledger, database)
    ArchivedMessage.objects.filter(pk=first[0]).update(worker="somebody else")
    export_again(database, ledger, first[:1])
    for _ in range(2):
        file, *_ = ledger.lake.files()
        ledger.lake.replace("compact", [file], rows_of(ledger.lake, range(1, file.rows + 1)))
    ledger.catch_up()
    found = LakeBatch.objects.get(lo=ids[0])
    assert (found.hi, found.rows, found.problem) == (ids[1], 4, "")


def test_a_repair_leaves_what_sql_has_lost_meanwhile(ledger: Ledger, database: Database) -> None:
    ids = make_rows(3)
    export(ledger, database)
    ArchivedMessage.objects.filter(pk__in=ids[:2]).update(worker="somebody else")
    ArchivedMessage.objects.filter(pk=ids[0]).delete()  # a prune takes it
    assert export_again(database, ledger, ids[:2]) == {ids[1]}
    assert ids_in(ledger.lake) == ids
    version = ledger.lake.version
    assert export_again(database, ledger, ids[:1]) == set()
    assert (ids_in(ledger.lake), ledger.lake.version) == (ids, version)


def test_of_two_repairs_at_once_one_adds_the_row(
    ledger: Ledger, database: Database, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = make_rows(3)
    late = ArchivedMessage.objects.get(pk=ids[1])
    late.delete()
    export(ledger, database)
    late.pk = ids[1]
    late.save(force_insert=True)
    written = differences.write_rows

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(differences, "write_rows", written)
        export_again(database, Ledger(Lake(lake)), [late.pk])
        return written(*arguments)

    monkeypatch.setattr(differences, "write_rows", slow)
    with pytest.raises(LakeConflict, match="another was first"):
        export_again(database, ledger, [late.pk])
    assert ids_in(Lake(lake)) == ids
