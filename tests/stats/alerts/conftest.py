"""A webhook that listens, and a function that is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

#: What the function of a rule was told.
notices: list[Any] = []


def remember(notice: Any) -> None:
    """A function of the project."""
    notices.append(notice)


def refuse(notice: Any) -> None:
    """One that fails."""
    raise ValueError("nobody is on call")


class Webhook:
    """An HTTP server that keeps what it is sent, and answers with a status."""

    def __init__(self) -> None:
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.status = 200
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                webhook.posts.append((dict(self.headers), body))
                self.send_response(webhook.status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def contents(self) -> list[dict[str, Any]]:
        """The bodies."""
        return [json.loads(body) for _, body in list(self.posts)]

    def close(self) -> None:
        """End."""
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    webhook = Webhook()
    yield webhook
    webhook.close()
