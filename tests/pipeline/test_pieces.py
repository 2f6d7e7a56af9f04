"""Messages in pieces: cut by place, put in order, and summed."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import datetime, timezone
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from django_delayq.pipeline.bulk_load import messages, pieces, row_messages
from django_delayq.pipeline.bulk_load.row_messages import MessageMaker
from django_delayq.pipeline.params import ParameterSpec, ScheduleOptions, TaskSpec

SPLITS, PARTITIONS = 3, 4


@pytest.fixture
def maker() -> MessageMaker:
    parameters = [ParameterSpec(name="text", kind="both", annotation="str")]
    task = TaskSpec(name="shop.remind", topic="mail", ttr_ms=60_000, parameters=parameters)
    options = ScheduleOptions(
        job="night", task=task, source="", format="parquet", key="key", splits=SPLITS
    )
    schema = pa.schema([("key", pa.string()), ("text", pa.string())])
    return MessageMaker(
        planned=row_messages.plan(options, schema), now=datetime(2026, 11, 20, tzinfo=timezone.utc),
        limit=200, partitions=PARTITIONS,
    )  # fmt: skip


def batches(keys: list[str | None], each: int = 100) -> list[pa.RecordBatch]:
    texts = [f"käse {key}" for key in keys]
    whole = pa.table({"key": pa.array(keys, pa.string()), "text": texts})
    return whole.to_batches(each)  # type: ignore[no-any-return]


class Found(NamedTuple):
    """What a job makes of its rows."""

    totals: list[dict[str, Any]]
    """Of each part."""
    messages: list[list[dict[str, Any]]]
    """Of each batch."""
    why: list[list[dict[str, Any]]]


def found_in(maker: MessageMaker, tasks: list[list[pa.RecordBatch]]) -> Found:
    """As Spark would: each task cuts its rows, and the pieces come in the order of their parts."""
    cells = maker.partitions * maker.planned.options.splits
    cuts = [cut for rows in tasks for cut in pieces.cut(maker(rows), cells)]
    whole = pa.Table.from_batches(cuts, pieces.CUT_ROWS).sort_by("part").to_batches(7)
    return Found(
        [row for rows in pieces.part_totals(whole) for row in rows.to_pylist()],
        [rows.to_pylist() for rows in pieces.ready(whole, maker)],
        [rows.to_pylist() for rows in pieces.reasons(whole)],
    )


def together(batches: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [row for rows in batches for row in rows]


@pytest.mark.parametrize("cut", [pieces.CUT, 1])
def test_each_row_is_in_one_piece_and_each_split_in_the_order_of_its_ids(
    maker: MessageMaker, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    monkeypatch.setattr(pieces, "CUT", cut)
    keys: list[str | None] = [str(number) for number in range(3_000)]
    random.Random(3).shuffle(keys)
    tasks = [batches(keys[:1_000]), batches(keys[1_000:])]
    sent = together(found_in(maker, tasks).messages)
    made = maker.as_messages(pa.Table.from_batches(maker(batches(keys)))).to_pylist()
    assert sorted(sent, key=itemgetter("id")) == sorted(made, key=itemgetter("id"))
    of_split = defaultdict(list)
    for message in sent:
        of_split[message["partition"], message["split"]].append(message["id"])
    assert len(of_split) == SPLITS * PARTITIONS
    assert all(ids == sorted(ids) for ids in of_split.values())
    places = [key for key, _ in groupby(sent, lambda one: (one["partition"], one["split"]))]
    assert places == sorted(of_split), "a split comes in one piece"


def test_the_sums_of_the_pieces_are_those_of_the_rows(maker: MessageMaker) -> None:
    rows = batches([str(number) for number in range(500)])
    made = pa.Table.from_batches(maker(rows))
    totals = found_in(maker, [rows]).totals
    assert sum(row["rows"] for row in totals) == 500
    sizes = pc.binary_length(made["body"])
    assert sum(row["body_bytes"] for row in totals) == pc.sum(sizes).as_py()
    assert str(sum(int(row["hash"]) for row in totals)) == messages.totals(sizes, made["hash"]).hash


def test_rows_of_one_key_are_refused_also_when_two_tasks_have_them(maker: MessageMaker) -> None:
    found = found_in(maker, [batches(["1", "2", None]), batches(["2", "3", "3", "3", None])])
    (alone,) = maker(batches(["1"]))
    assert [message["body"] for message in together(found.messages)] == alone["body"].to_pylist()
    assert sum(int(row["hash"]) for row in found.totals) == alone["hash"][0].as_py()
    refused = sorted((one["reason"], one["name"]) for one in together(found.why))
    assert refused == [
        *[("its key is null", None)] * 2,
        *[("its key stands 2 times in the source", "2")] * 2,
        *[("its key stands 3 times in the source", "3")] * 3,
    ]
    assert sum(row["bad"] for row in found.totals) == 7


def test_a_batch_holds_no_more_rows_and_bytes_than_it_may(
    maker: MessageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def most(keys: list[str | None]) -> int:
        return max(map(len, found_in(maker, [batches(keys)]).messages))

    keys: list[str | None] = [str(number) for number in range(2_000)]
    monkeypatch.setattr(pieces, "MOST_ROWS", 3)
    assert most(keys) == 3
    found = found_in(maker, [batches(["one key"] * 10)])
    assert [len(rows) for rows in found.why] == [3, 3, 3, 1]
    monkeypatch.setattr(pieces, "MOST_ROWS", 2_000)
    monkeypatch.setattr(pieces, "MOST_BYTES", 1_000)
    assert 1 < most(keys) < 15
    monkeypatch.setattr(pieces, "MOST_BYTES", 1)
    assert most(keys) == 1, "one is always taken"


def test_rows_that_are_no_messages_are_not_all_in_one_part(maker: MessageMaker) -> None:
    nameless: list[str | None] = [None] * 1_000
    for keys in ([*map(str, range(1_000)), *nameless], nameless):
        found = found_in(maker, [batches(keys, 2_000)])
        assert sum(row["bad"] for row in found.totals) == 1_000
        assert max(row["bad"] for row in found.totals) < 10
        assert len(together(found.why)) == 1_000


def test_many_cells_have_few_parts(maker: MessageMaker) -> None:
    rows = batches([str(number) for number in range(3_000)])
    found = found_in(replace(maker, partitions=pieces.ALL_PARTS), [rows])
    assert len(together(found.messages)) == 3_000
    places = [(one["partition"], one["split"]) for one in together(found.messages)]
    batches_of = Counter(rows[0]["partition"] for rows in found.messages)
    assert max(batches_of.values()) <= SPLITS, "a cell is one part"
    assert places == sorted(places)


def test_a_source_without_rows_has_no_pieces(maker: MessageMaker) -> None:
    (rows,) = batches(["1"])
    assert found_in(maker, [[], batches([]), [rows.slice(1)]]) == ([], [], [])
