"""Messages in pieces: cut by place, put in order, and summed."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import datetime, timezone
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from django_delayq.pipeline import schemas
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


def made_ready(maker: MessageMaker, tasks: list[list[pa.RecordBatch]]) -> list[dict[str, Any]]:
    """As Spark would: each task cuts its rows, and the pieces come in the order of their parts."""
    cells = maker.partitions * maker.planned.options.splits
    cuts = [cut for rows in tasks for cut in pieces.cut(maker(rows), cells)]
    whole = pa.Table.from_batches(cuts, pieces.CUT_ROWS).sort_by("part")
    ready = pa.Table.from_batches(pieces.ready(whole.to_batches(7)), pieces.READY)
    found: list[dict[str, Any]] = ready.to_pylist()
    for row in found:
        for name, schema in (("messages", schemas.MESSAGES), ("why", pieces.WHY)):
            values = pa.array([row[name]], pa.binary())
            row[name] = [
                one for rows in schemas.unpacked_rows(values, schema) for one in rows.to_pylist()
            ]
    return found


@pytest.mark.parametrize("cut", [pieces.CUT, 1])
def test_each_row_is_in_one_piece_and_each_split_in_the_order_of_its_ids(
    maker: MessageMaker, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    monkeypatch.setattr(pieces, "CUT", cut)
    keys: list[str | None] = [str(number) for number in range(3_000)]
    random.Random(3).shuffle(keys)
    tasks = [batches(keys[:1_000]), batches(keys[1_000:])]
    found = made_ready(maker, tasks)
    sent = [message for row in found for message in row["messages"]]
    made = pa.Table.from_batches(maker(batches(keys))).select(schemas.MESSAGES.names).to_pylist()
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
    found = made_ready(maker, [rows])
    assert sum(row["rows"] or 0 for row in found) == 500
    assert (
        sum(row["body_bytes"] or 0 for row in found)
        == pc.sum(pc.binary_length(made["body"])).as_py()
    )
    assert (
        str(sum(int(row["hash"] or 0) for row in found))
        == messages.totals(made["body"], made["hash"]).hash
    )


def test_rows_of_one_key_are_refused_also_when_two_tasks_have_them(maker: MessageMaker) -> None:
    found = made_ready(maker, [batches(["1", "2", None]), batches(["2", "3", "3", "3", None])])
    assert [message["body"] for row in found for message in row["messages"]] == [
        message["body"] for message in pa.Table.from_batches(maker(batches(["1"]))).to_pylist()
    ]
    refused = sorted((one["reason"], one["name"]) for row in found for one in row["why"])
    assert refused == [
        *[("its key is null", None)] * 2,
        *[("its key stands 2 times in the source", "2")] * 2,
        *[("its key stands 3 times in the source", "3")] * 3,
    ]
    assert sum(row["refused"] or 0 for row in found) == 7


def test_a_piece_holds_no_more_rows_and_bytes_than_it_may(
    maker: MessageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = batches([str(number) for number in range(2_000)])
    monkeypatch.setattr(pieces, "READY_ROWS", 3)
    assert max(row["rows"] or 0 for row in made_ready(maker, [rows])) == 3
    refused = [row["refused"] for row in made_ready(maker, [batches(["one key"] * 10)])]
    assert refused == [3, 3, 3, 1]
    monkeypatch.setattr(pieces, "READY_ROWS", 2_000)
    monkeypatch.setattr(pieces, "READY_BYTES", 1_000)
    assert 1 < max(row["rows"] or 0 for row in made_ready(maker, [rows])) < 10
    monkeypatch.setattr(pieces, "READY_BYTES", 1)
    assert max(row["rows"] or 0 for row in made_ready(maker, [rows])) == 1, "one is always taken"


def test_rows_that_are_no_messages_are_not_all_in_one_part(maker: MessageMaker) -> None:
    nameless: list[str | None] = [None] * 1_000
    for keys in ([*map(str, range(1_000)), *nameless], nameless):
        found = made_ready(maker, [batches(keys, 2_000)])
        assert sum(row["refused"] or 0 for row in found) == 1_000
        assert max(row["refused"] or 0 for row in found) < 10


def test_many_cells_have_few_parts(maker: MessageMaker) -> None:
    rows = batches([str(number) for number in range(3_000)])
    found = made_ready(replace(maker, partitions=pieces.ALL_PARTS), [rows])
    assert sum(row["rows"] or 0 for row in found) == 3_000
    places = [(one["partition"], one["split"]) for row in found for one in row["messages"]]
    pieces_of = Counter(row["messages"][0]["partition"] for row in found)
    assert max(pieces_of.values()) <= SPLITS, "a cell is one part"
    assert places == sorted(places)


def test_a_source_without_rows_has_no_pieces(maker: MessageMaker) -> None:
    (rows,) = batches(["1"])
    assert made_ready(maker, [[], batches([]), [rows.slice(1)]]) == []
