"""Errors of Spark in a sentence."""

from __future__ import annotations

from django.db import OperationalError

from django_delayq.core.exceptions import (
    BodyTooLarge,
    DelayQError,
    DuplicateMessage,
    StoreUnavailable,
)
from django_delayq.core.job_report import Code
from django_delayq.pipeline.job_errors import LakeError, cause, code_of

WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/srv/rows.py", line 31, in read
    yield from rows()
               ^^^^^^
{}
"""


def of_worker(line: str) -> Exception:
    return cause(RuntimeError(WORKER.format(line)))


def test_an_error_of_ours_keeps_its_class_and_its_words() -> None:
    found = of_worker(
        "django_delayq.core.exceptions.StoreUnavailable: Redis at r:6379 does not answer: try "
        "later."
    )
    assert type(found) is StoreUnavailable
    assert str(found) == "Redis at r:6379 does not answer: try later."
    assert (
        type(of_worker("django_delayq.pipeline.job_errors.LakeError: x is missing.")) is LakeError
    )
    assert (
        type(of_worker("django_delayq.core.exceptions.DuplicateMessage: a key")) is DuplicateMessage
    )


def test_one_without_words_says_what_its_class_says() -> None:
    assert "BODY_LIMIT" in str(of_worker("django_delayq.core.exceptions.BodyTooLarge"))
    assert code_of(BodyTooLarge()) == Code.REFUSED


def test_another_error_of_a_worker_is_its_last_line() -> None:
    found = of_worker("ValueError: boo 1")
    assert (type(found), str(found), code_of(found)) == (
        DelayQError,
        "ValueError: boo 1",
        Code.FAILED,
    )


def test_of_chained_errors_the_last_one_counts() -> None:
    first = (
        WORKER.format("KeyError: 'x'")
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
    )
    text = (
        first
        + WORKER.format("django_delayq.core.exceptions.StoreUnavailable: gone").partition("\n")[2]
    )
    assert str(cause(RuntimeError(text))) == "gone"


def test_java_at_its_limit_is_told_how_to_get_more() -> None:
    assert "--driver-memory" in str(
        cause(RuntimeError("java.lang.OutOfMemoryError: Java heap space\n\tat x"))
    )


class _OfJava(Exception):
    """As an error of Py4J, whose text is at Java."""

    __module__ = "py4j.protocol"

    def __init__(self, text: str | Exception) -> None:
        self._text = text

    def __str__(self) -> str:
        if isinstance(self._text, Exception):
            raise self._text
        return self._text


def test_java_that_has_ended_is_told_how_to_get_more_memory() -> None:
    stopped = (
        'java.lang.NullPointerException: Cannot invoke "org.apache.spark.scheduler.DAGScheduler.'
        'cleanupQueryJobs(long)" because the return value of "org.apache.spark.SparkContext.'
        'dagScheduler()" is null'
    )
    cancelled = (
        "org.apache.spark.SparkException: Job 2 cancelled because SparkContext was shut down"
    )
    for text in (stopped, cancelled, RuntimeError("Answer from Java side is empty")):
        found = str(cause(_OfJava(text)))
        assert found.startswith("Java has ended in the middle of the job."), found
        assert "--driver-memory" in found


def test_spark_is_cut_to_its_first_sentence() -> None:
    text = "[PATH_NOT_FOUND] Path does not exist: file:/tmp/no. SQLSTATE: 42K03\nmore"
    assert str(cause(RuntimeError(text))) == "[PATH_NOT_FOUND] Path does not exist: file:/tmp/no."


def test_the_database_is_named() -> None:
    assert (
        str(cause(OperationalError("no such table")))
        == "The database failed: OperationalError: no such table"
    )
