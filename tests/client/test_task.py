"""The decorator, the calls of a task and what is refused at the door."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import pickle
import subprocess
import sys
import textwrap
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps

from django_delayq import DelayQError, Message, Priority, State, constant, delayed_task
from django_delayq.core import exceptions
from django_delayq.core.message import task_code
from django_delayq.store.store import RedisStore
from django_delayq.tasks import registry
from tests.app.tasks import close_order, noop, remind

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
    assert noop.name == "tests.app.tasks.noop"
    assert noop.options.topic == "default"
    assert (noop.ttr_ms, noop.max_attempts, noop.max_runtime_s) == (60_000, 5, 3600)
    assert 3.75 <= noop.options.backoff(1) <= 6.25


def test_decorator_takes_every_option(declared: dict[str, Any]) -> None:
    @delayed_task(
        name="tests.all", topic="all", delay=timedelta(minutes=30), ttr=5, max_runtime=timedelta(hours=1),
        max_attempts=7, backoff=constant(3), retry_for=(OSError,), priority="high", expires=60, on_duplicate="keep",
    )  # fmt: skip
    def task() -> None: ...

    options = task.options
    assert declared["tests.all"] is task
    assert (options.topic, options.when, options.expires) == ("all", "+1800000", "+60000")
    assert (task.ttr_ms, task.max_runtime_s, task.max_attempts) == (5000, 3600, 7)
    assert (options.backoff(9), options.retry_for, options.priority) == (
        3,
        (OSError,),
        Priority.HIGH,
    )
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
    assert repr(close_order) == "<delayed task tests.app.tasks.close_order of topic orders>"


def test_two_functions_with_one_name_are_refused(declared: dict[str, Any]) -> None:
    namespace: dict[str, Any] = {"__name__": "tests.one"}
    exec(compile(MODULE.format(1), "one.py", "exec"), namespace)
    with pytest.raises(
        exceptions.DuplicateTask,
        match=r"Two tasks are named 'tests\.twice'.*one\.py:4 and two\.py:4",
    ):
        exec(compile(MODULE.format(2), "two.py", "exec"), {"__name__": "tests.two"})
    assert declared["tests.twice"]() == 1


def test_module_that_is_imported_twice_declares_one_task(declared: dict[str, Any]) -> None:
    for name in ("tests.one", "one"):
        exec(compile(MODULE.format(1), "one.py", "exec"), {"__name__": name})
    assert declared["tests.twice"]() == 1


def test_duplicate_task_is_an_error_of_the_configuration() -> None:
    assert issubclass(exceptions.DuplicateTask, exceptions.ConfigurationError)


def test_tasks_of_installed_apps_are_found() -> None:
    """tests/app/tasks.py: "tests" is an installed app."""
    assert apps.is_installed("tests.app")
    assert registry.by_name["tests.app.tasks.noop"] is noop


@pytest.mark.parametrize("name", ["", "with space", "brace{", "x" * 201, "löschen", "line\nbreak"])
def test_name_of_a_task_is_checked(declared: dict[str, Any], name: str) -> None:
    with pytest.raises(exceptions.InvalidName, match="task"):
        delayed_task(name=name)(lambda: None)


# What can be a task


def logged(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator without functools.wraps."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapper


def traced(func: Callable[..., Any]) -> Callable[..., Any]:
    """One with it."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapper


def charge(order_id: int) -> str:
    return f"charge {order_id}"


def refund(order_id: int) -> str:
    return f"refund {order_id}"


async def fetch(url: str) -> str:
    return url


def numbers() -> Iterator[int]:
    yield 1


async def async_numbers() -> AsyncIterator[int]:
    yield 1


class Caller:
    def __call__(self) -> None: ...

    def call(self, number: int) -> None: ...

    @staticmethod
    def static(number: int) -> int:
        return number


