"""The API behind a real web server, with a Redis, a database and an archiver of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.acceptance.harness import free_port
from tests.servers import binary_of, launcher


class Served:
    """A running API."""

    def __init__(self, port: int, token: str, environment: dict[str, str]) -> None:
        self.port, self.token, self.environment = port, token, environment
        self.url = f"http://127.0.0.1:{port}/delayq/api"

    def call(self, address: str, body: Any = None) -> Any:
        """The answer of a call: a POST when there is a body."""
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        kind = "application/x-ndjson" if address.endswith("/batch") else "application/json"
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        request = urllib.request.Request(f"{self.url}{address}", raw, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def manage(self, *command: str) -> str:
        """The output of a management command."""
        return subprocess.run(
            [sys.executable, "-m", "django", *command],
            env=self.environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout


@contextmanager
def serving(folder: Path, *, archiver: bool = False) -> Iterator[Served]:
    """A served API whose token may do everything."""
    with ExitStack() as stack:
        redis = stack.enter_context(launcher("redis7" if binary_of("redis7") else "valkey"))
        environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "tests.integrations.api.settings",
            "DELAYQ_API_SQLITE": str(folder / "db.sqlite3"),
            "DELAYQ_API_REDIS": redis.url,
        }
        served = Served(free_port(), "", environment)
        served.manage("migrate", "-v", "0")
        rights = "send,consume,inspect,operate"
        made = served.manage("delayq", "token", "create", "fuzz", "--rights", rights, "--json")
        served.token = json.loads(made)["token"]
        web = ["gunicorn", "--workers=2", "--threads=16", f"--bind=127.0.0.1:{served.port}"]
        # A long address comes to the API. By default gunicorn refuses it, with a page of its own.
        web.append("--limit-request-line=0")
        commands = [[*web, "--log-level=error", "tests.integrations.api.wsgi"]]
        if archiver:
            commands.append(["django", "run_delayq", "--archiver", "-v", "0"])
        for command in commands:
            process = subprocess.Popen([sys.executable, "-m", *command], env=environment)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
        _wait_until_it_answers(served)
        yield served


def _wait_until_it_answers(served: Served) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            served.call("/health")
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("the web server did not begin")
