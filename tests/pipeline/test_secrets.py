"""No secret is where anybody but the job may see it."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from django.db import connection

from django_delayq.pipeline.jobs import JOBS
from django_delayq.pipeline.params import Storage
from tests.app.tasks import record
from tests.pipeline import outside
from tests.pipeline.rows import make_rows

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.databases,
    pytest.mark.usefixtures("transactional_db"),
]

#: The plans of what the jobs read, in all detail; and a database that does not answer.
_PLANS = """
import msgspec
from django_delayq.pipeline.params import Database, Secret
from django_delayq.pipeline.sources.archive_source import read_archive
from django_delayq.pipeline.sources.outbox_source import read_outbox
from django_delayq.pipeline.sources.queue_source import read_queue

params = every[0][1]
for frame in (read_archive(spark, params.database, (0, 10)), read_outbox(spark, params.database),
              read_queue(spark, params.redis)):
    for mode in ("extended", "formatted", "codegen", "cost"):
        frame.explain(mode)
away = msgspec.structs.replace(params.database, engine="django.db.backends.postgresql", host="127.0.0.1", port="1",
                               password=Secret("env:CANARY"))
try:
    read_archive(spark, away, (0, 10)).count()
except Exception:
    print("AWAY", traceback.format_exc())
"""


@pytest.fixture
def canary(delayq: Any, settings: Any) -> str:
    """The password of Redis, which is asked for, and of the database."""
    canary = f"canary{secrets.token_hex(8)}"
    delayq.client.redis.execute_command(
        "ACL", "SETUSER", canary[:12], "on", f">{canary}", "~*", "&*", "+@all"
    )
    address = urlsplit(settings.DELAYQ["REDIS"])
    settings.DELAYQ = {
        **settings.DELAYQ,
        "REDIS": f"redis://{canary[:12]}:{canary}@{address.hostname}:{address.port}{address.path}",
    }
    yield canary
    delayq.client.redis.execute_command("ACL", "DELUSER", canary[:12])


def jobs(folder: Path, **given: Any) -> list[str]:
    """Every job, as words for outside.JOBS; the last one finds no Redis."""
    from django_delayq.pipeline.bulk_load.task_specs import spec_of

    (folder / "rows.csv").write_text("id,value\n1,a\n2,b\n")
    spec = msgspec.to_builtins(spec_of("tests.app.tasks.record"))
    options: dict[str, Any] = {
        "export": {"settle": 0.0},
        "check": {"messages": 50},
        "audit": {"pause": 0.1},
        "schedule": {
            "job": "canary",
            "task": spec,
            "source": f"{folder}/rows.csv",
            "format": "csv",
            "key": "id",
        },
        "replay": {"job": "canary-replay", "tasks": [spec]},
    }
    words = []
    for name in JOBS:
        # The day of the rows, which stats has counted.
        since = "2026-11-20T00:00:00Z" if name == "check" else ""
        path = outside.write_params(
            folder / f"{name}.json", job=options.get(name, {}), since=since, **given
        )
        words += [name, path]
    away = {**given, "redis_secret": "env:CANARY_AWAY"}
    return [*words, "forecast", outside.write_params(folder / "away.json", **away)]


@pytest.mark.long
def test_no_secret_is_in_plans_logs_event_logs_checkpoints_manifests_reports_or_ps(
    canary: str, settings: Any, tmp_path: Path
) -> None:
    outside.require_java()
    make_rows(50, state="dead")
    record.using(delay=60).enqueue(1)
    given = {"redis_secret": "env:CANARY_REDIS", "lake": Storage(str(tmp_path / "lake"))}
    if (
        connection.vendor != "mysql"
    ):  # the server of the tests has no password, and MariaDB refuses one then
        given["database_secret"] = "env:CANARY"
    (tmp_path / "events").mkdir()
    events = {"enabled": "true", "dir": str(tmp_path / "events"), "compress": "false"}
    conf = {f"spark.eventLog.{name}": value for name, value in events.items()}
    start = {"master": "local[2]", "conf": conf, "files": [], "code": _PLANS}
    environment = {
        "CANARY": canary, "CANARY_REDIS": settings.DELAYQ["REDIS"],
        "CANARY_AWAY": f"redis://:{canary}@127.0.0.1:1/0",
    }  # fmt: skip
    words = jobs(tmp_path, **given)
    command = [sys.executable, "-c", outside.JOBS, json.dumps(start), *words]
    ended = outside.run(command, environment, tmp_path)

    assert ended.code == 0, ended.err[-5000:]
    reports = [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]
    assert [report.get("error") for report in reports[:-1]] == [None] * (len(reports) - 1)
    assert "127.0.0.1:1" in reports[-1]["error"], "nothing was tried where no Redis is"
    assert "AWAY" in ended.out
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("events" in path.parts for path in files)
    assert any("_delta_log" in path.parts for path in files)
    assert "java" in ended.commands
    for text in (ended.out, ended.err, ended.commands):
        assert canary not in text
    assert [path for path in files if canary.encode() in path.read_bytes()] == []
