"""A TCP proxy that stands between a client and its server and fails as networks do."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

Mode = Literal["forward", "drop_reply", "black_hole"]


class Proxy:
    """Forwards every connection to the server of `url`; `self.url` is where clients connect.

    `mode` can be changed at any time, also for connections that are open:

    - `forward`: nothing is lost.
    - `drop_reply`: the server executes the call, and the connection breaks before its answer arrives.
    - `black_hole`: nothing arrives in either direction, and nothing breaks.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.mode: Mode = "forward"
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.url = urlunsplit(parts._replace(netloc=f"127.0.0.1:{self._listener.getsockname()[1]}"))
        self._start(self._accept)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.refuse()
        self.cut()

    def refuse(self) -> None:
        """Accept no further connection: the server is down."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def cut(self) -> None:
        """Break every open connection."""
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            _close(end)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._upstream)
            with self._lock:
                self._open |= {client, server}
            self._start(self._pump, client, server, False)
            self._start(self._pump, server, client, True)

    def _pump(self, source: socket.socket, target: socket.socket, replies: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if replies and self.mode == "drop_reply":
                    break
                if self.mode != "black_hole":
                    target.sendall(data)
        for end in (source, target):
            with self._lock:
                self._open.discard(end)
            _close(end)

    @staticmethod
    def _start(target: object, *args: object) -> None:
        threading.Thread(target=target, args=args, daemon=True).start()  # type: ignore[arg-type]


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
    end.close()
