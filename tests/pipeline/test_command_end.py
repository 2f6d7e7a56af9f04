"""manage.py delayq pipeline: how it ends, and what it writes for a job elsewhere."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.core.management import CommandError, call_command

from django_delayq.core.exceptions import ConfigurationError, DelayQError, StoreUnavailable
from django_delayq.core.job_report import Code, Report
from django_delayq.pipeline import jobs
from django_delayq.pipeline.__main__ import main
from django_delayq.pipeline.job_errors import LakeConflict, LakeError, Refused, SparkMissing
from django_delayq.pipeline.params import Params
from tests.pipeline.calling import Call

pytestmark = pytest.mark.usefixtures("delayq", "transactional_db")


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
            call_command("delayq", "pipeline", *arguments, stderr=StringIO())


def test_without_java_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(CommandError, match="openjdk-17-jre-headless") as refused:
        call_command("delayq", "pipeline", "stats", "--source", "archive")
    assert refused.value.returncode == Code.REFUSED


def test_with_an_old_java_a_sentence_says_which_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'java version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(CommandError, match=r"is Java 8\. Spark needs Java 17 or newer"):
        call_command("delayq", "pipeline", "stats", "--source", "archive")


@pytest.fixture
def missing_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that reads on an executor what refers to nothing."""
    from django_delayq.pipeline.params import Database, Secret

    def job(name: str, spark: Any, params: Params, tell: Any) -> Report:
        database = Database(
            engine="django.db.backends.postgresql",
            name="n",
            table="t",
            password=Secret("env:NOWHERE"),
        )
        options = {"database": msgspec.json.encode(database).decode(), "lo": "0", "hi": "10"}
        spark.read.format("delayq_archive").options(**options).load().write.format("noop").mode(
            "overwrite"
        ).save()
        return Report(job=name)

    monkeypatch.setattr(jobs, "run", job)


@pytest.mark.usefixtures("missing_secret")
def test_an_error_of_ours_on_an_executor_is_said_as_it_is(spark: Any) -> None:
    with pytest.raises(CommandError) as failed:
        call_command("delayq", "pipeline", "audit")
    assert str(failed.value).startswith("The secret 'env:NOWHERE' is not there")
    assert failed.value.returncode == Code.REFUSED
    assert spark.range(2).count() == 2, "a session that was there before stays"


@pytest.mark.usefixtures("missing_secret")
def test_with_traceback_all_of_it_is_shown(spark: Any) -> None:
    err = StringIO()
    with pytest.raises(SystemExit) as end:
        call_command("delayq", "pipeline", "audit", "--traceback", stderr=err)
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
    assert (params.lake.uri, params.job, params.redis.url.ref) == (
        "/l",
        {"batch": 7, "by": "ann"},
        "env:HERE",
    )
    assert params.database.table == "django_delayq_archivedmessage"
    monkeypatch.setenv("HERE", settings.DELAYQ["REDIS"])
    assert params.redis.settings().prefix == settings.DELAYQ["PREFIX"]


def test_parameters_without_references_are_refused(command: Call, tmp_path: Path) -> None:
    path = tmp_path / "params.json"
    assert command.code("forecast", "--write-params", str(path)) == Code.REFUSED
    assert "--redis-secret" in command.err
    assert not path.exists()


def test_a_job_that_does_not_speak_to_redis_needs_no_reference_to_it(
    command: Call, tmp_path: Path
) -> None:
    path = tmp_path / "params.json"
    export = ("export", "--lake", "/l", "--write-params", str(path))
    assert command.code(*export) == 0
    assert not Params.decode(path.read_bytes()).redis.url
    assert command.code("stats", "--lake", "/l", "--write-params", str(path)) == 0
    assert command.code(*export, "--prune", "90d") == Code.REFUSED
    assert "--redis-secret" in command.err


def test_a_file_with_an_unknown_field_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "params.json"
    path.write_text('{"database": {"engine": "e", "name": "n", "table": "t"}, "lkae": "x"}')
    assert main(["export", "--params", str(path)]) == Code.REFUSED
    assert "lkae" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--params", "/nowhere/params.json", "--json"]) == Code.REFUSED
    said = capsys.readouterr()
    assert json.loads(said.out)["problems"] == [said.err.strip()]