NO_TASKS: list[tuple[Any, str]] = [
    ("orders", r"takes its options by name: @delayed_task\(topic='orders'\)"),
    (5, "of type int, and a task is a function of a module"),
    (Caller, "Caller is a class"),
    (Caller(), "of type Caller"),
    (Caller().call, "Caller.call is a method of Caller"),
    (Caller.call, "Caller.call is a method: a message has no self to call it on"),
    (functools.partial(charge, 1), "of type partial"),
    (numbers, "numbers is a generator: a call runs nothing of it"),
    (async_numbers, "async_numbers is a generator"),
    (
        traced(fetch),
        "fetch is async def, and its decorator is not: .* asgiref.sync.markcoroutinefunction",
    ),
    (noop, "tests.app.tasks.noop is a task already"),
]


@pytest.mark.parametrize(("thing", "words"), NO_TASKS)
def test_what_no_worker_could_run_is_refused_when_it_is_declared(
    declared: dict[str, Any], thing: Any, words: str
) -> None:
    before = dict(declared)
    for declare in (delayed_task, delayed_task(name="tests.thing"), delayed_task(topic="orders")):
        with pytest.raises(exceptions.InvalidTask, match=words):
            declare(thing)
    assert declared == before


@pytest.mark.parametrize(
    ("thing", "words"), [(lambda: None, "is a lambda"), (logged(charge), "made inside another")]
)
def test_a_function_that_others_share_their_name_with_needs_one_of_its_own(
    declared: dict[str, Any], thing: Any, words: str
) -> None:
    with pytest.raises(
        exceptions.InvalidName, match=rf"{words}.*@delayed_task\(name=\.\.\.\).*functools.wraps"
    ):
        delayed_task(thing)
    assert delayed_task(name="tests.own")(thing).name == "tests.own"


def test_a_function_of_a_class_that_needs_no_object_can_be_a_task(declared: dict[str, Any]) -> None:
    assert delayed_task(Caller.static).name == "tests.client.test_task.Caller.static"


def test_two_functions_of_one_decorator_are_not_taken_for_one(declared: dict[str, Any]) -> None:
    first = delayed_task(name="tests.money")(logged(charge))
    with pytest.raises(exceptions.DuplicateTask, match=r"Two tasks are named 'tests\.money'"):
        delayed_task(name="tests.money")(logged(refund))
    assert declared["tests.money"] is first
    assert delayed_task(name="tests.money")(logged(charge)) is declared["tests.money"]


def test_two_functions_of_one_factory_are_not_taken_for_one(declared: dict[str, Any]) -> None:
    class Channel:
        def __init__(self, name: str) -> None:
            self.name = name

    def notifier(channel: Any) -> Any:
        def notify(number: int) -> tuple[Any, int]:
            return channel, number

        return delayed_task(name="tests.notify")(notify)

    for mail, sms in (("mail", "sms"), (Channel("mail"), Channel("sms")), (["mail"], ["sms"])):
        declared.pop("tests.notify", None)
        registry.by_code.pop(task_code("tests.notify"), None)
        notifier(mail)
        with pytest.raises(exceptions.DuplicateTask):
            notifier(sms)
        notifier(mail)


def test_a_function_may_close_over_things_that_hold_each_other(declared: dict[str, Any]) -> None:
    def make(number: int) -> Any:
        ring: dict[str, Any] = {f"{n}": [number] for n in range(100)}
        for name in list(ring):
            ring[name].extend([ring] * 100)

        def task() -> int:
            return len(ring) and len(inspect.signature(task).parameters)

        return delayed_task(name="tests.ring")(task)

    make(1)
    make(1)
    with pytest.raises(exceptions.DuplicateTask):
        make(2)


