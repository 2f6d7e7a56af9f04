"""Options of a task and of one call."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from django_delayq import delayed_task
from django_delayq.core import exceptions
from django_delayq.store.store import RedisStore
from django_delayq.tasks import registry
from django_delayq.tasks.options import Options
from tests.app.tasks import act, close_order, noop

UTC = timezone.utc
BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"due_at": datetime(2030, 1, 1)}, exceptions.NaiveDatetime, "2030-01-01T00:00:00 without a time zone"),
    ({"expires": datetime(2030, 1, 1)}, exceptions.NaiveDatetime, "django.utils.timezone"),
    ({"due_at": "2030-01-01"}, exceptions.InvalidDelay, "due_at must be an aware datetime, not str"),
    ({"due_at": datetime(2099, 1, 1, tzinfo=UTC)}, exceptions.InvalidDelay, "more than ten years ahead"),
    ({"delay": -1}, exceptions.InvalidDelay, "zero or more seconds"),
    ({"delay": timedelta(seconds=-1)}, exceptions.InvalidDelay, "zero or more seconds"),
    ({"delay": float("nan")}, exceptions.InvalidDelay, "finite, not nan"),
    ({"delay": float("inf")}, exceptions.InvalidDelay, "finite, not inf"),
    ({"delay": True}, exceptions.InvalidDelay, "a timedelta or a number of seconds, not bool"),
    ({"delay": "5"}, exceptions.InvalidDelay, "not str"),
    ({"delay": 1_800_000_000}, exceptions.InvalidDelay, "more than ten years. Is it in seconds"),
    ({"delay": timedelta(days=3700)}, exceptions.InvalidDelay, "more than ten years"),
    ({"delay": 10**300}, exceptions.InvalidDelay, "more than ten years"),
    ({"delay": 5, "due_at": datetime(2030, 1, 1, tzinfo=UTC)}, exceptions.InvalidMessage, "delay or due_at, not both"),
    ({"topic": "not good"}, exceptions.InvalidName, "'not good' cannot name a topic. A name may hold A-Z"),
    ({"topic": "a{b}"}, exceptions.InvalidName, "cannot name a topic"),
    ({"topic": ""}, exceptions.InvalidName, "1 to 64 characters"),
    ({"topic": "x" * 65}, exceptions.InvalidName, "1 to 64 characters"),
    ({"topic": "a\n"}, exceptions.InvalidName, "cannot name a topic"),
    ({"ttr": 0.5}, exceptions.InvalidMessage, "ttr must be from 1 to 86,400 seconds, not 0.5"),
    ({"ttr": timedelta(days=2)}, exceptions.InvalidMessage, "ttr must be from 1"),
    ({"max_attempts": 0}, exceptions.InvalidMessage, "max_attempts must be a whole number from 1 to 1,000, not 0"),
    ({"max_attempts": 2.0}, exceptions.InvalidMessage, "whole number"),
    ({"max_attempts": True}, exceptions.InvalidMessage, "whole number"),
    ({"priority": "urgent"}, exceptions.InvalidMessage, 'priority is \'urgent\': use "high", "normal" or "low"'),
    ({"priority": 9}, exceptions.InvalidMessage, "priority is 9"),
    ({"on_duplicate": "ignore"}, exceptions.InvalidMessage, 'use "raise", "keep", "replace", "extend" or "earliest"'),
    ({"key": ""}, exceptions.InvalidKey, "1 to 256 characters"),
    ({"key": "x" * 257}, exceptions.InvalidKey, "1 to 256 characters"),
    ({"key": 5}, exceptions.InvalidKey, "key is 5. A key is a string"),
    ({"key": "half \ud800"}, exceptions.InvalidKey, "A key is a string"),
    ({"id": "5"}, exceptions.InvalidMessage, "'5' is not a message id: 32 hexadecimal digits"),
    ({"headers": {"trace": 5}}, exceptions.InvalidMessage, "headers is a mapping of str to str"),
    ({"headers": ["trace"]}, exceptions.InvalidMessage, "headers is a mapping"),
    ({"on_redis_error": "ignore"}, exceptions.InvalidMessage, 'on_redis_error is \'ignore\': use "spill" or "raise"'),
    ({"on_redis_error": True}, exceptions.InvalidMessage, "on_redis_error is True"),
    ({"countdown": 5}, exceptions.InvalidMessage, "using() has no option 'countdown': here it is delay"),
    ({"eta": 5}, exceptions.InvalidMessage, "here it is due_at (an aware datetime)."),
    ({"queue": "orders"}, exceptions.InvalidMessage, "here it is topic."),
    ({"retries": 3}, exceptions.InvalidMessage, "counts the first run too (retries=3 is max_attempts=4)"),
    ({"time_limit": 3}, exceptions.InvalidMessage, "here it is max_runtime of @delayed_task."),
    ({"delya": 5}, exceptions.InvalidMessage, "using() has no option 'delya'. Did you mean delay? Its options"),
]  # fmt: skip
BAD_DECLARATIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"max_runtime": 0}, exceptions.InvalidMessage, "max_runtime must be from 1"),
    ({"retry_for": ValueError()}, exceptions.InvalidMessage, "retry_for"),
    ({"retry_for": ("ValueError",)}, exceptions.InvalidMessage, "retry_for"),
    ({"backoff": []}, exceptions.InvalidMessage, "backoff"),
    ({"eta": 5}, exceptions.InvalidMessage, "@delayed_task has no option 'eta': here it is due_at"),
    (
        {"bakoff": 5},
        exceptions.InvalidMessage,
        "@delayed_task has no option 'bakoff'. Did you mean backoff?",
    ),
    ({"backoff": -1}, exceptions.InvalidDelay, "backoff"),
    ({"backoff": [5, "x"]}, exceptions.InvalidDelay, "backoff"),
    ({"backoff": object()}, exceptions.InvalidMessage, "backoff"),
    ({"rate": "10/day"}, exceptions.InvalidMessage, 'rate must be a text as "10/s"'),
    ({"rate_limit": "10/s"}, exceptions.InvalidMessage, "here it is rate"),
    ({"concurrency": 0}, exceptions.InvalidMessage, "whole number from 1 to 1,000, not 0"),
    ({"concurrency": True}, exceptions.InvalidMessage, "concurrency must be a whole number"),
    ({"too_late": 0}, exceptions.InvalidMessage, "too_late must be from 1"),
    ({"limit_by": "a{b}"}, exceptions.InvalidMessage, "give rate or concurrency"),
    ({"limit_by": "a{}", "rate": "1/s"}, exceptions.InvalidMessage, "limit_by is a template"),
    ({"limit_by": "a{b", "rate": "1/s"}, exceptions.InvalidMessage, "limit_by is a template"),
    ({"limit_by": "", "rate": "1/s"}, exceptions.InvalidMessage, "limit_by is a template"),
]


@pytest.mark.parametrize(("changes", "kind", "words"), BAD_OPTIONS)
def test_wrong_option_is_refused(
    changes: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(exceptions.InvalidMessage) as caught:
        noop.using(**changes)
    assert caught.type is kind
    assert words in str(caught.value)


@pytest.mark.parametrize(("changes", "kind", "words"), BAD_OPTIONS + BAD_DECLARATIONS)
def test_wrong_declaration_is_refused(
    declared: dict[str, Any], changes: dict[str, Any], kind: type[Exception], words: str
) -> None:
    before = dict(declared)
    with pytest.raises(exceptions.InvalidMessage):
        delayed_task(**changes)(lambda: None)
    assert declared == before


@pytest.mark.parametrize(("changes", "kind", "words"), BAD_DECLARATIONS)
def test_wrong_declaration_says_what_is_wrong(
    declared: dict[str, Any], changes: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        delayed_task(**changes)(lambda: None)


@pytest.mark.parametrize(
    "name",
    [
        "backoff",
        "retry_for",
        "max_runtime",
        "exactly_once",
        "rate",
        "concurrency",
        "limit_by",
        "isolate",
        "memory_limit",
    ],
)
def test_what_does_not_travel_with_a_message_is_not_for_using(name: str) -> None:
    """Silently ignored, it would be believed."""
    with pytest.raises(exceptions.InvalidMessage, match=f"{name}.*@delayed_task"):
        noop.using(**{name: 5})  # type: ignore[misc]


@pytest.mark.parametrize("name", ["headers", "id", "due_at"])
def test_what_names_one_message_is_not_for_the_decorator(
    declared: dict[str, Any], name: str
) -> None:
    with pytest.raises(exceptions.InvalidMessage, match=rf"{name}.*using\(\)"):
        delayed_task(**{name: "x"})(lambda: None)


def test_one_exception_class_is_enough_for_retry_for() -> None:
    assert Options.declared({"retry_for": OSError}).retry_for == (OSError,)  # type: ignore[typeddict-item]


def test_using_returns_a_copy_and_leaves_the_original() -> None:
    copy = noop.using(delay=5, key="k", priority="low", max_attempts=9)
    assert (copy.options.when, copy.options.key, copy.options.priority, copy.max_attempts) == (
        "+5000",
        "k",
        2,
        9,
    )
    assert (noop.options.when, noop.options.key, noop.options.priority, noop.max_attempts) == (
        "+0",
        None,
        1,
        5,
    )
    assert copy.definition is noop.definition
    assert registry.by_name[noop.name] is noop


def test_the_name_of_a_task_is_of_its_declaration() -> None:
    with pytest.raises(exceptions.InvalidMessage, match="name is of the task, it does not travel"):
        noop.using(name="x")  # type: ignore[call-arg]


@pytest.mark.parametrize(("of", "absent"), [("task", "due_at"), ("call", "backoff")])
def test_a_wrong_option_is_answered_with_those_that_can_be_given_there(
    of: str, absent: str
) -> None:
    with pytest.raises(exceptions.InvalidMessage) as caught:
        Options.declared({"xyz": 1}) if of == "task" else Options().changed({"xyz": 1})  # type: ignore[typeddict-unknown-key]
    options = str(caught.value).partition("Its options are: ")[2].rstrip(".").split(", ")
    assert {"delay", "topic"} < set(options)
    assert absent not in options


def test_a_ladder_of_timedeltas_is_one_of_seconds(declared: dict[str, Any]) -> None:
    @delayed_task(name="tests.ladder", backoff=[timedelta(minutes=1), 90], retry_for=OSError)
    def task() -> None: ...

    assert [task.options.backoff(failures) for failures in (1, 2, 3)] == [60, 90, 90]
    assert task.options.retry_for == (OSError,)


def test_using_again_keeps_earlier_changes() -> None:
    copy = noop.using(key="k").using(delay=5)
    assert (copy.options.key, copy.options.when) == ("k", "+5000")


def test_later_due_at_replaces_an_earlier_delay() -> None:
    due_at = datetime(2030, 1, 1, tzinfo=UTC)
    assert noop.using(delay=5).using(due_at=due_at).options.when == "1893456000000"
    assert noop.using(due_at=due_at).using(delay=5).options.when == "+5000"


def test_none_takes_back_a_key_and_an_expiry() -> None:
    copy = noop.using(key="k", expires=5).using(key=None, expires=None)
    assert (copy.options.key, copy.options.expires) == (None, "")


def test_topic_gives_defaults_to_its_tasks(settings: Any) -> None:
    settings.DELAYQ = {
        **settings.DELAYQ,
        "TOPICS": {"orders": {"ttr": 7, "max_attempts": 2}},
        "MAX_ATTEMPTS": 4,
    }
    assert (close_order.ttr_ms, close_order.max_attempts) == (7000, 2)
    assert (noop.ttr_ms, noop.max_attempts) == (60_000, 4)
    assert act.max_attempts == 3


# Durable, exactly once, and what to do without Redis


def test_by_default_a_message_is_neither_durable_nor_exactly_once() -> None:
    options = noop.options
    assert (options.durable, options.exactly_once, options.on_redis_error) == (False, False, None)


def test_task_and_call_may_be_durable_and_say_what_to_do_without_redis(
    declared: dict[str, Any],
) -> None:
    @delayed_task(name="tests.durable", durable=True, on_redis_error="raise")
    def task() -> None: ...

    assert (task.options.durable, task.options.on_redis_error) == (True, "raise")
    copy = task.using(durable=False, on_redis_error="spill")
    assert (copy.options.durable, copy.options.on_redis_error) == (False, "spill")


@pytest.mark.parametrize("database", ["other", "nowhere"])
def test_durable_message_of_another_database_is_refused(database: str) -> None:
    words = rf'written to DELAYQ\["DATABASE"\], \'default\', not to \'{database}\''
    for task in (
        noop.using(durable=True, database=database),
        noop.using(database=database).using(durable=True),
    ):
        for call in (task.enqueue, lambda task=task: task.enqueue_many([()])):
            with pytest.raises(exceptions.InvalidMessage, match=words):
                call()


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.parametrize("database", [None, "default"])
def test_durable_message_of_the_same_database_is_taken(
    delayq: RedisStore, database: str | None
) -> None:
    assert noop.using(durable=True, database=database, delay=60).enqueue().outcome == "stored"


def test_durable_message_that_does_not_wait_for_the_commit_is_refused() -> None:
    with pytest.raises(
        exceptions.InvalidMessage,
        match="durable message belongs to its transaction: after_commit=Fa",
    ):
        noop.using(durable=True, after_commit=False).enqueue()


@pytest.mark.django_db(transaction=True)
def test_durable_message_waits_for_the_commit_whatever_the_setting_says(
    settings: Any, delayq: RedisStore
) -> None:
    from django.db import transaction

    settings.DELAYQ = {**settings.DELAYQ, "AFTER_COMMIT": False}
    with transaction.atomic():
        handle = noop.using(durable=True, delay=60).enqueue()
        assert (
            handle.outcome,
            delayq.queries.find(delayq.partitions.all("default")[0], [handle.identity]),
        ) == ("", [None])
    assert handle.outcome == "stored"


def test_exactly_once_is_of_the_task(declared: dict[str, Any]) -> None:
    @delayed_task(name="tests.once", exactly_once=True)
    def task() -> None: ...

    assert task.options.exactly_once
    with pytest.raises(
        exceptions.InvalidMessage, match="exactly_once is of the task, it does not travel"
    ):
        task.using(exactly_once=False)  # type: ignore[call-arg]


def test_exactly_once_needs_a_def_task(declared: dict[str, Any]) -> None:
    before = dict(declared)

    async def task() -> None: ...

    with pytest.raises(
        exceptions.InvalidTask, match=r"once is async def, .* no transactions.*needs a def task"
    ):
        delayed_task(name="tests.once", exactly_once=True)(task)
    assert declared == before


@pytest.mark.parametrize(
    ("given", "limit"),
    [(1 << 26, 1 << 26), ("512MiB", 512 << 20), ("2 GiB", 2 << 30), (None, None)],
)
def test_a_memory_limit_is_bytes_or_a_text_with_its_unit(
    declared: dict[str, Any], given: Any, limit: int | None
) -> None:
    @delayed_task(name="tests.apart", isolate=True, memory_limit=given)
    def task() -> None: ...

    assert task.options.memory_limit == limit


@pytest.mark.parametrize(
    "given", [1, 0, -5, True, 1e9, "512", "512MB", "63MiB", "2000GiB", "x", b""]
)
def test_a_memory_limit_that_nobody_means_is_refused(declared: dict[str, Any], given: Any) -> None:
    with pytest.raises(exceptions.InvalidMessage, match="memory_limit is a number of bytes, or"):
        delayed_task(name="tests.apart", isolate=True, memory_limit=given)(lambda: None)


def test_isolation_is_refused_where_it_cannot_be_had(declared: dict[str, Any]) -> None:
    async def coroutine() -> None: ...

    with pytest.raises(exceptions.InvalidTask, match="isolate needs a def task"):
        delayed_task(name="tests.apart", isolate=True)(coroutine)
    with pytest.raises(exceptions.InvalidMessage, match="isolate does not go with exactly_once"):
        delayed_task(name="tests.apart", isolate=True, exactly_once=True)(lambda: None)
    with pytest.raises(exceptions.InvalidMessage, match="give isolate=True too"):
        delayed_task(name="tests.apart", memory_limit="1GiB")(lambda: None)
    with pytest.raises(exceptions.InvalidMessage, match="isolate is True or False"):
        delayed_task(name="tests.apart", isolate="yes")(lambda: None)  # type: ignore[arg-type]


def test_only_what_is_isolated_or_exactly_once_runs_apart(declared: dict[str, Any]) -> None:
    assert not noop.definition.runs_apart
    for option in ("isolate", "exactly_once"):
        task = delayed_task(name=f"tests.{option}", **{option: True})(lambda: None)
        assert task.definition.runs_apart
