"""The text that stands for a lease in the HTTP API: opaque, bound to one message and one caller."""

from __future__ import annotations

import hashlib
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from hmac import compare_digest
from typing import NamedTuple

from django.conf import settings

from ...store.keys import Partition

#: Partition, Redis' time of the claim (ms), message id, token of the claim; then the topic.
_FIELDS = struct.Struct(">HQ16s16s")
_SIGNATURE = 16


class HeldMessage(NamedTuple):
    """The lease that a token names."""

    partition: Partition
    message_id: bytes
    token: bytes
    claimed_ms: int


def lease_token_of(held: HeldMessage, caller: int) -> str:
    """The token, for this caller only."""
    fields = _FIELDS.pack(held.partition.number, held.claimed_ms, held.message_id, held.token)
    content = fields + held.partition.topic.encode()
    signed = _signature(settings.SECRET_KEY, caller, content) + content
    return urlsafe_b64encode(signed).rstrip(b"=").decode()


def read_lease_token(text: str, caller: int) -> HeldMessage | None:
    """The lease that the token names. None: this caller never got it."""
    try:
        signed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    signature, content = signed[:_SIGNATURE], signed[_SIGNATURE:]
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    if not any(
        compare_digest(signature, _signature(key, caller, content)) for key in map(str, keys)
    ):
        return None
    number, claimed_ms, message_id, token = _FIELDS.unpack_from(content)
    topic = content[_FIELDS.size :].decode()
    return HeldMessage(Partition(topic, number), message_id, token, claimed_ms)


def _signature(secret: str, caller: int, content: bytes) -> bytes:
    signed = caller.to_bytes(8, "big") + content
    return hashlib.blake2b(signed, key=_key(secret), digest_size=_SIGNATURE).digest()


@lru_cache(maxsize=8)
def _key(secret: str) -> bytes:
    return hashlib.sha256(b"django_delayq.api.lease" + str(secret).encode()).digest()
