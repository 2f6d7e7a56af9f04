"""manage.py run_delayq: what it refuses, what it says, how it ends. Whole processes are in
tests/acceptance."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from datetime import datetime
from io import StringIO
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.core.management.base import CommandParser

from django_delayq.core.conf import get_settings
from django_delayq.core.exceptions import OutcomeUnknown
from django_delayq.management.commands import run_delayq as module
from django_delayq.management.commands.run_delayq import Command
from django_delayq.store.store import RedisStore
from django_delayq.worker.process.runner import ExitCode
from django_delayq.worker.process.startup import port_here
from tests.app.tasks import close_order, record, seen
from tests.servers import Server
from tests.test_checks import configured
from tests.undeclared import leave

pytestmark = pytest.mark.usefixtures("quiet")
LONG_AGO = "2001-09-09T00:00:00+00:00"


def refused(*args: str, **options: Any) -> CommandError:
    with pytest.raises(CommandError) as caught:
        call_command(
            "run_delayq",
            *args,
            stdout=StringIO(),
            stderr=options.pop("stderr", StringIO()),
            **options,
        )
    return caught.value


def parse(*args: str) -> Any:
    parser: CommandParser = Command().create_parser("manage.py", "run_delayq")
    return parser.parse_args(list(args))


# Refused


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--topics", "ordres"], "--topics: 'ordres' is not declared. Known:"),
        (["--topics", "orders:0"], "a weight is a whole number from 1 to 100"),
        (["--topics=-nothing"], "'nothing' is not declared"),
        (["--embedded"], "--embedded is for development (DEBUG = True)"),
        (["--archiver", "--no-archiver"], "--archiver and --no-archiver contradict each other"),
    ],
)
def test_wrong_option_ends_with_2(delayq: RedisStore, args: list[str], words: str) -> None:
    error = refused(*args)
    assert error.returncode == ExitCode.CONFIGURATION == 2
    assert words in str(error)


@pytest.mark.parametrize(
    "args",
    [
        ["--concurrency", "0"], ["--concurrency", "x"], ["--concurrency", "1001"], ["--async-concurrency", "-1"],
        ["--processes", "0"], ["--max-messages", "0"], ["--health-port", "65536"], ["--health-port", "x"],
        ["--shutdown-timeout", "soon"], ["--shutdown-timeout", "-1"], ["--shutdown-timeout", "nan"],
        ["--connect-timeout", "inf"], ["--log-format", "xml"], ["--no-such-option"],
    ],
)  # fmt: skip
def test_wrong_value_is_refused_before_anything_else(args: list[str]) -> None:
    assert "Error: " in str(refused(*args))


@pytest.mark.parametrize(
    ("delayq_settings", "words"),
    [
        ({}, 'DELAYQ["REDIS"] is missing'),
        ({"REDSI": "x"}, "no option REDSI"),
        ({"REDIS": "x"}, "nor an entry of CACHES"),
    ],
)
def test_wrong_settings_end_with_2(settings: Any, delayq_settings: Any, words: str) -> None:
    settings.DELAYQ = delayq_settings
    error = refused()
    assert error.returncode == 2
    assert words in str(error)


def test_absent_redis_ends_with_3(settings: Any) -> None:
    settings.DELAYQ = {"REDIS": "redis://:secret@127.0.0.1:1/0"}
    err = StringIO()
    error = refused("--connect-timeout", "0.05", stderr=err)
    assert error.returncode == ExitCode.UNREACHABLE == 3
    assert "Cannot reach Redis at redis://:***@127.0.0.1:1/0" in err.getvalue()
    assert "--embedded" in err.getvalue()


@pytest.mark.django_db
def test_other_errors_end_with_1(delayq: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise OutcomeUnknown

    monkeypatch.setattr(module.startup, "banner", fail)
    assert refused().returncode == ExitCode.ERROR == 1


def test_server_that_evicts_ends_with_2(delayq: RedisStore, server: Server) -> None:
    err = StringIO()
    with configured(server, maxmemory="900mb", maxmemory_policy="allkeys-lru"):
        error = refused("--burst", stderr=err)
    assert error.returncode == 2
    assert "delayq.E011: Redis' maxmemory-policy is allkeys-lru" in err.getvalue()
    assert "CONFIG SET maxmemory-policy noeviction" in err.getvalue()


# Working


def test_burst_runs_what_is_due_and_says_what_it_is(run_delayq: Any) -> None:
    record.using(due_at=datetime.fromisoformat(LONG_AGO)).enqueue("x")
    out, err = run_delayq("--burst", "--no-reload")
    assert seen == ["x"]
    assert out.startswith("django-delayq 0.1.0 · Django ")
    assert "noeviction ✓ · AOF off" in out
    assert "0 waiting · 1 due · 0 running" in out
    assert "Ctrl-C finishes running tasks (max 25 s); twice stops now." in out
    assert "delayq.W012" in err


def test_topics_and_weights_reach_the_worker(
    run_delayq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(
        module, "run", lambda worker, *args, **kwargs: made.append((worker, args, kwargs)) or 0
    )
    run_delayq(
        "--topics",
        "orders:3,crowd",
        "--concurrency",
        "5",
        "--shutdown-timeout",
        "7",
        "--health-port",
        "0",
    )
    ((worker, args, kwargs),) = made
    assert worker.options.topics == ("orders", "crowd")
    assert (worker.options.concurrency, worker.options.shutdown_timeout) == (5, 7.0)
    assert worker.shared.settings.topics["orders"].weight == 3
    assert "orders" not in get_settings().topics
    assert (args, kwargs) == ((("127.0.0.1", 0),), {"reload": False})


@pytest.mark.parametrize(
    ("debug", "args", "reload"),
    [
        (True, [], True),
        (False, [], False),
        (True, ["--no-reload"], False),
        (False, ["--reload"], True),
        (True, ["--burst"], False),
    ],
)
def test_reload_is_the_default_in_debug(
    run_delayq: Any,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    debug: bool,
    *,
    args: list[str],
    reload: bool,
) -> None:
    settings.DEBUG = debug
    asked: list[bool] = []
    monkeypatch.setattr(module, "run", lambda worker, port, reload: asked.append(reload) or 0)
    run_delayq(*args)
    assert asked == [reload]


def test_several_processes_have_a_supervisor(
    run_delayq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Recorded:
        def __init__(self, count: int, run_worker: Callable[[int], int], finite: bool) -> None:
            asked.extend((count, finite))
            self.run = lambda: run_worker(1)

    monkeypatch.setattr(module, "Supervisor", Recorded)
    monkeypatch.setattr(module, "run", lambda worker, port, **options: asked.append(port) or 0)
    run_delayq("--processes", "3", "--health-port", "9000")
    assert asked == [3, False, ("127.0.0.1", 9001)]
    run_delayq("--processes", "2", "--max-messages", "5")
    assert asked[3:5] == [2, True]


def test_one_port_has_the_metrics_of_all_processes(
    run_delayq: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Recorded:
        def __init__(self, count: int, run_worker: Callable[[int], int], finite: bool) -> None:
            self.run = lambda: run_worker(0) or run_worker(1)

    monkeypatch.setattr(module, "Supervisor", Recorded)
    monkeypatch.setattr(
        module,
        "run",
        lambda worker, port, **options: (
            asked.append("metrics" in options and options["metrics"]) or 0
        ),
    )
    settings.DELAYQ = {**settings.DELAYQ, "METRICS": True}
    run_delayq("--processes", "2", "--health-port", "9000")
    run_delayq("--processes", "2")
    first, second, *without_port = asked
    assert first is not None and second is None
    assert without_port == [False, False]


def test_exit_code_of_the_worker_is_that_of_the_command(
    run_delayq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "run", lambda *args, **kwargs: ExitCode.ABANDONED)
    with pytest.raises(SystemExit) as caught:
        run_delayq()
    assert caught.value.code == 4


def test_only_chosen_topics_are_served(run_delayq: Any) -> None:
    close_order.using(due_at=datetime.fromisoformat(LONG_AGO)).enqueue(5)
    run_delayq("--burst", "--topics=-orders")
    assert seen == []
    run_delayq("--burst", "--topics", "orders")
    assert seen == [(5, "unpaid")]


# Options


def test_defaults() -> None:
    options = parse()
    assert (options.topics, options.concurrency, options.processes, options.burst) == (
        "all",
        8,
        1,
        False,
    )
    assert (options.shutdown_timeout, options.connect_timeout, options.health_port) == (
        25,
        30,
        None,
    )
    assert (options.reload, options.embedded, options.max_messages) == (None, False, None)


@pytest.mark.parametrize(("before", "after"), [(700, 5_000), (100_000, 100_000), (0, 0)])
def test_garbage_collector_is_never_busier_than_the_project_wants(before: int, after: int) -> None:
    defaults = gc.get_threshold()
    try:
        gc.set_threshold(before, 11, 12)
        module._look_less_often()
        assert gc.get_threshold() == (after, 11, 12)
    finally:
        gc.set_threshold(*defaults)


def test_environment_gives_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAYQ_CONCURRENCY", "3")
    monkeypatch.setenv("DELAYQ_SHUTDOWN_TIMEOUT", "9.5")
    monkeypatch.setenv("DELAYQ_TOPICS", "orders")
    options = parse("--topics", "mail")
    assert (options.concurrency, options.shutdown_timeout, options.topics) == (3, 9.5, "mail")


def test_wrong_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAYQ_CONCURRENCY", "many")
    assert "--concurrency" in str(refused())


def test_help_names_the_exit_codes() -> None:
    assert "0 drained, 1 error, 2 configuration, 3 no Redis, 4 tasks abandoned, 6 stuck" in str(
        Command.__doc__
    )


@pytest.mark.django_db
def test_embedded_server_lives_as_long_as_the_command(
    settings: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DEBUG = True
    settings.DELAYQ = {}
    monkeypatch.chdir(tmp_path)
    seen_urls: list[str] = []
    monkeypatch.setattr(
        module, "run", lambda worker, *args, **kwargs: seen_urls.append(get_settings().redis) or 0
    )
    call_command("run_delayq", "--embedded", stdout=(said := StringIO()), stderr=StringIO())
    assert seen_urls[0].startswith("unix://")
    assert "DELAYQ['REDIS'] = 'redis://127.0.0.1:6379/0'" in said.getvalue()
    assert (tmp_path / ".delayq").is_dir()
    assert get_settings().redis == ""


@pytest.mark.django_db
@pytest.mark.parametrize("by", ["url", "cache"])
def test_embedded_server_is_found_by_all_processes_of_the_project(
    settings: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        url = f"redis://127.0.0.1:{port}/0"
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
        settings.CACHES = {**settings.CACHES, "queue": cache}
        settings.DEBUG, settings.DELAYQ = True, {"REDIS": url if by == "url" else "queue"}
        monkeypatch.chdir(tmp_path)
        assert "somebody listens on port" in str(refused("--embedded"))
    answers: list[bool] = []

    def run(worker: object, *args: object, **kwargs: object) -> int:
        with redis.Redis(port=port) as client:  # as another process would
            answers.append(client.ping())
        return 0

    monkeypatch.setattr(module, "run", run)
    call_command("run_delayq", "--embedded", stdout=(said := StringIO()), stderr=StringIO())
    assert answers == [True]
    assert f"embedded server on 127.0.0.1:{port}, where DELAYQ['REDIS'] points" in said.getvalue()


@pytest.mark.parametrize(
    "where",
    [
        "",
        "default",
        "rediss://127.0.0.1:1/0",
        "redis://:secret@127.0.0.1:1/0",
        "redis://elsewhere:1/0",
    ],
)
def test_embedded_server_takes_no_place_that_is_not_of_this_machine(where: str) -> None:
    assert port_here(where) is None


# Topics that it does not serve


def test_a_worker_that_starts_says_what_it_will_not_serve(run_delayq: Any) -> None:
    leave("jobs", 1)
    close_order.using(delay=600).enqueue(1)
    out, _ = run_delayq(burst=True, topics="default")
    assert (
        "  unserved  jobs: 1 waiting, 0 of them due; no worker serves it and no code here declares "
        "it\n" in out
    )
    assert "  unserved  orders: 1 waiting, 0 of them due; no worker serves it\n" in out
    out, _ = run_delayq(burst=True)
    assert "unserved  orders" not in out
    assert "unserved  jobs" in out
