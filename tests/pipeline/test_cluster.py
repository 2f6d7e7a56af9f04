"""Executors in JVMs of their own that have only the packaged zip."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from django_delayq import topic_stats
from django_delayq.pipeline.params import Storage
from django_delayq.pipeline.session import pack
from tests.app.tasks import record
from tests.pipeline import outside
from tests.pipeline.rows import make_rows

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("delayq", "transactional_db"),
]

#: Where the executors have our package from.
_WHERE = """
def where(batches):
    import django_delayq, pyarrow
    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"path": [django_delayq.__file__]})

rows = spark.range(8, numPartitions=8).mapInArrow(where, "path string").distinct().collect()
print(json.dumps({"job": "where", "paths": [row.path for row in rows]}))
"""


@pytest.mark.long
def test_jobs_run_on_executors_that_have_only_the_zip(tmp_path: Path, settings: Any) -> None:
    outside.require_java()
    make_rows(3_000)
    record.using(delay=3600).enqueue(1)
    given = {"redis_secret": "env:REDIS_OF_TEST", "lake": Storage(str(tmp_path / "lake"))}
    jobs = [
        word
        for name, job in (("export", {"settle": 0.0}), ("stats", {}), ("forecast", {}))
        for word in (name, outside.write_params(tmp_path / f"{name}.json", job=job, **given))
    ]
    start = {
        "master": "local-cluster[2,1,1024]",
        "conf": {},
        "files": [str(pack(tmp_path))],
        "code": _WHERE,
    }
    python = outside.python_without_us(tmp_path)
    environment = {
        "REDIS_OF_TEST": settings.DELAYQ["REDIS"], "PYSPARK_PYTHON": str(python),
        "SPARK_HOME": str(outside.spark_home(tmp_path)),
    }  # fmt: skip
    ended = outside.run(
        [sys.executable, "-c", outside.JOBS, json.dumps(start), *jobs], environment, tmp_path
    )
    assert ended.code == 0, ended.err
    export, stats, forecast, where = (json.loads(line) for line in ended.out.splitlines())
    for report in (export, stats, forecast):
        assert report.get("code") == 0, report
    assert export["figures"]["rows"] == 3_000
    assert forecast["figures"]["waiting"] == topic_stats("default").delayed == 1
    assert where["paths"], "no executor has answered"
    assert all("django_delayq.zip" in path for path in where["paths"])
