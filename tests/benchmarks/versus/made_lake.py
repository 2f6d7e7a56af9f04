"""Makes a lake of any size, quickly: the same rows each time, with commits as the export leaves
them.

Its times are two lognormal ones, so that their percentiles lie far apart.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from django_delayq.pipeline import schemas
from django_delayq.pipeline.lake.files import Store, write_rows
from django_delayq.pipeline.lake.lake import Lake
from tests.benchmarks.seed import ERRORS, TASKS, WEIGHTS

#: Rows of one commit.
BATCH = 1_000_000
BEGIN = np.datetime64("2026-10-01T00:00:00", "us")
DAYS = 30
NULL = ("max_attempts", "replay_of")
STATES, SHARES = ("acked", "dead", "cancelled"), (0.96, 0.025, 0.015)


def make(root: Path, rows: int) -> Lake:
    """A new lake with so many rows over thirty days, about in the order of their ids."""
    lake, dice = Lake(root), np.random.default_rng(rows)
    lake.create()
    store = Store(lake.storage)
    for lo in range(0, rows, BATCH):
        hi = min(lo + BATCH, rows)
        batches = _table(dice, lo, hi, rows).to_batches()
        lake.append(list(write_rows(store, batches, f"{lo}-{hi}")), (lo, hi))
    return lake


def repeat(source: Lake, root: Path, times: int) -> Lake:
    """A lake with the same files so many times, by links: nothing is copied."""
    lake, files = Lake(root), source.files()
    lake.create()
    step = source.last_id
    for turn in range(times):
        linked = []
        for file in files:
            path = f"dt={file.dt}/{turn}-{Path(file.path).name}"
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            os.link(Path(source.uri, file.path), root / path)
            linked.append(file._replace(path=path))
        lake.append(linked, (turn * step, turn * step + step))
    return lake


def _table(dice: np.random.Generator, lo: int, hi: int, rows: int) -> pa.Table:
    count, ids = hi - lo, np.arange(lo + 1, hi + 1)
    weights = np.array(WEIGHTS) / sum(WEIGHTS)
    task, state = (
        dice.choice(len(TASKS), count, p=weights),
        dice.choice(len(STATES), count, p=SHARES),
    )
    step = DAYS * 86_400_000_000 / rows
    early = dice.integers(0, 2_000_000, count)
    finished = BEGIN + np.maximum((ids - 1) * step - early, 0).astype("timedelta64[us]")
    late, run = np.round(dice.lognormal(2, 1, count), 3), np.round(dice.lognormal(3.5, 1, count), 3)
    due = finished - ((late + run) * 1000).astype("timedelta64[us]")
    ran, dead = state != 2, state == 1
    known = {
        "id": ids,
        "message_id": _digits(dice, count),
        "enqueued_at": due - np.timedelta64(1_800_000_000, "us"),
        "topic": _named([topic for topic, _ in TASKS], task),
        "task": _named([name for _, name in TASKS], task),
        "state": _named(STATES, state),
        "attempts": np.where(dead, 3, 1),
        "due_at": due,
        "started_at": pa.array(due, mask=~ran),
        "finished_at": finished,
        "lateness_ms": pa.array(late, mask=~ran),
        "run_ms": pa.array(run, mask=~ran),
        "error_class": _named([*ERRORS, ""], np.where(dead, ids % len(ERRORS), len(ERRORS))),
        "body": _named(
            [f'{{"args":[{n}],"kwargs":{{"reason":"unpaid"}}}}' for n in range(1000)], ids % 1000
        ),
        "ttr_ms": np.full(count, 60_000),
    }
    return pa.table(
        [_column(field, known.get(field.name), count) for field in schemas.ARCHIVE], schemas.ARCHIVE
    )


def _column(field: pa.Field, values: Any, count: int) -> pa.Array:
    """As it should be; what nobody asks for is empty, 0 or null."""
    if values is None:
        nothing = "" if pa.types.is_string(field.type) else 0
        return pa.repeat(pa.scalar(None if field.name in NULL else nothing, field.type), count)
    array = values if isinstance(values, pa.Array) else pa.array(values)
    if pa.types.is_timestamp(field.type):
        return array.cast(pa.timestamp("us")).view(pa.int64()).view(field.type)
    return array.cast(field.type)


def _named(names: Any, codes: Any) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(list(names))).cast(
        pa.string()
    )


def _digits(dice: np.random.Generator, count: int) -> pa.Array:
    """32 hexadecimal digits each."""
    digits = pa.py_buffer(dice.bytes(16 * count).hex().encode())
    ends = pa.py_buffer(np.arange(0, 32 * count + 1, 32, dtype=np.int32).tobytes())
    return pa.StringArray.from_buffers(count, ends, digits)
