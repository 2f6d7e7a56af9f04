"""Lakes made by hand, without a database and without Spark, and a store that speaks S3."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa

from django_delayq.pipeline import schemas
from django_delayq.pipeline.lake.files import LakeFile, Store, new_name, read_file, write_rows
from django_delayq.pipeline.lake.lake import Lake
from tests.servers import PORTS

NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


def batch_of(ids: Iterable[int], finished_at: datetime = NOON, **columns: Any) -> pa.RecordBatch:
    """Rows with these ids."""
    plain = {"topic": "orders", "finished_at": finished_at, "enqueued_at": finished_at}
    rows = [
        {**plain, "id": pk, "message_id": f"{pk:032x}", "body": f"body {pk * 7919}", **columns}
        for pk in ids
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schemas.ARCHIVE)


def rows_of(
    lake: Lake, ids: Sequence[int] | range, finished_at: datetime = NOON, **columns: Any
) -> list[LakeFile]:
    """Written files with these rows, which no commit names."""
    name = new_name((min(ids) - 1, max(ids)))
    return list(write_rows(Store(lake.storage), [batch_of(ids, finished_at, **columns)], name))


def add(lake: Lake, count: int, finished_at: datetime = NOON) -> int:
    """Append so many rows after the last one. Returns the version."""
    lake.create()
    lo = lake.last_id
    return lake.append(rows_of(lake, range(lo + 1, lo + count + 1), finished_at), (lo, lo + count))


def ids_in(lake: Lake) -> list[int]:
    """Sorted."""
    store = Store(lake.storage)
    return sorted(
        pk
        for file in lake.files()
        for batch in read_file(store, file, ["id"])
        for pk in batch["id"].to_pylist()
    )


@contextmanager
def running_bucket() -> Iterator[dict[str, str]]:
    """The options of the bucket `shop` of moto. It is a process of its own: delta-rs keeps Python
    from running while it waits for an answer."""
    port = secrets.choice(PORTS)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        endpoint = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while True:
            try:
                put = urllib.request.Request(f"{endpoint}/shop", method="PUT")
                urllib.request.urlopen(put, timeout=10).close()
                break
            except OSError:
                assert time.monotonic() < deadline and server.poll() is None
                time.sleep(0.1)
        yield {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "ours",
        }
    finally:
        server.kill()
        server.wait()
