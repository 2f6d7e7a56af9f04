"""manage.py run_delayq: parses, builds, runs."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings
from django.core.management.base import BaseCommand

from ...archive import exactly_once
from ...checks import check_reports
from ...core import conf
from ...core.conf import get_settings
from ...core.connections import close_before_fork
from ...core.exceptions import ConfigurationError, DelayQError
from ...outbox import relay
from ...stats.unserved import unserved_topics
from ...store import get_store
from ...worker.process import startup
from ...worker.process.console import configure_logging
from ...worker.process.health import Address
from ...worker.process.runner import ExitCode, make_sure_to_end, run, run_services, start_anew
from ...worker.process.supervisor import STOP_SIGNALS, Supervisor
from ...worker.thread_grower import MOST_THREADS
from ...worker.worker import Worker, WorkerOptions
from ..cli import failure, whole
from ..sql_services import check_tables, sql_services

if TYPE_CHECKING:
    from ...integrations.prometheus import WorkerMetrics

logger = logging.getLogger("delayq.worker")

#: New objects until the garbage collector looks at those: 700 by default, a seventh of what the
#: messages of one claim make. At each look they are still needed. It took 5 % of the worker's time
#: for a message of a batch.
YOUNG_OBJECTS = 5_000


class Command(BaseCommand):
    """The worker.

    Exit codes: 0 drained, 1 error, 2 configuration, 3 no Redis, 4 tasks abandoned, 6 stuck.
    """

    help = "Runs messages when they are due. Ctrl-C finishes running tasks; twice stops at once."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Each option has an environment variable: DELAYQ_TOPICS for --topics and so on."""

        def add(name: str, default: Any, kind: Any, text: str) -> None:
            parser.add_argument(
                f"--{name}",
                default=os.environ.get(f"DELAYQ_{name.upper().replace('-', '_')}", default),
                type=kind,
                help=f"{text} (default: {default})",
            )

        add(
            "topics",
            "all",
            str,
            "topics to serve: all, or a,b or a:3,b:1 with weights, or --topics=-a for all but a",
        )
        add(
            "concurrency",
            WorkerOptions.concurrency,
            _threads,
            f"threads for def tasks; auto: {WorkerOptions.concurrency}, and up to {MOST_THREADS} "
            "while all are busy and wait",
        )
        add("async-concurrency", 100, whole(1, 100_000), "coroutines of async def tasks at a time")
        add("processes", 1, whole(1, 256), "worker processes")
        add("shutdown-timeout", 25, _seconds, "seconds that running tasks get at the end")
        add("connect-timeout", 30, _seconds, "seconds to wait for Redis at the start")
        add("max-messages", None, whole(1, 10**12), "each process stops after this many messages")
        add(
            "health-port",
            None,
            whole(0, 65535),
            "port of /healthz, /readyz and /metrics; each further process takes the next port, "
            "without /metrics: the first one answers for all",
        )
        add(
            "health-host",
            "127.0.0.1",
            str,
            "address that the health port listens on; 0.0.0.0 or :: for probes from outside",
        )
        add("log-format", "auto", _log_format, "auto, pretty, logfmt or json")
        parser.add_argument("--burst", action="store_true", help="stop when no message is due")
        parser.add_argument(
            "--archiver",
            action="store_true",
            help="run only the services that need the database, and no tasks",
        )
        parser.add_argument(
            "--no-archiver", action="store_true", help="leave these services to another process"
        )
        parser.add_argument(
            "--embedded",
            action="store_true",
            help="start a Redis server for this command (DEBUG only)",
        )
        parser.add_argument(
            "--reload",
            action="store_true",
            default=None,
            help="start again when code changes (default with DEBUG)",
        )
        parser.add_argument(
            "--no-reload",
            action="store_false",
            dest="reload",
            help="do not start again when code changes (default without DEBUG)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Check that everything is there, say so, and work."""
        configure_logging(options["log_format"], options["verbosity"])
        begun = time.monotonic()
        try:
            with _embedded(options["embedded"], _sayer(options["log_format"], self.stdout)):
                code = self._work(options, begun)
        except DelayQError as error:
            raise failure(error) from error
        if code == ExitCode.START_ANEW:
            start_anew()
        if getattr(self, "_called_from_command_line", False):  # and not in somebody's tests
            make_sure_to_end(code)
        if code:
            sys.exit(code)

    def _work(self, options: dict[str, Any], begun: float) -> int:
        if options["archiver"] and options["no_archiver"]:
            raise ConfigurationError(
                "--archiver and --no-archiver contradict each other: give one of them."
            )
        # All topics of a project may be consumed over HTTP: then it has an archiver only.
        chosen = ((), {}) if options["archiver"] else startup.choose_topics(options["topics"])
        topics, weights = chosen
        settings, store = get_settings(), get_store()
        weighted = {
            name: replace(settings.topics.get(name, conf.TopicSettings()), weight=weight)
            for name, weight in weights.items()
        }
        reports = startup.wait_for_redis(store, options["connect_timeout"], self.stderr.write)
        self._check(reports)
        if not options["no_archiver"]:
            check_tables()
        say = _sayer(options["log_format"], self.stdout)
        startup.banner(store, reports, topics, say)
        serving = () if options["archiver"] else topics
        for topic in unserved_topics(store, serving, outbox=not options["no_archiver"]):
            say(f"  unserved  {topic}")
        is_auto = options["concurrency"] == "auto"
        worker_options = WorkerOptions(
            topics=topics,
            concurrency=WorkerOptions.concurrency if is_auto else options["concurrency"],
            more_threads=is_auto,
            async_concurrency=options["async_concurrency"],
            shutdown_timeout=options["shutdown_timeout"],
            burst=options["burst"],
            max_messages=options["max_messages"],
        )
        metrics = _metrics(options)
        if getattr(self, "_called_from_command_line", False):  # and not in somebody's tests
            # What is loaded stays. Each full collection would look through it, and everything
            # else would wait: 60 ms, also every few scrapes of a thousand topics.
            gc.collect()
            gc.freeze()
            _look_less_often()
        # Whoever reads "Ready" may stop this process: the signal waits until its handler is there.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        say(
            f"Ready in {time.monotonic() - begun:.2f} s. Ctrl-C finishes running tasks "
            f"(max {worker_options.shutdown_timeout:.0f} s); twice stops now."
        )
        self.stdout.flush()
        if options["archiver"]:
            return run_services(
                sql_services(store, f"{socket.gethostname()}:{os.getpid()}"),
                options["burst"],
                _health_address(options),
                metrics.page if metrics else None,
            )
        settings = replace(settings, topics={**settings.topics, **weighted})
        return self._run_workers(options, settings, worker_options, metrics)

    def _run_workers(
        self,
        options: dict[str, Any],
        settings: conf.Settings,
        worker_options: WorkerOptions,
        metrics: WorkerMetrics | None,
    ) -> int:
        count = options["processes"]
        reload = django_settings.DEBUG if options["reload"] is None else options["reload"]

        def make_worker(index: int) -> Worker:
            # One process is enough for SQL, and leaves the others to the tasks.
            hosts_sql = index == 0 and not options["no_archiver"]

            return Worker(
                get_store(),
                settings,
                worker_options,
                perform_once=exactly_once.perform,
                before_claims=relay.before_claims,
                sql_services=lambda worker: (
                    sql_services(worker.shared.store, worker.shared.name, worker)
                    if hosts_sql
                    else ()
                ),
            )

        def work(index: int, reload: bool = False) -> int:
            health_at = _health_address(options, index)
            if metrics is None:
                return run(make_worker(index), health_at, reload=reload)
            with metrics.counting(index):
                # One port answers for all processes.
                page = None if index else metrics.page
                return run(make_worker(index), health_at, reload=reload, metrics=page)

        if count == 1:
            return work(0, reload and not options["burst"])
        close_before_fork()
        # Each process makes its own connections, and a circuit breaker that can open.
        get_store().close()
        get_store.cache_clear()
        finite = options["burst"] or options["max_messages"] is not None
        return Supervisor(count, work, finite).run()

    def _check(self, reports: list[Any]) -> None:
        findings = check_reports(reports, get_settings().wait_replicas)
        for finding in findings:
            self.stderr.write(f"{finding.id}: {finding.msg} {finding.hint or ''}")
        if any(finding.is_serious() for finding in findings):
            raise ConfigurationError(
                "This server would lose messages. Change its configuration as the lines above say."
            )


