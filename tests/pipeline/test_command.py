"""manage.py delayq_pipeline: what it takes, what it prints, and how it ends."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.core.management import CommandError, call_command

from django_delayq.exceptions import ConfigurationError, DelayQError, StoreUnavailable
from django_delayq.management.commands import delayq_pipeline
from django_delayq.management.pipeline_arguments import ARGUMENTS, job_options
from django_delayq.pipeline import running
from django_delayq.pipeline.__main__ import main
from django_delayq.pipeline.errors import Code, LakeConflict, LakeError, Refused, SparkMissing
from django_delayq.pipeline.jobs import JOBS
from django_delayq.pipeline.params import Params, Report
from django_delayq.pipeline.running import OPTIONS, Start, configuration_of

pytestmark = pytest.mark.usefixtures("delayq", "transactional_db")

#: Of these the command makes more than an argument: they are the specs of tasks.
SPECS = {"task", "tasks"}
LOAD = ("tests.tasks.record", "--job", "j", "--source", "s", "--format", "csv", "--key", "id")


class Call:
    """What the command gave to its job, and what it wrote."""

    def __init__(self) -> None:
        self.report: Report | Exception = Report(job="export")
        self.params: Params
        self.start: Start
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> None:
        out, err = StringIO(), StringIO()
        try:
            call_command("delayq_pipeline", *arguments, stdout=out, stderr=err)
        finally:
            self.out, self.err = out.getvalue(), err.getvalue()

    def code(self, *arguments: str) -> int:
        """The exit code."""
        try:
            self(*arguments)
        except CommandError as error:
            self.err += str(error)
            return error.returncode
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    def job(self, name: str, params: Params, start: Start, tell: Callable[[str], object]) -> Report:
        """In place of the job."""
        self.params, self.start = params, start
        params.options(OPTIONS[name])
        if isinstance(self.report, BaseException):
            raise self.report
        return self.report


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Call:
    call = Call()
    monkeypatch.setattr(delayq_pipeline, "run_job", call.job)
    monkeypatch.delenv("DELAYQ_LAKE", raising=False)
    return call


# What it takes


@pytest.mark.parametrize("name", JOBS)
def test_every_option_of_every_job_can_be_given(name: str) -> None:
    parser = ArgumentParser()
    ARGUMENTS[name](parser)
    given = {action.dest for action in parser._actions}
    wanted = {field.removesuffix("_ms") for field in OPTIONS[name].__struct_fields__} - SPECS
    assert wanted <= given


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("export", "--prune", "30d", "--batch", "5", "--compact"), {"prune": 2592000.0, "batch": 5, "compact": True}),
        (("stats", "--everything"), {"everything": True}),
        (("stats", "--source", "archive"), {"source": "archive"}),
        (("forecast", "--drain-rate", "12.5", "--replica", "env:R"), {"drain_rate": 12.5, "replica": "env:R"}),
        (("audit", "--repair", "--pause", "9s", "--by", "ann"), {"repair": True, "pause": 9.0, "by": "ann"}),
        (("stream", "--interval", "1m", "--settle", "2m"), {"interval": 60.0, "settle": 120.0}),
        (("export",), {}),
    ],
)
def test_arguments_become_the_options_of_the_job(
    command: Call, arguments: tuple[str, ...], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "beth")
    command(*arguments, "--lake", "somewhere")
    assert {"by": "beth", **expected} == {"by": "beth", **command.params.job}


def test_a_load_has_the_specification_of_its_task(command: Call) -> None:
    task_specs = pytest.importorskip("django_delayq.pipeline.task_specs")
    command("schedule", *LOAD, "--delay", "1500s", "--column", "value=amount", "--not-keyed", "--splits", "2")
    job = dict(command.params.job)
    assert msgspec.convert(job.pop("task"), type(task_specs.spec_of("tests.tasks.record"))).name == "tests.tasks.record"
    assert job == {
        "job": "j", "source": "s", "format": "csv", "key": "id", "keyed": False, "columns": {"value": "amount"},
        "delay_ms": 1_500_000, "splits": 2,
    }  # fmt: skip


def test_a_task_that_does_not_exist_is_refused(command: Call) -> None:
    pytest.importorskip("django_delayq.pipeline.task_specs")
    assert command.code("schedule", "tests.tasks.recrod", *LOAD[1:]) == Code.REFUSED
    assert "tests.tasks.record" in command.err


def test_replay_knows_every_declared_task(command: Call) -> None:
    pytest.importorskip("django_delayq.pipeline.task_specs")
    command("replay", "--job", "j", "--where", "attempts < 9", "--set", "value=value + 1", "--by", "ann")
    assert "tests.tasks.record" in [task["name"] for task in command.params.job["tasks"]]
    assert command.params.job["edits"] == {"value": "value + 1"}


def test_who_does_it_is_the_user_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "beth")
    assert job_options("audit", {}) == {"by": "beth"}
    assert job_options("audit", {"by": "ann"}) == {"by": "ann"}


def test_a_period_is_passed_in_utc_and_a_lake_as_an_absolute_path(command: Call) -> None:
    command("stats", "--lake", "lake", "--since", "2026-01-31T12:00+01:00", "--until", "2026-02-01", "--topic", "mail")
    assert (command.params.since, command.params.until) == ("2026-01-31T11:00:00Z", "2026-02-01T00:00:00Z")
    assert command.params.topic == "mail"
    assert command.params.lake == str(Path("lake").absolute())


def test_the_lake_may_come_from_the_environment(command: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAYQ_LAKE", "/data/lake")
    command("export")
    assert command.params.lake == "/data/lake"


@pytest.mark.parametrize("name", ["export", "stats", "stream"])
def test_a_job_that_needs_a_lake_is_refused_without_one(command: Call, name: str) -> None:
    assert command.code(name) == Code.REFUSED
    assert "--lake" in command.err


def test_spark_is_configured_by_options(command: Call) -> None:
    command("forecast", "--master", "local[3]", "--driver-memory", "2g", "--conf", "spark.sql.shuffle.partitions=3")
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
        configuration_of([pair])
    assert "hunter2" not in str(refused.value)


def test_configuration_without_a_value_is_refused() -> None:
    with pytest.raises(Refused, match="NAME=VALUE"):
        configuration_of(["spark.executor.memory"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("export", "--lake", "l", "--prune", "10m"), "prune"),
        (("audit", "--repair", "--dry-run"), "contradict"),
        (("stats", "--lake", "l", "--since", "2026-02-02", "--until", "2026-02-01"), "turn them round"),
        (("forecast", "--master", "spark://db.example:7077"), "--redis-secret"),
        (("forecast", "--redis-secret", "redis://:hunter2@db"), "never given itself"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_spark_starts(
    command: Call, arguments: tuple[str, ...], words: str
) -> None:
    assert command.code(*arguments) == Code.REFUSED
    assert words in command.err
    assert "hunter2" not in command.err


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
    assert json.loads(command.out) == {"job": "forecast", "code": 2, "figures": {}, "rows": [], "problems": ["No."]}


# How it ends


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (Report(job="audit"), Code.DONE),
        (Report(job="audit", code=Code.DIFFERENT), Code.DIFFERENT),
        (Refused("x"), Code.REFUSED),
        (SparkMissing("x"), Code.REFUSED),
        (ConfigurationError("x"), Code.REFUSED),
        (LakeError("x"), Code.REFUSED),
        (LakeConflict("x"), Code.REFUSED),
        (StoreUnavailable("x"), Code.FAILED),
        (DelayQError("x"), Code.FAILED),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(command: Call, end: Any, code: int) -> None:
    command.report = end
    assert command.code("audit") == code


def test_an_unknown_job_or_option_is_refused() -> None:
    for arguments in (["exprot"], ["forecast", "--lkae", "x"]):
        with pytest.raises(CommandError):
            call_command("delayq_pipeline", *arguments, stderr=StringIO())


def test_without_java_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(CommandError, match="openjdk-17-jre-headless") as refused:
        call_command("delayq_pipeline", "forecast")
    assert refused.value.returncode == Code.REFUSED


def test_with_an_old_java_a_sentence_says_which_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'java version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(CommandError, match=r"is Java 8\. Spark needs Java 17 or newer"):
        call_command("delayq_pipeline", "forecast")


@pytest.fixture
def missing_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that reads on an executor what refers to nothing."""
    from django_delayq.pipeline.params import Database, Secret

    def job(name: str, spark: Any, params: Params, tell: Any) -> Report:
        database = Database(engine="django.db.backends.postgresql", name="n", table="t", password=Secret("env:NOWHERE"))
        options = {"database": msgspec.json.encode(database).decode(), "lo": "0", "hi": "10"}
        spark.read.format("delayq_archive").options(**options).load().write.format("noop").mode("overwrite").save()
        return Report(job=name)

    monkeypatch.setattr(running, "run", job)


