"""Queues on real servers with AOF, and a table of the figures that the tests saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.clocks import build_shim
from tests.acceptance.harness import Figure, Queue, running
from tests.servers import Server

_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def aof_server(server_kind: str) -> Iterator[Server]:
    """For the tests that do it no harm."""
    with running(server_kind) as server:
        yield server


@pytest.fixture
def own_server(server_kind: str) -> Iterator[Callable[..., Server]]:
    """Starts a server that the test may kill."""
    with ExitStack() as stack:
        yield lambda **config: stack.enter_context(running(server_kind, **config))


@pytest.fixture
def queue(aof_server: Server, tmp_path: Path) -> Iterator[Queue]:
    """A queue with the usual settings."""
    with Queue(aof_server.url, tmp_path) as queue:
        yield queue


@pytest.fixture
def queue_on(tmp_path: Path) -> Iterator[Callable[..., Queue]]:
    """Makes a queue on a server of the test, with settings of its own, or with a database."""
    with ExitStack() as stack:
        yield lambda server, **options: stack.enter_context(Queue(server.url, tmp_path, **options))


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that bends the clock."""
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """Keeps a line for the table at the end."""
    figures = request.config.stash.setdefault(_FIGURES, [])
    return lambda text: figures.append(f"{request.node.name}: {text}")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The table."""
    figures = config.stash.get(_FIGURES, [])
    if figures:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.write_line(line)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """What the workers said belongs to the report of a test that failed."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        for queue in Queue.opened:
            for worker in queue.workers:
                report.sections.append((f"worker {worker.pid}", worker.output[-4000:]))
