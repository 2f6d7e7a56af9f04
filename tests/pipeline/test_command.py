"""manage.py delayq pipeline: what it takes, and what it prints."""

from __future__ import annotations

import json
import re
import shlex
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.core.management import CommandError

from django_delayq.core.job_report import Code, Report
from django_delayq.management.verbs import pipeline
from django_delayq.pipeline.job_errors import Refused
from django_delayq.pipeline.jobs import JOBS, Start, start_of
from django_delayq.pipeline.params import Secret, Storage
from tests.pipeline.calling import Call

pytestmark = pytest.mark.usefixtures("delayq", "transactional_db")

ROOT = Path(__file__).resolve().parent.parent.parent
START = {"master": "local[*]", "driver_memory": "1g"}
LOAD = (
    "--task",
    "tests.app.tasks.record",
    "--job",
    "j",
    "--source",
    "s",
    "--format",
    "csv",
    "--key",
    "id",
)


# What it takes


@pytest.mark.parametrize("name", JOBS)
def test_every_option_of_every_job_can_be_given_and_has_a_help_text(name: str) -> None:
    parser = ArgumentParser()
    pipeline.add_job_arguments(parser, JOBS[name])
    wanted = {*JOBS[name].options.__struct_fields__, *JOBS[name].options.takes} - {"tasks"}
    also = {"help", "lake_option", "lake_secret"}  # the store of the lake
    assert wanted == {action.dest for action in parser._actions} - also
    assert all(len(action.help or "") > 10 for action in parser._actions)


@pytest.mark.parametrize("name", JOBS)
def test_help_of_a_job_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        pipeline.Command().create_parser("manage.py", "delayq pipeline").parse_args([name, "-h"])
    text = capsys.readouterr().out
    assert JOBS[name].help in text
    assert f"python manage.py delayq pipeline {name}" in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("export", "--prune", "30d", "--batch", "5", "--no-compact"),
            {"prune": 2592000.0, "batch": 5, "compact": False},
        ),
        (("stats", "--everything"), {"everything": True}),
        (("stats", "--source", "archive"), {"source": "archive"}),
        (
            ("forecast", "--drain-rate", "12.5", "--replica", "env:R"),
            {"drain_rate": 12.5, "replica": "env:R"},
        ),
        (
            ("audit", "--repair", "--pause", "9s", "--by", "ann"),
            {"repair": True, "pause": 9.0, "by": "ann"},
        ),
        (("export", "--interval", "1m", "--settle", "2m"), {"interval": 60.0, "settle": 120.0}),
        (("export",), {}),
    ],
)
def test_arguments_become_the_options_of_the_job(
    command: Call, arguments: tuple[str, ...], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "beth")
    monkeypatch.setenv("DELAYQ_LAKE", "somewhere")
    command(*arguments)
    assert {"by": "beth", **expected} == {"by": "beth", **command.params.job}


def test_a_load_has_the_specification_of_its_task(command: Call) -> None:
    task_specs = pytest.importorskip("django_delayq.pipeline.bulk_load.task_specs")
    command(
        "schedule",
        *LOAD,
        "--delay",
        "1500s",
        "--column",
        "value=amount",
        "--no-keyed",
        "--splits",
        "2",
    )
    job = dict(command.params.job)
    assert (
        msgspec.convert(job.pop("task"), type(task_specs.spec_of("tests.app.tasks.record"))).name
        == "tests.app.tasks.record"
    )
    assert job == {
        "job": "j", "source": str(Path("s").absolute()), "format": "csv", "key": "id", "keyed": False,
        "columns": {"value": "amount"}, "delay_ms": 1_500_000, "splits": 2,
    }  # fmt: skip


def test_a_task_that_does_not_exist_is_refused(command: Call) -> None:
    pytest.importorskip("django_delayq.pipeline.bulk_load.task_specs")
    assert command.code("schedule", "--task", "tests.app.tasks.recrod", *LOAD[2:]) == Code.REFUSED
    assert "tests.app.tasks.record" in command.err


def test_replay_knows_every_declared_task(command: Call) -> None:
    pytest.importorskip("django_delayq.pipeline.bulk_load.task_specs")
    command(
        "replay",
        "--job",
        "j",
        "--where",
        "attempts < 9",
        "--edit",
        "value=value + 1",
        "--by",
        "ann",
    )
    assert "tests.app.tasks.record" in [task["name"] for task in command.params.job["tasks"]]
    assert command.params.job["edits"] == {"value": "value + 1"}


