"""Faults between a client and its server, at the lowest level that redis-py has: one connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import redis
from redis.connection import AbstractConnection


@contextmanager
def lost_answers(times: int = 1) -> Iterator[list[str]]:
    """The server executes the next scripts, but the connections break before their answers come."""
    asked: set[int] = set()
    lost: list[str] = []
    send, read = AbstractConnection.send_packed_command, AbstractConnection.read_response

    def send_packed_command(self: Any, command: Any, *args: Any, **kwargs: Any) -> Any:
        text = command if isinstance(command, bytes) else b"".join(command)
        if b"EVAL" in text[:30]:
            asked.add(id(self))
        return send(self, command, *args, **kwargs)

    def read_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = read(
            self, *args, **kwargs
        )  # NOSCRIPT is raised here: nothing was executed, nothing is lost
        if id(self) in asked and len(lost) < times:
            asked.discard(id(self))
            lost.append(repr(answer))
            raise redis.ConnectionError("Connection closed by server.")
        return answer

    with mock.patch.multiple(
        AbstractConnection, send_packed_command=send_packed_command, read_response=read_response
    ):
        yield lost


def scripts_run(store: Any) -> int:
    """How many script calls the server has executed so far."""
    stats = store.client.redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))


def commands_run(store: Any) -> int:
    """How many commands the server has executed so far, those of scripts too."""
    stats = store.client.redis.info("commandstats")
    return sum(each["calls"] for name, each in stats.items() if name != "cmdstat_info")


@contextmanager
def unreachable(on_try: Callable[[], Any] = lambda: None) -> Iterator[None]:
    """Nothing is sent: Redis is not there. Calls `on_try` at each try."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        on_try()
        raise redis.ConnectionError("Error 111 connecting to 127.0.0.1:6379. Connection refused.")

    with mock.patch.object(AbstractConnection, "send_packed_command", refuse):
        yield
