"""signed_post.py: what counts as an answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from django_delayq.core.signed_post import PostFailed, post


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], str]]:
    """Starts a server that answers one request by these bytes, and keeps the connection open."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted: list[socket.socket] = []

        def start(answer: bytes) -> str:
            def serve() -> None:
                connection, _ = server.accept()
                accepted.append(connection)
                connection.recv(65_536)
                connection.sendall(answer)

            threading.Thread(target=serve, daemon=True).start()
            return f"http://127.0.0.1:{server.getsockname()[1]}/"

        yield start
        for connection in accepted:
            connection.close()


def test_the_status_is_the_answer_though_its_body_never_comes(
    answering: Callable[[bytes], str],
) -> None:
    post(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"), b"{}", "shh", 0.3)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 2", b"SSH-2.0\r\n"])
def test_without_a_status_it_has_failed(answering: Callable[[bytes], str], answer: bytes) -> None:
    with pytest.raises(PostFailed, match="not reached") as failed:
        post(answering(answer), b"{}", "shh", 0.3)
    assert failed.value.status is None
