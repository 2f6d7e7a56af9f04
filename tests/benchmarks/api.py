"""Enqueue over HTTP: batches of 500 lines, and single calls beside a bare view, by turns on one server.

Both sides get the same POST with the same headers and the same 100 bytes of JSON, from the same
clients, through the same gunicorn and the middleware of startproject. The bare view reads nothing,
asks nobody and answers `{}`. Ours finds the caller by the token, checks its rights and its topic,
reads and checks the JSON, stores the message in Redis, waits for Redis' answer and tells the id.
The view by hand does what a project writes without the API: it reads the JSON, calls enqueue() and
answers with the id, and asks nobody who calls.

`ratio` is calls a second, ours to bare, in the median of the turns; `to_by_hand` is ours to the
view by hand. `cpu_ratio` is ours to bare by the time of the processors that web server and Redis
take for a call: it stands also where other work holds up whoever waits for Redis.
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


_FORK = multiprocessing.get_context("fork")
_TOGETHER = _FORK.Barrier(CLIENTS)


def calls_a_second(port: int, raw: bytes, seconds: float) -> float:
    """How many calls one client makes in a second, from when all are ready. It connects again when
    the server hangs up."""
    _TOGETHER.wait(60)
    count, begun = 0, time.monotonic()
    until = begun + seconds
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
    return count / (time.monotonic() - begun)


def rate(port: int, raw: bytes, seconds: float) -> float:
    """Calls in a second, by several clients."""
    with _FORK.Pool(CLIENTS) as pool:
        return sum(pool.starmap(calls_a_second, [(port, raw, seconds)] * CLIENTS, chunksize=1))


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
    """By turns: the bare view, the view by hand, single calls, batches."""
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
            by_hand = request("/by-hand/", BODY, "application/json", token)
            cases = {"bare": bare, "by hand": by_hand, "single": single, "batch": batch}
            rates: dict[str, list[float]] = {case: [] for case in cases}
            cpu: dict[str, list[float]] = {case: [] for case in cases}
            seconds = max(0.3, SECONDS * known.scale)
            with web_server(port) as gunicorn, closing(server.client()) as redis:
                busy = [gunicorn, *(psutil.Process(node.pid) for node in server.primaries)]
                for raw in cases.values():
                    rate(port, raw, 0.5)
                for _ in range(known.runs):
                    for case, raw in cases.items():
                        before = sum(map(cpu_seconds, busy))
                        rates[case].append(rate(port, raw, seconds))
                        used = sum(map(cpu_seconds, busy)) - before
                        cpu[case].append(used / max(1.0, rates[case][-1] * seconds))
                        redis.flushdb()
    middle = {case: median(values) for case, values in rates.items()}
    report("api", middle["batch"] * BATCH, "messages/s", case=f"batches of {BATCH}")

    def share(of: str, to: str, figures: dict[str, list[float]]) -> float:
        pairs = zip(figures[of], figures[to], strict=True)
        return median([one / other for one, other in pairs])

    report(
        "api",
        middle["single"],
        "calls/s",
        case="single calls",
        bare_view=middle["bare"],
        ratio=share("single", "bare", rates),
        cpu_ratio=share("bare", "single", cpu),
        view_by_hand=middle["by hand"],
        to_by_hand=share("single", "by hand", rates),
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