def test_the_operator_is_the_user_of_the_machine_unless_named(
    command: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "beth")
    command("audit")
    assert command.params.job == {"by": "beth"}
    command("audit", "--by", "ann")
    assert command.params.job == {"by": "ann"}


def test_a_period_is_passed_in_utc_and_a_lake_as_an_absolute_path(command: Call) -> None:
    command(
        "stats",
        "--lake",
        "lake",
        "--since",
        "2026-01-31T12:00+01:00",
        "--until",
        "2026-02-01",
    )
    assert (command.params.since, command.params.until) == (
        "2026-01-31T11:00:00Z",
        "2026-02-01T00:00:00Z",
    )
    assert command.params.lake == Storage(str(Path("lake").absolute()))


def test_paths_are_passed_in_full_and_uris_as_they_are(command: Call) -> None:
    load = [argument if argument != "s" else "s3a://rows/2026" for argument in LOAD]
    command("schedule", *load, "--rejects", "bad")
    assert (command.params.job["source"], command.params.job["rejects"]) == (
        "s3a://rows/2026", str(Path("bad").absolute()),
    )  # fmt: skip
    command("schedule", *[argument if argument != "csv" else "table" for argument in LOAD])
    assert command.params.job["source"] == "s"


@pytest.mark.parametrize(
    ("name", "words"), [("schedule", "what was sent stays"), ("export", "nothing is half done")]
)
def test_what_an_interrupted_job_leaves_is_said(command: Call, name: str, words: str) -> None:
    command.report = KeyboardInterrupt()  # type: ignore[assignment]
    assert command.code(name, *(LOAD if name == "schedule" else ("--lake", "l"))) == 130
    assert words in command.err


def test_the_lake_may_come_from_the_environment(
    command: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELAYQ_LAKE", "s3://shop/lake")
    command("export")
    assert command.params.lake == Storage("s3://shop/lake")


def test_the_store_of_a_lake_gets_options_and_references(command: Call) -> None:
    command(
        "stats", "--lake", "s3://shop/lake",
        "--lake-option", "AWS_REGION=eu-west-1", "--lake-option", "AWS_ENDPOINT_URL=http://minio:9000",
        "--lake-secret", "AWS_SECRET_ACCESS_KEY=env:SHOP_KEY",
    )  # fmt: skip
    assert command.params.lake == Storage(
        "s3://shop/lake",
        {"AWS_REGION": "eu-west-1", "AWS_ENDPOINT_URL": "http://minio:9000"},
        {"AWS_SECRET_ACCESS_KEY": Secret("env:SHOP_KEY")},
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--lake", "s3://shop/lake", "--lake-option", "AWS_SECRET_ACCESS_KEY=hunter2"),
        ("--lake", "s3://shop/lake", "--lake-secret", "AWS_SECRET_ACCESS_KEY=hunter2"),
        ("--lake", "s3://key:hunter2@shop/lake"),
    ],
)
def test_a_secret_of_a_lake_is_refused_and_not_repeated(
    command: Call, words: tuple[str, ...]
) -> None:
    assert command.code("stats", *words) == 2
    assert "hunter2" not in command.out + command.err


@pytest.mark.parametrize("name", ["export", "stats"])
def test_a_job_that_needs_a_lake_is_refused_without_one(command: Call, name: str) -> None:
    assert command.code(name) == Code.REFUSED
    assert "--lake" in command.err


def test_spark_is_configured_by_options(command: Call) -> None:
    command(
        "forecast",
        "--master",
        "local[3]",
        "--driver-memory",
        "2g",
        "--conf",
        "spark.sql.shuffle.partitions=3",
    )
    assert command.start == Start(
        master="local[3]", driver_memory="2g", configuration={"spark.sql.shuffle.partitions": "3"}
    )


@pytest.mark.parametrize(
    "pair",
    [
        "spark.hadoop.fs.s3a.secret.key=hunter2",
        "spark.executorEnv.DB_PASSWORD=hunter2",
        "spark.my.dsn=hunter2",
        "spark.executorEnv.DB=postgresql://shop:hunter2@db/shop",
    ],
)
def test_a_secret_in_the_configuration_is_refused_and_not_repeated(pair: str) -> None:
    with pytest.raises(Refused, match="looks like a secret") as refused:
        start_of({**START, "conf": [pair]})
    assert "hunter2" not in str(refused.value)


