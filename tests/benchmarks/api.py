"""Enqueue over HTTP: batches of 500 lines, and single calls beside a bare view, by turns on one server.

Both sides get the same POST with the same headers and the same 100 bytes of JSON, from the same
clients, through the same gunicorn and the middleware of startproject. The bare view reads nothing,
asks nobody and answers `{}`. Ours finds the caller by the token, checks its rights and its topic,
reads and checks the JSON, stores the message in Redis, waits for Redis' answer and tells the id.
`ratio` is calls a second, ours to bare, in the median of the turns. `cpu_ratio` is the same by the
time of the processors that web server and Redis take for a call: it stands also where other work
holds up whoever waits for Redis.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import psutil

from tests.benchmarks.common import MEMORY, bench_server, cpu_seconds, median, options, report

SECONDS = 3.0
CLIENTS = 16
BATCH = 500
BODY = json.dumps({"task": "letter", "kwargs": {"order": 12345, "note": "x" * 60}}).encode()


def request(path: str, body: bytes, kind: str, token: str) -> bytes:
    """One request as it goes over the wire."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def calls_until(port: int, raw: bytes, until: float) -> int:
    """How many calls one client has made by then. It connects again when the server hangs up."""
    count = 0
    while time.monotonic() < until:
        received = b""
        with closing(socket.create_connection(("127.0.0.1", port))) as connection:
            while time.monotonic() < until:
                connection.sendall(raw)
                while b"\r\n\r\n" not in received:
                    received += connection.recv(65536)
                head, _, received = received.partition(b"\r\n\r\n")
                assert head[9:11] == b"20", head
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                while len(received) < length:
                    received += connection.recv(65536)
                received = received[length:]
                count += 1
                if b"connection: close" in head.lower():
                    break
    return count


def rate(port: int, raw: bytes, seconds: float) -> float:
    """Calls in a second, by several clients."""
    begun = time.monotonic()
    with multiprocessing.get_context("fork").Pool(CLIENTS) as pool:
        counts = pool.starmap(calls_until, [(port, raw, begun + seconds)] * CLIENTS)
        return sum(counts) / (time.monotonic() - begun)


@contextmanager
def web_server(port: int) -> Iterator[psutil.Process]:
    """gunicorn, with as many processes as it advises."""
    workers = 2 * (os.cpu_count() or 1) + 1
    command = ["gunicorn", f"--workers={workers}", f"--bind=127.0.0.1:{port}", "--preload"]
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "--log-level=error", "tests.benchmarks.wsgi"]
    )
    try:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def main(arguments: Sequence[str]) -> None:
    """By turns: batches, single calls, the view that does nothing."""
    known = options(arguments, runs=5)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        os.environ["DELAYQ_BENCH_SQLITE"] = str(Path(folder) / "db.sqlite3")
        with bench_server() as server:
            token, port = prepare()
            single = request("/api/topics/letters/messages", BODY, "application/json", token)
            lines = b"\n".join([BODY] * BATCH)
            batch = request(
                "/api/topics/letters/messages/batch", lines, "application/x-ndjson", token
            )
            bare = request("/bare/", BODY, "application/json", token)
            rates: dict[str, list[float]] = {"batch": [], "single": [], "bare": []}
            cpu: dict[str, list[float]] = {case: [] for case in rates}
            seconds = max(0.3, SECONDS * known.scale)
            with web_server(port) as gunicorn, closing(server.client()) as redis:
                busy = [gunicorn, *(psutil.Process(node.pid) for node in server.primaries)]
                for raw in (bare, single, batch):
                    rate(port, raw, 0.5)
                for _ in range(known.runs):
                    for case, raw in (("bare", bare), ("single", single), ("batch", batch)):
                        before = sum(map(cpu_seconds, busy))
                        rates[case].append(rate(port, raw, seconds))
                        used = sum(map(cpu_seconds, busy)) - before
                        cpu[case].append(used / max(1.0, rates[case][-1] * seconds))
                        redis.flushdb()
    middle = {case: median(values) for case, values in rates.items()}
    report("api", middle["batch"] * BATCH, "messages/s", case=f"batches of {BATCH}")
    share = [ours / bare for ours, bare in zip(rates["single"], rates["bare"], strict=True)]
    cpu_share = [bare / ours for ours, bare in zip(cpu["single"], cpu["bare"], strict=True)]
    report(
        "api",
        middle["single"],
        "calls/s",
        case="single calls",
        bare_view=middle["bare"],
        ratio=median(share),
        cpu_ratio=median(cpu_share),
    )


def prepare() -> tuple[str, int]:
    """The tables, a token, and a free port."""
    from django.core.management import call_command

    from django_delayq.management.cli import ShellUser
    from django_delayq.operators.api_tokens import TokenOptions, create_token

    call_command("migrate", verbosity=0)
    _, token = create_token(ShellUser("bench"), TokenOptions(name="bench", rights=["send"]))
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        return token, int(free.getsockname()[1])


if __name__ == "__main__":
    main(sys.argv[1:])
