"""The differences that frames show: whole frames, healthy, damaged, and empty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.testing import assertDataFrameEqual

from django_delayq.core.message import HEADER, STAMP
from django_delayq.pipeline import schemas
from django_delayq.pipeline.audit import audit_frames

ID = "0190000000007000800000000000000a"
OTHER = "0190000000007000800000000000000b"
AT = datetime(2026, 11, 20, 9, tzinfo=timezone.utc)
HEADS = {"high": 0x10, "normal": 0x11, "low": 0x12}
PLACES = (
    "message_id string, topic string, partition int, place string, stamp bigint, "
    "recorded boolean, lane string"
)
FOUND = "kind string, topic string, partition int, message_id string, stamp bigint, lake boolean"
ROWS = "row bigint, message_id string, stamp bigint"
OUTBOX = "message_id string, stamp bigint, topic string, status string"
LIVES = "message_id string, stamp bigint, lake boolean"

Frame = Any


@pytest.fixture
def frame(spark: Any) -> Callable[[Sequence[Any], str], Frame]:
    return lambda rows, schema: spark.createDataFrame(list(rows), schema)


@pytest.fixture
def lives(spark: Any) -> Callable[..., Frame]:
    return lambda *rows: spark.createDataFrame(list(rows), LIVES)


def place(name: str, **fields: Any) -> tuple[Any, ...]:
    """Of a healthy message in this place."""
    row = {
        "message_id": ID, "topic": "orders", "partition": 0, "place": name, "stamp": 5,
        "recorded": name not in ("done",), "lane": name if name in HEADS else "normal",
    }  # fmt: skip
    return tuple((row | fields).values())


def found(kind: str, **fields: Any) -> tuple[Any, ...]:
    row = {
        "kind": kind, "topic": "orders", "partition": 0, "message_id": ID, "stamp": 5,
        "lake": False,
    }  # fmt: skip
    return tuple((row | fields).values())


def _as(case: int, row: Sequence[Any]) -> tuple[Any, ...]:
    """Under an id of its own, in the same partition: so that many cases are told apart in one
    go."""
    return (f"{case + 1:06x}{row[0][6:]}", *row[1:])


# What is read


@pytest.mark.long
def test_of_a_queue_only_what_is_compared_is_kept(spark: Any) -> None:
    def row(**fields: Any) -> dict[str, Any]:
        return (
            dict.fromkeys(schemas.QUEUE.names)
            | {"message_id": ID, "topic": "orders", "partition": 3}
            | fields
        )

    def stored(flags: int) -> bytes:
        return STAMP.pack(5, bytes(6)) + HEADER.pack(flags, 1, b"task") + b"[1]"

    queue = spark.createDataFrame(
        [
            row(place="high", enqueued_at_us=5, record=stored(0x90)),
            row(place="low", enqueued_at_us=5, record=stored(0x16)),
            row(place="normal", record=b"short"),
            row(place="leased"),
            row(place="done", enqueued_at_us=7),
        ],
        from_arrow_schema(schemas.QUEUE),
    )
    expected = [
        (ID, "orders", 3, "high", 5, True, "high"),
        (ID, "orders", 3, "low", 5, True, "low"),
        (ID, "orders", 3, "normal", None, True, "normal"),
        (ID, "orders", 3, "leased", None, False, "normal"),
        (ID, "orders", 3, "done", 7, False, "normal"),
    ]
    assertDataFrameEqual(audit_frames.places(queue), spark.createDataFrame(expected, PLACES))


# Redis alone

SUSPECT = "message_id string, topic string, partition int"
IN_ORDER = {
    "waits": [place("high")],
    "runs": [place("leased", lane="low")],
    "runs, and is followed": [place("leased"), place("follower", stamp=9)],
    "ended": [place("finished"), place("done")],
    "ended, and waits again": [place("finished"), place("done"), place("normal", stamp=9)],
    "is seen twice by a scan": [place("normal"), place("normal")],
    "is damaged, but whole": [place("normal", stamp=None)],
}
OUT_OF_ORDER = {
    "no record": [place("low", recorded=False, stamp=None, lane="normal")],
    "no record, and runs": [place("leased", recorded=False, stamp=None)],
    "no place": [place("none")],
    "two lanes": [place("normal"), place("high", lane="normal")],
    "lane and lease": [place("normal"), place("leased")],
    "wrong lane": [place("high", lane="low")],
    "stray attempts": [place("none", recorded=False, stamp=None)],
    "stray follower": [place("follower")],
    "stray follower of what waits": [place("follower"), place("normal")],
}


def test_what_is_in_order_is_not_suspected(frame: Any) -> None:
    """Each under another id, so that all are told apart in one go."""
    rows = [_as(case, row) for case, some in enumerate(IN_ORDER.values()) for row in some]
    assertDataFrameEqual(audit_frames.suspects(frame(rows, PLACES)), frame([], SUSPECT))
    assertDataFrameEqual(audit_frames.suspects(frame([], PLACES)), frame([], SUSPECT))


def test_what_is_out_of_order_is_suspected_once(frame: Any) -> None:
    rows = [_as(case, row) for case, some in enumerate(OUT_OF_ORDER.values()) for row in some]
    expected = [(_as(case, (ID,))[0], "orders", 0) for case in range(len(OUT_OF_ORDER))]
    assertDataFrameEqual(audit_frames.suspects(frame(rows, PLACES)), frame(expected, SUSPECT))


def test_the_same_id_in_two_partitions_is_two_messages(frame: Any) -> None:
    rows = [place("normal", message_id=OTHER), place("normal", message_id=OTHER, partition=1)]
    assertDataFrameEqual(audit_frames.suspects(frame(rows, PLACES)), frame([], SUSPECT))


@pytest.mark.long
def test_a_message_is_where_a_number_of_partitions_puts_it(frame: Any) -> None:
    rows = [
        place("normal"),
        place("normal", partition=1, message_id=OTHER),
        place("normal", partition=7, topic="new"),
        place("follower", partition=2),
        place("normal", partition=3, recorded=False),
        place("leased", partition=1),
        place("low", partition=1),
    ]
    counts = frame([("orders", [1, 2])], "topic string, counts array<int>")
    expected = frame([found("wrong partition", partition=1)], FOUND)
    assertDataFrameEqual(audit_frames.misplaced(frame(rows, PLACES), counts), expected)
    assertDataFrameEqual(audit_frames.misplaced(frame([], PLACES), counts), frame([], FOUND))


# Redis and SQL


@pytest.fixture
def ends(frame: Any, lives: Any) -> Callable[..., Frame]:
    def make(queue: Sequence[Any], outbox: Sequence[Any] = (), ended: Sequence[Any] = ()) -> Frame:
        return audit_frames.ends(frame(queue, PLACES), frame(outbox, OUTBOX), lives(*ended))

    return make


ENDS: list[tuple[list[Any], list[Any], list[Any], str]] = [
    ([place("finished")], [], [], ""),
    ([place("finished", stamp=4)], [], [], "lost end"),
    ([], [(ID, 5, "orders", "sent")], [], "lost end"),
    ([], [(ID, 4, "orders", "sent")], [], "lost end"),
    ([], [(ID, 6, "orders", "waiting")], [], ""),
    ([place("normal", stamp=6)], [], [], ""),
    ([place("normal", stamp=4)], [], [], "lost end"),
    ([place("normal", stamp=None)], [], [], "lost end"),
    ([], [], [(ID, 5, False)], "stale end"),
    ([], [], [(ID, 6, False)], "stale end"),
    ([], [], [(ID, 4, False)], "lost end"),
    ([], [], [], "lost end"),
]


@pytest.mark.long
def test_an_end_that_is_remembered_is_told_or_archived(
    frame: Any, ends: Callable[..., Frame]
) -> None:
    queue = [_as(case, row) for case, some in enumerate(ENDS) for row in (place("done"), *some[0])]
    outbox = [_as(case, row) for case, some in enumerate(ENDS) for row in some[1]]
    ended = [_as(case, row) for case, some in enumerate(ENDS) for row in some[2]]
    expected = [
        found(some[3], message_id=_as(case, (ID,))[0]) for case, some in enumerate(ENDS) if some[3]
    ]
    assertDataFrameEqual(ends(queue, outbox, ended), frame(expected, FOUND))


@pytest.mark.long
def test_of_an_end_that_only_the_lake_knows_that_is_told(
    frame: Any, ends: Callable[..., Frame]
) -> None:
    ended = [(ID, 4, False), (ID, 5, True)]
    assertDataFrameEqual(
        ends([place("done")], [], ended), frame([found("stale end", lake=True)], FOUND)
    )
    assertDataFrameEqual(ends([]), frame([], FOUND))


def test_lives_are_told_once_and_whether_only_the_lake_knows(frame: Any, lives: Any) -> None:
    ours, theirs = [[(n, f"{n:032x}", 5) for n in pair] for pair in ((1, 2), (2, 3))]
    expected = lives((f"{1:032x}", 5, False), (f"{2:032x}", 5, False), (f"{3:032x}", 5, True))
    assertDataFrameEqual(audit_frames.lives(frame(ours, ROWS), frame(theirs, ROWS)), expected)


def test_a_row_of_the_outbox_is_closed_with_its_life(frame: Any, lives: Any) -> None:
    outbox = frame([(ID, 5, "orders", "waiting"), (OTHER, 5, "orders", "sent")], OUTBOX)
    expected = frame([found("unclosed", partition=None, lake=True)], FOUND)
    assertDataFrameEqual(
        audit_frames.unclosed(outbox, lives((ID, 5, True), (OTHER, 4, False))), expected
    )
    assertDataFrameEqual(audit_frames.unclosed(outbox, lives()), frame([], FOUND))


SENT: list[tuple[str, list[Any], list[Any], bool]] = [
    ("sent", [], [], True),
    ("waiting", [], [], False),
    ("sent", [place("low")], [], False),
    ("sent", [place("leased")], [], False),
    ("sent", [place("follower")], [], False),
    ("sent", [place("finished")], [], False),
    ("sent", [place("done")], [], False),
    ("sent", [place("low", stamp=4)], [], True),
    ("sent", [place("low", stamp=None)], [], True),
    ("sent", [], [(ID, 5, True)], False),
    ("sent", [], [(ID, 4, True)], True),
]


def test_what_was_sent_is_somewhere(frame: Any, lives: Any) -> None:
    outbox = [_as(case, (ID, 5, "orders", some[0])) for case, some in enumerate(SENT)]
    queue = [_as(case, row) for case, some in enumerate(SENT) for row in some[1]]
    ended = [_as(case, row) for case, some in enumerate(SENT) for row in some[2]]
    ids = [_as(case, (ID,))[0] for case, some in enumerate(SENT) if some[3]]
    expected = [found("lost", partition=None, message_id=message_id) for message_id in ids]
    shown = audit_frames.lost(frame(outbox, OUTBOX), frame(queue, PLACES), lives(*ended))
    assertDataFrameEqual(shown, frame(expected, FOUND))
    nothing = audit_frames.lost(frame([], OUTBOX), frame([], PLACES), lives())
    assertDataFrameEqual(nothing, frame([], FOUND))


def test_what_is_archived_does_not_wait(frame: Any, lives: Any) -> None:
    queue = [
        place("normal"),
        place("normal"),
        place("leased"),
        place("finished"),
        place("follower"),
    ]
    expected = frame([found("live again", lake=True)], FOUND)
    assertDataFrameEqual(
        audit_frames.live_again(frame(queue, PLACES), lives((ID, 5, True))), expected
    )
    healthy = [
        place("leased"),
        place("finished"),
        place("done"),
        place("normal", stamp=6),
        place("low", stamp=None),
    ]
    assertDataFrameEqual(
        audit_frames.live_again(frame(healthy, PLACES), lives((ID, 5, False))), frame([], FOUND)
    )
