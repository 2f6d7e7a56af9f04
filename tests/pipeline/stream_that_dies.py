"""The job stream in a process that is killed, with its Java, when it comes to a point: PARAMS
POINT.

The process has to be the first of its group. Its database and its lake are those of the parameters.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django_delayq.pipeline import params_from_django, session
from django_delayq.pipeline.lake import batches, lake
from django_delayq.pipeline.params import Params
from tests.pipeline.quick import JAVA, QUICK


def _die(*_: Any) -> None:
    os.killpg(0, signal.SIGKILL)


def _while_it_writes() -> None:
    """Some of the files are there, or parts of them."""
    copy = batches.copy

    def begun(spark: Any, database: Any, ids: Any, attempt: Path) -> Any:
        threading.Thread(target=_when_there_are_files, args=(attempt,), daemon=True).start()
        return copy(spark, database, ids, attempt)

    batches.copy = begun


def _when_there_are_files(attempt: Path) -> None:
    while not any(path.is_file() for path in attempt.rglob("*")):
        time.sleep(0.01)
    _die()


def _before_the_commit() -> None:
    """All files are there, and were read again."""
    lake.Lake.commit = _die  # type: ignore[method-assign, assignment]


def _after_the_commit() -> None:
    """The lake has the batch; neither the ledger nor Spark's checkpoint knows."""
    commit = lake.Lake.commit

    def then(self: lake.Lake, one: Any) -> Any:
        commit(self, one)
        _die()

    lake.Lake.commit = then  # type: ignore[method-assign]


POINTS: dict[str, Callable[[], None]] = {
    "while it writes": _while_it_writes,
    "before the commit": _before_the_commit,
    "after the commit": _after_the_commit,
}


def main(params_file: str, point: str) -> None:
    """Stream, and die there."""
    params = Params.decode(Path(params_file).read_bytes())
    params_from_django.set_up(params)
    from django_delayq.pipeline.export import stream

    spark = session.build_session("local[2]", "512m", QUICK, java_options=JAVA)
    POINTS[point]()
    stream.run(spark, params, print)


if __name__ == "__main__":
    main(*sys.argv[1:])