def test_a_token_in_the_address_of_a_server_is_refused_and_not_repeated() -> None:
    with pytest.raises(Refused, match="SPARK_CONNECT_AUTHENTICATE_TOKEN") as refused:
        start_of({**START, "conf": [], "master": "sc://server:15002/;use_ssl=true;token=hunter2"})
    assert "hunter2" not in str(refused.value)
    plain = "sc://token-server:15002/;use_ssl=true"
    assert start_of({**START, "conf": [], "master": plain}).master == plain


def test_configuration_without_a_value_is_refused() -> None:
    with pytest.raises(Refused, match="NAME=VALUE"):
        start_of({**START, "conf": ["spark.executor.memory"]})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("audit", "--repair", "--dry-run"), "contradict"),
        (
            ("stats", "--lake", "l", "--since", "2026-02-02", "--until", "2026-02-01"),
            "is not after since",
        ),
        (("forecast", "--master", "spark://db.example:7077"), "--redis-secret"),
        (("forecast", "--redis-secret", "redis://:hunter2@db"), "never given itself"),
        (("schedule", *LOAD, "--due", "at", "--delay", "1h"), "contradict"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_spark_starts(
    command: Call, arguments: tuple[str, ...], words: str
) -> None:
    assert command.code(*arguments) == Code.REFUSED
    assert words in command.err
    assert "hunter2" not in command.err


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("export", "--prune", "10m"), "--prune"),
        (("export", "--batch", "0"), "--batch"),
        (("export", "--settle", "5"), "--settle"),
        (("forecast", "--drain-rate", "nan"), "--drain-rate"),
        (("schedule", *LOAD, "--delay", "4000d"), "--delay"),
        (("schedule", *LOAD, "--column", "value"), "--column"),
        (("schedule", *LOAD, "--format", "xml"), "--format"),
        (("stats", "--topic", "mail"), "--topic"),
        (("export", "--since", "2h"), "--since"),
    ],
)
def test_what_an_option_does_not_take_is_refused_with_its_name(
    command: Call, arguments: tuple[str, ...], option: str
) -> None:
    with pytest.raises(CommandError, match=f"argument.* {option}"):
        command(*arguments)


def test_the_commands_of_the_docs_are_accepted(command: Call) -> None:
    pages = sorted((ROOT / "docs" / "pipeline").glob("*.md"))
    text = "\n".join(page.read_text() for page in pages).replace("\\\n", " ")
    lines = re.findall(r"^ *(?:python )?manage\.py delayq pipeline (.+)$", text, re.MULTILINE)
    assert len(lines) > 10
    parser = pipeline.Command().create_parser("manage.py", "delayq pipeline")
    for line in lines:
        parser.parse_args(shlex.split(line.partition(" > ")[0], comments=True))


# What it prints


REPORT = Report(
    job="stats",
    figures={"hours": 24, "rows": 1_234_567, "seconds": 1.25},
    rows=[{"topic": "mail", "p99_ms": 12.5}, {"topic": "orders\x1b[2J", "p99_ms": None}],
    problems=["One hour has gone."],
)


def test_the_report_is_a_table_with_its_figures_and_its_problems(command: Call) -> None:
    command.report = REPORT
    command("stats", "--lake", "l")
    assert command.out.splitlines() == [
        "topic          p99 ms",
        "mail             12.5",
        "orders\\x1b[2J       -",
        "stats: hours 24, rows 1,234,567, seconds 1.25",
        "! One hour has gone.",
    ]


def test_json_is_one_document(command: Call) -> None:
    command.report = REPORT
    command("stats", "--lake", "l", "--json")
    assert json.loads(command.out) == {
        "job": "stats", "code": 0, "figures": REPORT.figures, "rows": list(REPORT.rows), "problems": REPORT.problems,
    }  # fmt: skip


def test_json_also_says_why_a_job_was_refused(command: Call) -> None:
    command.report = Refused("No.")
    assert command.code("forecast", "--json") == Code.REFUSED
    assert json.loads(command.out) == {
        "job": "forecast",
        "code": 2,
        "figures": {},
        "rows": [],
        "problems": ["No."],
    }