def test_a_module_that_is_loaded_anew_declares_its_tasks_anew(
    declared: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("loaded_anew.py").write_text(
        "import functools, threading\nfrom django_delayq import delayed_task\n"
        "class Client: pass\n"
        "def with_client(client):\n"
        "    def decorate(func):\n"
        "        @functools.wraps(func)\n"
        "        def wrapper(*args): return func(*args)\n"
        "        wrapper.client = lambda: client\n"
        "        return wrapper\n"
        "    return decorate\n"
        "@delayed_task\n@with_client(Client())\ndef a(): return 1\n"
        "@delayed_task(name='tests.anew')\n@with_client(threading.Lock())\ndef b(): return 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("loaded_anew")
    before = declared["loaded_anew.a"]
    importlib.reload(module)
    assert declared["loaded_anew.a"] is module.a is not before


def test_an_async_def_behind_a_decorator_that_says_so_is_async(declared: dict[str, Any]) -> None:
    from asgiref.sync import markcoroutinefunction

    async def awaited(url: str) -> str:
        return await fetch(url)

    for func in (markcoroutinefunction(traced(fetch)), functools.wraps(fetch)(awaited)):
        assert delayed_task(name="tests.fetch")(func).definition.is_async
        del declared["tests.fetch"]
        del registry.by_code[task_code("tests.fetch")]


# What a call takes


def with_client(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that gives the function an argument, and says what is left."""

    @functools.wraps(func)
    def wrapper(order_id: int) -> Any:
        return func("client", order_id)

    return wrapper


def silent(func: Callable[..., Any]) -> Callable[..., Any]:
    """One that does not say it."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func("client", *args, **kwargs)

    return wrapper


def charge_with(client: str, order_id: int) -> tuple[str, int]:
    return client, order_id


def test_a_decorator_that_gives_an_argument_is_believed_what_it_takes(
    declared: dict[str, Any], delayq: RedisStore
) -> None:
    task: Any = delayed_task(name="tests.given")(traced(with_client(charge_with)))
    assert task.using(delay=60).enqueue(1).outcome == "stored"
    assert str(task.definition.signature) == "(order_id: 'int') -> 'tuple[str, int]'"
    with pytest.raises(exceptions.InvalidArguments, match="too many positional arguments"):
        task.enqueue("client", 1)


def test_a_decorator_that_gives_an_argument_and_does_not_say_so_is_told_how(
    declared: dict[str, Any],
) -> None:
    task: Any = delayed_task(name="tests.silent")(silent(charge_with))
    with pytest.raises(
        exceptions.InvalidArguments,
        match=r"missing .* 'order_id'\. If its decorator gives it the rest",
    ):
        task.enqueue(1)
    told: Any = silent(charge_with)
    told.__signature__ = inspect.Signature(
        [inspect.Parameter("order_id", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    )
    task = delayed_task(name="tests.told")(told)
    task.definition.check_arguments([1], {})


def test_a_plain_decorator_leaves_the_arguments_checked(declared: dict[str, Any]) -> None:
    task: Any = delayed_task(name="tests.traced")(functools.lru_cache(traced(traced(charge))))
    with pytest.raises(
        exceptions.InvalidArguments, match=r"traced\(order_id: 'int'\) -> 'str' cannot be called so"
    ):
        task.enqueue(1, 2)


def test_options_given_to_enqueue_are_pointed_to_using() -> None:
    with pytest.raises(
        exceptions.InvalidArguments,
        match=r"go to using\(\): task\.using\(delay=\.\.\., key=\.\.\.\)\.enq",
    ):
        close_order.enqueue(1, delay=5, key="k")  # type: ignore[call-arg]


# Tasks as objects


@pytest.mark.parametrize(
    "copier", [copy.copy, copy.deepcopy, lambda task: pickle.loads(pickle.dumps(task))]
)
def test_a_task_can_be_pickled_and_copied(copier: Callable[[Any], Any]) -> None:
    assert copier(close_order) is close_order
    again = copier(close_order.using(delay=5, key="k", headers={"a": "b"}))
    assert again.definition is close_order.definition
    assert (again.options.when, again.options.key, again.options.headers) == (
        "+5000",
        "k",
        {"a": "b"},
    )
    assert again.options.backoff is close_order.options.backoff


def test_a_pickled_task_imports_its_module_where_that_has_not_been_done(
    declared: dict[str, Any],
) -> None:
    pickled = pickle.dumps(close_order)
    script = (
        "import pickle, sys, django; from django.conf import settings\n"
        "settings.configure(INSTALLED_APPS=['django_delayq'], DELAYQ={}); django.setup()\n"
        f"print(pickle.loads({pickled!r}).name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "tests.app.tasks.close_order\n", done.stderr


def test_a_task_says_where_its_function_is_and_whether_it_is_async() -> None:
    from asgiref.sync import iscoroutinefunction

    assert (close_order.__module__, close_order.__qualname__, close_order.__name__) == (
        "tests.app.tasks", "close_order", "close_order",
    )  # fmt: skip
    assert [iscoroutinefunction(task) for task in (remind, remind.using(delay=5), close_order)] == [
        True,
        True,
        False,
    ]


# Arguments


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1, 2), {}),
        ((1,), {"order_id": 1}),
        ((1,), {"colour": "red"}),
        ((), {"reason": "x"}),
    ],
)
def test_arguments_that_do_not_bind_are_refused(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(
        exceptions.InvalidArguments, match=r"go to using\(\): task.using\(delay=...\)"
    ):
        close_order.enqueue(5, delay=5)
    with pytest.raises(
        exceptions.InvalidArguments, match=r"close_order\(order_id: .*cannot be called so"
    ):
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


def test_refusal_names_the_task_and_the_parameter() -> None:
    words = "tests.app.tasks.close_order, reason: An argument is of type object"
    with pytest.raises(exceptions.UnserialisableArguments, match=words):
        close_order.enqueue(1, reason=object())  # type: ignore[arg-type]
    with pytest.raises(
        exceptions.UnserialisableArguments,
        match=r"tests\.app\.tasks\.noop, args: An argument is of type object",
    ):
        noop.enqueue(1, [{"deep": object()}])


@pytest.mark.parametrize(
    "wrap", [lambda rows: rows, lambda rows: {1: rows}, lambda rows: [{"rows": [rows]}]]
)
def test_refusal_of_a_queryset_does_not_run_its_query(wrap: Callable[[Any], Any]) -> None:
    """No database is allowed in this test."""
    from django_delayq.models import ArchivedMessage

    with pytest.raises(
        exceptions.UnserialisableArguments, match=r"of type (QuerySet|DelayQQuerySet|dict)"
    ):
        noop.enqueue(wrap(ArchivedMessage.objects.all()))


def test_refusal_says_what_to_pass_instead() -> None:
    with pytest.raises(
        exceptions.UnserialisableArguments,
        match="Annotate the parameter with its type, or pass a primary key",
    ):
        noop.enqueue(object())


def test_arguments_that_contain_themselves_are_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(exceptions.UnserialisableArguments, match="nested deeper"):
        noop.enqueue(loop)


def test_body_over_the_limit_is_refused(settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "BODY_LIMIT": 1000}
    with pytest.raises(
        exceptions.BodyTooLarge, match=r"take 1,004 bytes, the limit is 1,000\. Store the data"
    ):
        noop.enqueue("x" * 1000)


def test_unknown_topic_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        exceptions.UnknownTopic, match=r"'ordres' is not declared. Known topics: .*orders"
    ):
        noop.using(topic="ordres").enqueue()


def test_topic_of_the_settings_is_known(settings: Any, delayq: RedisStore) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"bulk": {}}}
    assert noop.using(topic="bulk", delay=60).enqueue().topic == "bulk"


