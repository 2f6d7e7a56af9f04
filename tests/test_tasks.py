"""The decorator, the calls of a task and what is refused at the door."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps

from django_delayq import DelayQError, Message, Priority, State, constant, delayed_task, exceptions, handle, tasks
from django_delayq.store.redis import RedisStore
from tests.tasks import close_order, noop, remind

UTC = timezone.utc
MODULE = """
from django_delayq import delayed_task

@delayed_task(name="tests.twice")
def twice():
    return {0!r}
"""


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


# Declaring


def test_task_without_options_has_the_defaults() -> None:
    assert noop.name == "tests.tasks.noop"
    assert noop.options.topic == "default"
    assert (noop.ttr_ms, noop.max_attempts, noop.max_runtime_s) == (60_000, 5, 3600)
    assert 3.75 <= noop.options.backoff(1) <= 6.25


def test_decorator_takes_every_option(registry: dict[str, Any]) -> None:
    @delayed_task(
        name="tests.all", topic="all", delay=timedelta(minutes=30), ttr=5, max_runtime=timedelta(hours=1),
        max_attempts=7, backoff=constant(3), retry_for=(OSError,), priority="high", expires=60, on_duplicate="keep",
    )  # fmt: skip
    def task() -> None: ...

    options = task.options
    assert registry["tests.all"] is task
    assert (options.topic, options.when, options.expires) == ("all", "+1800000", "+60000")
    assert (task.ttr_ms, task.max_runtime_s, task.max_attempts) == (5000, 3600, 7)
    assert (options.backoff(9), options.retry_for, options.priority) == (3, (OSError,), Priority.HIGH)
    assert options.on_duplicate == "keep"


def test_calling_a_task_calls_the_function() -> None:
    assert close_order(5, reason="stock") == (5, "stock")


async def call_remind() -> str:
    return await remind(5)


def test_calling_an_async_task_returns_its_coroutine() -> None:
    import asyncio

    assert remind.definition.is_async
    assert asyncio.run(call_remind()) == "reminded 5"


def test_task_looks_like_its_function() -> None:
    assert close_order.__doc__ == "Closes an order."
    assert list(inspect.signature(close_order).parameters) == ["order_id", "reason"]
    assert repr(close_order) == "<delayed task tests.tasks.close_order of topic orders>"


def test_two_functions_with_one_name_are_refused(registry: dict[str, Any]) -> None:
    namespace: dict[str, Any] = {"__name__": "tests.one"}
    exec(compile(MODULE.format(1), "one.py", "exec"), namespace)
    with pytest.raises(exceptions.DuplicateTask, match=r"Two tasks are named 'tests\.twice'.*one\.py:4 and two\.py:4"):
        exec(compile(MODULE.format(2), "two.py", "exec"), {"__name__": "tests.two"})
    assert registry["tests.twice"]() == 1


def test_module_that_is_imported_twice_declares_one_task(registry: dict[str, Any]) -> None:
    for name in ("tests.one", "one"):
        exec(compile(MODULE.format(1), "one.py", "exec"), {"__name__": name})
    assert registry["tests.twice"]() == 1


def test_duplicate_task_is_an_error_of_the_configuration() -> None:
    assert issubclass(exceptions.DuplicateTask, exceptions.ConfigurationError)


def test_tasks_of_installed_apps_are_found() -> None:
    """tests/tasks.py: "tests" is an installed app."""
    assert apps.is_installed("tests")
    assert tasks.by_name["tests.tasks.noop"] is noop


@pytest.mark.parametrize("name", ["", "with space", "brace{", "x" * 201, "löschen", "line\nbreak"])
def test_name_of_a_task_is_checked(registry: dict[str, Any], name: str) -> None:
    with pytest.raises(exceptions.InvalidName, match="task"):
        delayed_task(name=name)(lambda: None)


# Arguments


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, 2), {}), ((1,), {"order_id": 1}), ((1,), {"colour": "red"}), ((), {"reason": "x"})],
)
def test_arguments_that_do_not_bind_are_refused(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises(exceptions.InvalidArguments, match=r"close_order\(order_id: .*cannot be called so"):
        close_order.enqueue(*args, **kwargs)


def test_defaults_and_keywords_bind(delayq: RedisStore) -> None:
    sent = close_order.using(delay=60).enqueue(order_id=3)
    message = sent.get()
    assert message is not None
    assert (message.args, message.kwargs) == ([], {"order_id": 3})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (datetime(2030, 1, 1, tzinfo=UTC), "of type datetime"),
        ({1, 2}, "of type set"),
        (b"bytes", "of type bytes"),
        (object(), "of type object"),
        (uuid.uuid4(), "of type UUID"),
        (float("nan"), "of type float"),
        (float("inf"), "finite float"),
        ({1: "one"}, "dict with str keys"),
        ([{"deep": {5: 5}}], "dict with str keys"),
        (nested(40), "nested deeper than 32 levels"),
        ("half \ud800", "cannot be written as JSON"),
    ],
)
def test_arguments_that_do_not_survive_json_are_refused(value: Any, words: str) -> None:
    for call in (lambda: noop.enqueue(value), lambda: noop.enqueue(argument=value)):
        with pytest.raises(exceptions.UnserialisableArguments) as caught:
            call()
        assert words in str(caught.value)


def test_refusal_says_what_to_pass_instead() -> None:
    with pytest.raises(exceptions.UnserialisableArguments, match="Pass a primary key or an ISO string"):
        noop.enqueue(object())


def test_arguments_that_contain_themselves_are_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(exceptions.UnserialisableArguments, match="nested deeper"):
        noop.enqueue(loop)


def test_body_over_the_limit_is_refused(settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "BODY_LIMIT": 1000}
    with pytest.raises(exceptions.BodyTooLarge, match=r"take 1,004 bytes, the limit is 1,000\. Store the data"):
        noop.enqueue("x" * 1000)


def test_unknown_topic_is_refused_with_those_that_exist() -> None:
    with pytest.raises(exceptions.UnknownTopic, match=r"'ordres' is not declared. Known topics: .*orders"):
        noop.using(topic="ordres").enqueue()


def test_topic_of_the_settings_is_known(settings: Any, delayq: RedisStore) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"bulk": {}}}
    assert noop.using(topic="bulk", delay=60).enqueue().topic == "bulk"


@pytest.mark.parametrize("element", ["abc", b"abc", 5, None, {1, 2}])
def test_enqueue_many_refuses_what_is_no_call(element: Any) -> None:
    with pytest.raises(exceptions.InvalidArguments, match=r"takes tuples of arguments, mappings or prepare\(...\)"):
        noop.enqueue_many([element])


@pytest.mark.parametrize("value", [2**53 + 1, 2**64, -(2**70), [], {}, [{}], 1e300, 0.1, "\0 \u2028 ü", None, True])
def test_arguments_come_back_unchanged(delayq: RedisStore, value: Any) -> None:
    message = noop.using(delay=60).enqueue(value).get()
    assert message is not None
    assert message.args == [value]
    assert type(message.args[0]) is type(value)


def test_bad_input_is_a_value_error_of_this_package() -> None:
    with pytest.raises(ValueError, match="not bool") as caught:
        noop.using(delay=True)
    assert isinstance(caught.value, DelayQError)


@pytest.mark.parametrize("arguments", [{}, {"key": "k", "id": "0" * 32}])
def test_finding_takes_a_key_or_an_id(arguments: dict[str, str]) -> None:
    for call in (noop.get, noop.cancel, lambda **kwargs: noop.reschedule(delay=1, **kwargs)):
        with pytest.raises(exceptions.InvalidMessage, match="Give either key or id"):
            call(**arguments)


@pytest.mark.parametrize("arguments", [{}, {"delay": 1, "due_at": datetime(2030, 1, 1, tzinfo=UTC)}])
def test_reschedule_takes_a_delay_or_an_instant(arguments: dict[str, Any]) -> None:
    with pytest.raises(exceptions.InvalidMessage, match="either delay or due_at"):
        noop.reschedule(key="k", **arguments)


def test_get_shows_the_whole_message(delayq: RedisStore) -> None:
    sent = close_order.using(key="order:5", delay=60, headers={"trace": "t"}, expires=30).enqueue(5, reason="stock")
    message = close_order.get(key="order:5")
    assert isinstance(message, Message)
    assert (message.id, message.topic, message.task) == (sent.id, "orders", "tests.tasks.close_order")
    assert (message.state, message.key, message.attempt) == (State.DELAYED, "order:5", 0)
    assert (list(message.args), dict(message.kwargs), dict(message.headers)) == (
        [5],
        {"reason": "stock"},
        {"trace": "t"},
    )
    assert message.due_at == sent.due_at
    assert message.expires_at == message.due_at + timedelta(seconds=30)


# Types


def check_types(tmp_path: Path, body: str) -> str:
    """What mypy says about a snippet. Packages are followed silently: only the snippet is judged."""
    snippet = tmp_path / "snippet.py"
    header = "from django_delayq import delayed_task\n@delayed_task(topic='x')\ndef close(order_id: int) -> None: ...\n"
    snippet.write_text(header + textwrap.dedent(body))
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = True\nfollow_imports = silent\nignore_missing_imports = True\n")
    command = ["--config-file", str(config), "--cache-dir", str(Path(".mypy_cache", "snippets")), str(snippet)]
    from mypy import api

    return api.run(command)[0]


def test_types_of_arguments_are_checked(tmp_path: Path) -> None:
    said = check_types(
        tmp_path,
        """
        close.enqueue(5)
        close.using(delay=5, key="k").enqueue(order_id=5)
        close(5)
        close.enqueue("5")
        close.using(delay=5).enqueue()
        close.prepare(5, 6)
        close.using(delya=5)
        close.using(key=5)
        """,
    )
    lines = [line.split(":")[1] for line in said.splitlines() if ": error:" in line]
    assert lines == ["8", "9", "10", "11", "12"]


# Importing


@pytest.fixture(scope="module")
def outcome_of_import() -> Iterator[str]:
    """What a fresh interpreter says that may open no socket and no database."""
    script = """
        import socket, sqlite3, sys, threading
        def refuse(*args, **kwargs): raise AssertionError("I/O while importing")
        socket.socket.connect = socket.create_connection = sqlite3.connect = refuse
        import django
        from django.conf import settings
        settings.configure(
            INSTALLED_APPS=["django_delayq", "tests"], DELAYQ={"REDIS": "redis://127.0.0.1:1/0"},
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "x"}},
        )
        import django_delayq
        assert not [name for name in sys.modules if name == "redis" and threading.active_count() > 1]
        django.setup()
        from django_delayq import tasks
        print(sorted(tasks.by_name)[0], threading.active_count())
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    yield done.stdout + done.stderr


def test_importing_does_no_io(outcome_of_import: str) -> None:
    assert outcome_of_import.startswith("tests.tasks.") and outcome_of_import.endswith(" 1\n"), outcome_of_import


def test_task_that_is_sent_before_django_is_ready_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "_producer", [])
    with pytest.raises(exceptions.ConfigurationError, match=r"call django\.setup\(\)"):
        noop.enqueue()
