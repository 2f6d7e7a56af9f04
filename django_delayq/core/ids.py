"""Ids: of messages, with and without a key, and of tasks."""

from __future__ import annotations

import hashlib
import os
import time
import uuid

from .exceptions import InvalidMessage


def task_code(name: str) -> bytes:
    """Four bytes that stand for the task's name in records."""
    return hashlib.blake2b(name.encode(), digest_size=4).digest()


def new_ids(count: int) -> list[bytes]:
    """Fresh UUIDv7 (RFC 9562): they sort by time. One read of the kernel's randomness for all:
    quick and fork-safe."""
    noise = os.urandom(10 * count)
    stamp = int(time.time() * 1000).to_bytes(6, "big")
    return [
        stamp
        + bytes((0x70 | noise[at] & 0x0F, noise[at + 1], 0x80 | noise[at + 2] & 0x3F))
        + noise[at + 3 : at + 10]
        for at in range(0, 10 * count, 10)
    ]


def new_id() -> bytes:
    """One fresh UUIDv7."""
    noise = os.urandom(10)
    stamp = int(time.time() * 1000).to_bytes(6, "big")
    return stamp + bytes((0x70 | noise[0] & 0x0F, noise[1], 0x80 | noise[2] & 0x3F)) + noise[3:]


def key_id(topic: str, key: str) -> bytes:
    """The id of the message with this key, a UUIDv8: finding it costs no index."""
    digest = hashlib.blake2b(f"{topic}\0{key}".encode(), digest_size=16).digest()
    # Not 0x80 itself in the ninth byte: MariaDB takes no UUIDv8 that has it.
    return (
        digest[:6]
        + bytes((0x80 | digest[6] & 0x0F, digest[7], 0x80 | max(1, digest[8] & 0x3F)))
        + digest[9:]
    )


def parse_id(value: str | uuid.UUID | bytes) -> bytes:
    """Sixteen bytes from a UUID or its hexadecimal digits. Raises InvalidMessage.

    Of the variant of RFC 9562, as ours and Python's are: MariaDB takes no other for a UUID.
    """
    if isinstance(value, bytes) and len(value) == 16:
        return value
    try:
        parsed = uuid.UUID(str(value))
    except ValueError:
        raise InvalidMessage(f"{value!r} is not a message id: 32 hexadecimal digits.") from None
    if parsed.variant != uuid.RFC_4122 or (parsed.bytes[6] >= 0x80 and parsed.bytes[8] == 0x80):
        raise InvalidMessage(
            f"{value!r} is not a UUID of RFC 9562: use the id of a handle, or uuid.uuid4()."
        )
    return parsed.bytes