@pytest.mark.parametrize("element", ["abc", b"abc", 5, None, {1, 2}])
def test_enqueue_many_refuses_what_is_no_call(element: Any) -> None:
    with pytest.raises(
        exceptions.InvalidArguments, match=r"takes tuples of arguments, mappings or prepare\(...\)"
    ):
        noop.enqueue_many([element])


@pytest.mark.parametrize(
    "value", [2**53 + 1, 2**64, -(2**70), [], {}, [{}], 1e300, 0.1, "\0 \u2028 ü", None, True]
)
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


@pytest.mark.parametrize(
    "arguments", [{}, {"delay": 1, "due_at": datetime(2030, 1, 1, tzinfo=UTC)}]
)
def test_reschedule_takes_a_delay_or_an_instant(arguments: dict[str, Any]) -> None:
    with pytest.raises(exceptions.InvalidMessage, match="either delay or due_at"):
        noop.reschedule(key="k", **arguments)


def test_get_shows_the_whole_message(delayq: RedisStore) -> None:
    sent = close_order.using(key="order:5", delay=60, headers={"trace": "t"}, expires=30).enqueue(
        5, reason="stock"
    )
    message = close_order.get(key="order:5")
    assert isinstance(message, Message)
    assert (message.id, message.topic, message.task) == (
        sent.id,
        "orders",
        "tests.app.tasks.close_order",
    )
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
    """What mypy says about a snippet. Packages are followed silently: only the snippet is
    judged."""
    snippet = tmp_path / "snippet.py"
    header = (
        "from django_delayq import delayed_task\n@delayed_task(topic='x')\ndef close(order_id: "
        "int) -> None: ...\n"
    )
    snippet.write_text(header + textwrap.dedent(body))
    config = tmp_path / "mypy.ini"
    config.write_text(
        "[mypy]\nstrict = True\nfollow_imports = silent\nignore_missing_imports = True\n"
    )
    command = [
        "--config-file",
        str(config),
        "--cache-dir",
        str(Path(".mypy_cache", "snippets")),
        str(snippet),
    ]
    from mypy import api

    return api.run(command)[0]


