"""Answers health probes over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ...core.exceptions import ConfigurationError


class Health:
    """/healthz: the process is able to work. /readyz: it claims messages. Bodies are JSON
    figures."""

    def __init__(
        self,
        port: int,
        healthy: Callable[[], bool],
        ready: Callable[[], bool],
        figures: Callable[[], Any],
    ):
        checks = {"/healthz": healthy, "/readyz": ready}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                check = checks.get(self.path.partition("?")[0])
                status = 404 if check is None else 200 if check() else 503
                body = json.dumps({} if check is None else figures()).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class' name
                """Probes come every few seconds and are not worth a line."""

        try:
            self._server = ThreadingHTTPServer(("", port), Handler)
        except OSError as error:
            raise ConfigurationError(
                f"--health-port {port} cannot be used: {error.strerror}."
            ) from error
        self.port = self._server.server_address[1]

    def start(self) -> None:
        """Answer from now on."""
        threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="delayq-health", daemon=True
        ).start()

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
