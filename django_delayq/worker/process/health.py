"""Answers health probes over HTTP."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from typing import Any, NamedTuple

from ...core.exceptions import ConfigurationError

logger = logging.getLogger("delayq.worker")

#: The text format of Prometheus.
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Address(NamedTuple):
    """Where the health port listens."""

    host: str
    port: int
    """0: any that is free."""


@contextmanager
def probes(
    address: Address,
    healthy: Callable[[], bool],
    ready: Callable[[], bool],
    figures: Callable[[], Any],
    metrics: Callable[[], bytes] | None = None,
) -> Iterator[int]:
    """Answers probes on a port, whose number it gives. /healthz: the process is able to work.
    /readyz: it claims messages. Bodies are JSON figures. /metrics: for Prometheus, where there are
    metrics.

    Raises ConfigurationError when the port cannot be used.
    """
    checks = {"/healthz": healthy, "/readyz": ready}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics" and metrics is not None:
                try:
                    body = metrics()
                except Exception:  # of a collector of the project, for example
                    logger.exception("the metrics cannot be read")
                    return self._answer(500, METRICS_TYPE, b"")
                return self._answer(200, METRICS_TYPE, body)
            check = checks.get(path)
            status = 404 if check is None else 200 if check() else 503
            body = json.dumps({} if check is None else figures()).encode()
            return self._answer(status, "application/json", body)

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class' name
            """Probes come every few seconds and are not worth a line."""

    class Server(ThreadingHTTPServer):
        address_family = AF_INET6 if ":" in address.host else AF_INET

    try:
        server = Server(address, Handler)
    except OSError as error:
        raise ConfigurationError(
            f"--health-port {address.port} cannot be used on --health-host {address.host}: "
            f"{error.strerror}."
        ) from error
    threading.Thread(
        target=server.serve_forever, args=(0.1,), name="delayq-health", daemon=True
    ).start()
    paths = "/healthz /readyz" if metrics is None else "/healthz /readyz /metrics"
    logger.info("health probes on %s port %d: %s", address.host, server.server_port, paths)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