@pytest.mark.usefixtures("missing_secret")
def test_an_error_of_ours_on_an_executor_is_said_as_it_is(spark: Any) -> None:
    with pytest.raises(CommandError) as failed:
        call_command("delayq_pipeline", "forecast")
    assert str(failed.value).startswith("The secret 'env:NOWHERE' is not there")
    assert failed.value.returncode == Code.REFUSED
    assert spark.range(2).count() == 2, "a session that was there before stays"


@pytest.mark.usefixtures("missing_secret")
def test_with_traceback_all_of_it_is_shown(spark: Any) -> None:
    err = StringIO()
    with pytest.raises(SystemExit) as end:
        call_command("delayq_pipeline", "forecast", "--traceback", stderr=err)
    assert end.value.code == Code.REFUSED
    assert "in resolve" in err.getvalue()


# Parameters for elsewhere


def test_parameters_are_written_with_references_and_read_back(
    command: Call, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "params.json"
    command(
        "export",
        "--lake",
        "/l",
        "--batch",
        "7",
        "--by",
        "ann",
        "--redis-secret",
        "env:HERE",
        "--write-params",
        str(path),
    )
    text = path.read_text()
    assert settings.DELAYQ["REDIS"] not in text
    params = Params.decode(text.encode())
    assert (params.lake, params.job, params.redis.url.ref) == ("/l", {"batch": 7, "by": "ann"}, "env:HERE")
    assert params.database.table == "django_delayq_archivedmessage"
    monkeypatch.setenv("HERE", settings.DELAYQ["REDIS"])
    assert params.redis.settings().prefix == settings.DELAYQ["PREFIX"]


def test_parameters_without_references_are_refused(command: Call, tmp_path: Path) -> None:
    path = tmp_path / "params.json"
    assert command.code("forecast", "--write-params", str(path)) == Code.REFUSED
    assert "--redis-secret" in command.err
    assert not path.exists()


def test_a_file_with_an_unknown_field_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "params.json"
    path.write_text('{"database": {"engine": "e", "name": "n", "table": "t"}, "lkae": "x"}')
    assert main(["export", "--params", str(path)]) == Code.REFUSED
    assert "lkae" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--params", "/nowhere/params.json", "--json"]) == Code.REFUSED
    said = capsys.readouterr()
    assert json.loads(said.out)["problems"] == [said.err.strip()]
