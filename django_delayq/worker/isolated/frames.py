"""What a worker and its child processes tell each other over a socket. No pickle."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from ...core.task_report import TaskProgress

_LENGTH = struct.Struct(">I")
_CHUNK = 65_536


class Frame(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Base of all."""


# To the child


class Setup(Frame, frozen=True):
    """The first one."""

    worker: str
    """Name of the worker, for the archive."""
    argv: list[str]
    """sys.argv of the worker: settings may look at it."""
    redis: str
    prefix: str
    """Where the worker's queue is. Differs from the settings of the child with --embedded."""


class Run(Frame, frozen=True):
    """Run this message."""

    topic: str
    partition: int
    id: bytes
    record: bytes
    entry: bytes
    module: str
    """The module that declares the task. The worker has imported it too."""


class LeaseEnded(Frame, frozen=True):
    """Another worker may run the message."""


# From the child


class Ready(Frame, frozen=True):
    """It has loaded the project and waits for a message."""


class Begun(Frame, frozen=True):
    """It has taken the message. Before this, another child may run it."""


class Progressed(Frame, frozen=True):
    """The task has called progress()."""

    progress: TaskProgress


class Extended(Frame, frozen=True):
    """The task has called extend()."""

    seconds: float


class Ended(Frame, frozen=True):
    """How the run has ended: fields of an Outcome, and of a TaskReport."""

    result: str
    """`released`: it was not run, and `reason` says why."""
    reason: str = ""
    error_class: str = ""
    error_message: str = ""
    traceback: str = ""
    delay_ms: int | None = None
    value: bytes | None = None
    """What the task returned, as JSON, if it keeps its result."""


AnyFrame = Setup | Run | LeaseEnded | Ready | Begun | Progressed | Extended | Ended
_encode = msgspec.msgpack.Encoder().encode
_decode: Any = msgspec.msgpack.Decoder(AnyFrame).decode


def send(channel: socket.socket, frame: Frame) -> None:
    """Write a frame. Raises OSError when the other side is gone."""
    payload = _encode(frame)
    channel.sendall(_LENGTH.pack(len(payload)) + payload)


class FrameReader:
    """Cuts the bytes of a socket into frames."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._bytes = bytearray()

    def read(self) -> Sequence[Frame] | None:
        """The frames that have become whole by one read of the socket, which may wait. None at its
        end."""
        try:
            chunk = self._channel.recv(_CHUNK)
        except ConnectionError:
            return None
        if not chunk:
            return None
        self._bytes += chunk
        frames: list[Frame] = []
        while len(self._bytes) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
            if len(self._bytes) < end:
                break
            frames.append(_decode(bytes(self._bytes[_LENGTH.size : end])))
            del self._bytes[:end]
        return frames
