"""Other sides that messages are forwarded to."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from django_delayq.client.decorator import BatchTask
from django_delayq.integrations.forward import forwarded_task
from django_delayq.tasks import registry

RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


@pytest.fixture
def forwarded() -> Iterator[Callable[..., BatchTask[[Any], None]]]:
    """Declares a task that forwards to a target; it is forgotten after the test."""
    before = dict(registry.by_name), dict(registry.by_code)

    def declare(target: Any, **options: Any) -> BatchTask[[Any], None]:
        name = f"tests.forward.{secrets.token_hex(4)}"
        return forwarded_task(name, target, topic="forwards", **options)

    yield declare
    for mine, kept in zip((registry.by_name, registry.by_code), before, strict=True):
        for name in set(mine) - set(kept):
            del mine[name]


class Hook(ThreadingHTTPServer):
    """Takes posts, and answers what it is told to."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.status, self.posts = 200, list[tuple[Any, bytes]]()
        self.url = f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append((self.headers, body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Nothing on the screen."""


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as hook:
        threading.Thread(target=hook.serve_forever, daemon=True).start()
        yield hook
        hook.shutdown()


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


class Rabbit:
    """A RabbitMQ of its own, which can be stopped and started with its data."""

    def __init__(self, folder: str) -> None:
        self.port = free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"
        self._epmd_port = str(free_port())
        self._environment = {
            **os.environ,
            "HOME": folder,
            "RABBITMQ_NODENAME": f"delayq{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_CONFIG_FILE": f"{folder}/none",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": self._epmd_port,
        }
        self._epmd = subprocess.Popen(
            ["epmd", "-port", self._epmd_port, "-address", "127.0.0.1"], env=self._environment
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [str(RABBITMQ)],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert time.monotonic() < until, "RabbitMQ has not started"
                time.sleep(0.2)
            else:
                return

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def end(self) -> None:
        self.stop()
        self._epmd.terminate()
        self._epmd.wait(10)


@pytest.fixture(scope="session")
def rabbit() -> Iterator[Rabbit]:
    if not RABBITMQ.exists() or not shutil.which("epmd"):
        if os.environ.get("CI") == "true":
            pytest.fail("RabbitMQ is missing (apt-get install rabbitmq-server)")
        pytest.skip("RabbitMQ is not installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rabbit = Rabbit(folder)
        try:
            rabbit.start()
            yield rabbit
        finally:
            rabbit.end()
