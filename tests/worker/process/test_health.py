"""The port for probes."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest

from django_delayq.worker.process.health import Address, probes

Answers = dict[str, bool]
ANYWHERE = Address("127.0.0.1", 0)


@pytest.fixture
def answers() -> Answers:
    return {"healthy": True, "ready": True}


@pytest.fixture
def port(answers: Answers) -> Iterator[int]:
    with probes(
        ANYWHERE, lambda: answers["healthy"], lambda: answers["ready"], lambda: {"in_flight": 3}
    ) as port:
        yield port


def get(port: int, path: str) -> tuple[int, object]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/readyz?full=1"])
def test_worker_that_is_well(port: int, path: str) -> None:
    assert get(port, path) == (200, {"in_flight": 3})


def test_worker_that_is_stuck_is_not_healthy(port: int, answers: Answers) -> None:
    answers["healthy"] = False
    assert get(port, "/healthz") == (503, {"in_flight": 3})
    assert get(port, "/readyz")[0] == 200


def test_worker_that_stops_is_not_ready(port: int, answers: Answers) -> None:
    answers["ready"] = False
    assert get(port, "/readyz")[0] == 503
    assert get(port, "/healthz")[0] == 200


def test_other_paths_are_unknown(port: int) -> None:
    assert get(port, "/") == (404, {})


def test_without_metrics_their_path_is_unknown(port: int) -> None:
    assert get(port, "/metrics") == (404, {})


def test_metrics_are_text_for_prometheus() -> None:
    with (
        probes(ANYWHERE, lambda: True, lambda: True, dict, lambda: b"delayq_redis_up 1\n") as port,
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer,
    ):
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert answer.read() == b"delayq_redis_up 1\n"


def test_metrics_that_cannot_be_read_are_logged_and_cost_no_probe(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> bytes:
        raise ValueError("a collector of the project")

    with probes(ANYWHERE, lambda: True, lambda: True, dict, broken) as port:
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)
        error.value.close()
        assert error.value.code == 500
        assert get(port, "/healthz")[0] == 200
    assert "the metrics cannot be read" in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_it_listens_where_it_is_told(host: str) -> None:
    with probes(Address(host, 0), lambda: True, lambda: True, dict) as port:
        reached = []
        for address in ("127.0.0.1", "127.0.0.2", "::1"):
            with suppress(OSError):
                socket.create_connection((address, port), 1).close()
                reached.append(address)
    assert (
        reached
        == {
            "127.0.0.1": ["127.0.0.1"],
            "0.0.0.0": ["127.0.0.1", "127.0.0.2"],
            "::1": ["::1"],
        }[host]
    )


def test_port_is_free_again_after_the_stop() -> None:
    with probes(ANYWHERE, lambda: True, lambda: True, dict) as port:
        pass
    with probes(Address(ANYWHERE.host, port), lambda: True, lambda: True, dict):
        assert get(port, "/healthz")[0] == 200


def test_probes_write_no_lines(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    get(port, "/healthz")
    assert capfd.readouterr() == ("", "")