@pytest.mark.long
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
        async def twins() -> None:
            handle = await close.aenqueue(5)
            moved = await close.areschedule(key="k", delay=5)
            moved.isoformat()
            if await handle.acancel(missing_ok=True) and (found := await handle.aget()):
                found.due_at.isoformat()
            await close.aenqueue("5")
            (await close.areschedule(key="k", delay=5, missing_ok=True)).isoformat()
            (await handle.areschedule(delay=5, missing_ok=True)).isoformat()
        """,
    )
    lines = [line.split(":")[1] for line in said.splitlines() if ": error:" in line]
    assert lines == ["8", "9", "10", "11", "12", "19", "20", "21"]


@pytest.mark.long
def test_types_take_every_form_of_an_option(tmp_path: Path) -> None:
    said = check_types(
        tmp_path,
        """
        from datetime import timedelta
        @delayed_task(retry_for=OSError, backoff=[timedelta(minutes=1), 5])
        def one() -> None: ...
        @delayed_task(retry_for=[OSError, ValueError], backoff=timedelta(minutes=1))
        def two() -> None: ...
        """,
    )
    assert said.startswith("Success")


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
            INSTALLED_APPS=["django_delayq", "tests.app"], DELAYQ={"REDIS": "redis://127.0.0.1:1/0"},
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "x"}},
        )
        import django_delayq
        assert not [name for name in sys.modules if name == "redis" and threading.active_count() > 1]
        django.setup()
        from django_delayq.tasks import registry
        print(sorted(registry.by_name)[0], threading.active_count())
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    yield done.stdout + done.stderr


def test_importing_does_no_io(outcome_of_import: str) -> None:
    assert outcome_of_import.startswith("tests.app.tasks.") and outcome_of_import.endswith(
        " 1\n"
    ), outcome_of_import


def test_task_can_be_declared_and_not_enqueued_before_django_is_ready() -> None:
    script = """
        from django.conf import settings
        settings.configure(INSTALLED_APPS=["django_delayq"])
        from django_delayq import delayed_task
        task = delayed_task(name="tests.early")(lambda: 5)
        try:
            task.enqueue()
        except Exception as error:
            print(task(), error)
        """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("5 Apps aren't loaded yet.\n", "")