def _look_less_often() -> None:
    """Where the project has chosen more, or has switched the collector off (0), that stays."""
    young, *others = gc.get_threshold()
    if 0 < young < YOUNG_OBJECTS:
        gc.set_threshold(YOUNG_OBJECTS, *others)


def _threads(text: str) -> int | str:
    return text if text == "auto" else whole(1, 1000)(text)


def _seconds(text: str | float) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (seconds := float(text)) <= 7 * 86_400:
            return seconds
    raise ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 604,800")


def _log_format(text: str) -> str:  # choices= would not check the environment variable
    if text not in ("auto", "pretty", "logfmt", "json"):
        raise ArgumentTypeError(f"{text!r} is not one of auto, pretty, logfmt, json")
    return text


def _sayer(log_format: str, stdout: Any) -> startup.Say:
    """How to write a line for people. With JSON logs it is a log line: a program reads stdout."""
    return (lambda line: logger.info("%s", line.strip())) if log_format == "json" else stdout.write


def _health_address(options: dict[str, Any], index: int = 0) -> Address | None:
    """Where process `index` answers probes; port 0 is any that is free."""
    port = options["health_port"]
    return None if port is None else Address(options["health_host"], port and port + index)


def _metrics(options: dict[str, Any]) -> WorkerMetrics | None:
    """What the health port answers to Prometheus. To be made before the processes."""
    if not get_settings().metrics or options["health_port"] is None:
        return None
    from ...integrations.prometheus import WorkerMetrics

    processes = 0 if options["archiver"] else options["processes"]
    return WorkerMetrics(processes, has_database=not options["no_archiver"])


@contextlib.contextmanager
def _embedded(wanted: bool, say: startup.Say) -> Iterator[None]:
    """Run against a server that lives as long as this command, and keeps its data in .delayq/.

    It listens where DELAYQ["REDIS"] points, if that is a port of this machine: so runserver and
    shell find it too.
    """
    if not wanted:
        yield
        return
    if not django_settings.DEBUG:
        raise ConfigurationError(
            "--embedded is for development (DEBUG = True). In production run a Redis server."
        )
    from django.test.utils import override_settings

    from ...testing.embedded import EmbeddedServer

    port = startup.port_here(django_settings.DELAYQ.get("REDIS", ""))
    with EmbeddedServer(".delayq", port=port) as server:
        if port is not None:
            say(
                f"embedded server on 127.0.0.1:{port}, where DELAYQ['REDIS'] points; data in "
                f"{server.data_dir}"
            )
            yield
            return
        say(
            f"embedded server for this command alone, data in {server.data_dir}. No other process "
            f"finds it, runserver "
            "neither: set DELAYQ['REDIS'] = 'redis://127.0.0.1:6379/0', and it listens there."
        )
        with override_settings(DELAYQ={**django_settings.DELAYQ, "REDIS": server.url}):
            yield
