"""kill -9 of the driver and its JVM at every step of the export: the next run goes on, and loses
and doubles nothing.

DELAYQ_KILLS=3 kills three times in a row also where each kill needs a JVM of its own, and between
the steps. This module is also the program that is killed: `python -m
tests.pipeline.test_export_killed STEP LAKE`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from django_delayq.core.job_report import ignore
from tests.databases import VARIABLE

DAY = 86_400
AGO = datetime(2026, 11, 1, 23, 50, tzinfo=timezone.utc)
ROWS = 60
OPTIONS = {"settle": 0, "batch": 40}
TIMES = int(os.environ.get("DELAYQ_KILLS", "1"))
#: Steps that need a JVM: `writing` dies as soon as there is a file, `copied` before the commit, and
#: `committed` before the ledger has it.
WITH_JVM = ("writing", "committed", "interval", *(("copied",) if TIMES > 1 else ()))


@pytest.mark.long
@pytest.mark.databases
@pytest.mark.timeout(900)
def test_killed_at_any_step_the_export_goes_on(spark: Any, parameters: Any, tmp_path: Path) -> None:
    from django_delayq.models import ArchivedMessage, LakeBatch
    from django_delayq.pipeline.export import export
    from django_delayq.pipeline.lake.lake import Lake
    from django_delayq.pipeline.lake.lake_source import read_lake
    from django_delayq.pipeline.params import Storage
    from tests.pipeline.rows import make_rows

    ids = make_rows(ROWS, finished_at=lambda n: AGO + timedelta(minutes=n))
    lakes = {step: tmp_path / step for step in ("planned", *WITH_JVM)}
    with ThreadPoolExecutor(2) as pool:  # as many as there are processors
        list(pool.map(lambda step: kill_in_a_row(step, lakes[step]), lakes))
    for step, path in lakes.items():
        files = {str(found) for found in Path(path).rglob("dt=*/*.parquet")}
        stumps = files - set(Lake(path).uris())
        assert bool(stumps) == (step in ("writing", "copied", "interval")), step
        params = parameters(lake=Storage(str(path)), job={**OPTIONS, "compact": False})
        export.run(spark, params, ignore)
        lake = Lake(path)
        rows = [row.id for row in read_lake(spark, lake, ["id"]).collect()]
        assert len(rows) == len(set(rows)) == ArchivedMessage.objects.count() == ROWS, step
        log = [(one.lo, one.hi, one.version, one.rows) for one in lake.appended(-1)]
        assert [one[:2] for one in log] == [(0, ids[39]), (ids[39], ids[59])], step
        batches = LakeBatch.objects.filter(table_id=lake.table_id).order_by("lo")
        assert list(batches.values_list("lo", "hi", "version", "rows")) == log, step
        assert lake.tidy(0) == len(stumps), step
        assert read_lake(spark, lake).count() == ROWS


@pytest.mark.long
@pytest.mark.databases
@pytest.mark.timeout(300)
def test_killed_three_times_while_it_prunes_it_goes_on(
    spark: Any, parameters: Any, lake: str
) -> None:
    from django_delayq.models import ArchivedMessage, LakeBatch, OperatorAction
    from django_delayq.pipeline.export import export
    from django_delayq.pipeline.lake.lake import Lake
    from django_delayq.pipeline.lake.lake_source import read_lake
    from tests.pipeline.rows import make_rows

    dead = make_rows(1, finished_at=AGO, state="dead")
    make_rows(ROWS, finished_at=AGO)
    export.run(spark, parameters(job=OPTIONS), ignore)
    left = [ROWS + 1]
    for _ in range(3):  # a chunk more each time
        kill("pruned", lake)
        left.append(ArchivedMessage.objects.count())
    assert left == sorted(set(left), reverse=True)
    report = export.run(spark, parameters(job={**OPTIONS, "prune": DAY}), ignore)
    assert (report.figures["pruned"], report.problems) == (left[-1] - 1, [])
    assert list(ArchivedMessage.objects.values_list("pk", flat=True)) == dead
    assert list(LakeBatch.objects.order_by("lo").values_list("pruned", flat=True)) == [39, 21]
    assert sum(OperatorAction.objects.values_list("count", flat=True)) == ROWS
    assert read_lake(spark, Lake(lake), ["id"]).distinct().count() == ROWS + 1


def kill_in_a_row(step: str, lake: Path) -> None:
    """A batch that is committed is not to be killed again."""
    times = 1 if step in ("committed", "interval") else TIMES if step in WITH_JVM else 3
    for _ in range(times):
        kill(step, str(lake))


def kill(step: str, lake: str) -> None:
    """Run the export in a process group of its own, which ends itself at this step."""
    from django.db import connection

    names = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
    entry = {
        name: connection.settings_dict[name] for name in names if connection.settings_dict.get(name)
    }
    told = {
        VARIABLE: json.dumps({**entry, "NAME": str(entry["NAME"])}),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
    }
    command = [sys.executable, "-m", "tests.pipeline.test_export_killed", step, lake]
    child = subprocess.Popen(
        command,
        env={**os.environ, **told},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        said, _ = child.communicate(timeout=240)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL, f"{step}: {said.decode()}"


# The program that is killed


def main(step: str, lake: str) -> None:
    import django

    django.setup()
    from django_delayq.pipeline import params_from_django
    from django_delayq.pipeline.export import export
    from django_delayq.pipeline.lake import pruning
    from django_delayq.pipeline.params import Storage

    options: dict[str, Any] = dict(OPTIONS)
    if step == "pruned":
        from django_delayq.pipeline.lake.differences import Differences

        options["prune"] = DAY
        pruning.CHUNK = 10
        changed: Any = export
        changed.compare_batches = lambda *arguments: Differences()  # that needs Java
    if step == "interval":
        options["interval"] = 0.1
        settle_40_rows_at_first()
    prepare(step)
    options["compact"] = False
    with params_from_django.parameters(lake=Storage(lake), job=options) as params:
        export.run(session(step), params, ignore)


def session(step: str) -> Any:
    """None where it is not come to."""
    from django_delayq.pipeline.session import build_session
    from tests.pipeline.quick import JAVA, QUICK

    if step in WITH_JVM:
        return build_session("local[1]", "512m", java_options=JAVA, extra=QUICK)
    return None


def prepare(step: str) -> None:
    """Die at this step."""
    from django_delayq.pipeline.lake import lake, ledger, pruning

    appends = (lake.Lake, "append")
    if step == "planned":
        after(ledger.Ledger, "plan", 1)
    elif step == "pruned":
        after(pruning, "delete_counted", 2)  # in the transaction of the second chunk
    elif step == "committed":
        before(ledger.Ledger, "committed", lambda *arguments: True)
    elif step == "interval":
        before(*appends, lambda this, *arguments: this.last_id > 0)
    else:
        before(*appends, lambda *arguments: True)
    if step == "writing":
        threading.Thread(target=watch, daemon=True).start()


def settle_40_rows_at_first() -> None:
    """So that the second pass has rows to take."""
    from django_delayq.models import ArchivedMessage
    from django_delayq.pipeline.export import export

    changed: Any = export
    every, passes = changed.last_settled_id, [1]
    first = ArchivedMessage.objects.order_by("pk").values_list("pk", flat=True)[39]
    changed.last_settled_id = lambda seconds: first if passes and passes.pop() else every(seconds)


def before(owner: Any, name: str, when: Callable[..., bool]) -> None:
    """Die instead of this call."""
    original = getattr(owner, name)

    def dying(*arguments: Any, **options: Any) -> Any:
        if when(*arguments, **options):
            die()
        return original(*arguments, **options)

    setattr(owner, name, dying)


def after(owner: Any, name: str, calls: int) -> None:
    """Die when so many calls have returned."""
    original, left = getattr(owner, name), [calls]

    def dying(*arguments: Any, **options: Any) -> Any:
        answer = original(*arguments, **options)
        left[0] -= 1
        if not left[0]:
            die()
        return answer

    setattr(owner, name, dying)


def watch() -> None:
    """Die as soon as Spark has begun a file."""
    lake = Path(sys.argv[2])
    while not any(path.is_file() for path in lake.glob("dt=*/*")):
        time.sleep(0.001)
    die()


def die() -> None:
    """Without a last word: the driver, the JVM, and Python's workers lose their pipes."""
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
