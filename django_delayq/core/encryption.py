"""Encrypts the bodies of messages with the keys of DELAYQ["ENCRYPTION_KEYS"]: AES-256-GCM of the
package `cryptography`, which is imported with the first key that is used.

    offset  size  field
    0       1     version of this format, 1
    1       4     key id: first bytes of a hash of the key
    5       12    nonce
    17      ...   ciphertext, then the tag of 16 bytes

The version and the id of the message are the associated data: a body is readable only as that of
its own message. The nonce is a keyed hash of the id and the body. So the same body of the same
message is encrypted to the same bytes: an enqueue that is repeated after an unknown outcome finds
what it has sent.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from .conf import get_settings
from .exceptions import ConfigurationError, MissingKey, UndecryptableMessage

#: The first byte of an encrypted body. JSON begins with [ or {, zlib with x.
SEALED = b"\x01"
KEY_ID_SIZE, NONCE_SIZE, TAG_SIZE = 4, 12, 16
_NONCE_AT = len(SEALED) + KEY_ID_SIZE
_TEXT_AT = _NONCE_AT + NONCE_SIZE


class _Cipher(NamedTuple):
    """One key."""

    id: bytes
    aead: Any
    nonce_key: bytes


@lru_cache(maxsize=4)
def _ciphers(keys: Sequence[str]) -> tuple[_Cipher, ...]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigurationError(
            'DELAYQ["ENCRYPTION_KEYS"] needs the package cryptography: '
            "pip install django-delayq[encryption]."
        ) from None
    return tuple(
        _Cipher(
            key_id_of(raw),
            AESGCM(raw),
            hashlib.blake2b(raw, digest_size=32, person=b"delayq-nonce").digest(),
        )
        for raw in (base64.urlsafe_b64decode(key + "=" * (-len(key) % 4)) for key in keys)
    )


def key_id_of(raw: bytes) -> bytes:
    """Four bytes that name a key."""
    return hashlib.blake2b(raw, digest_size=KEY_ID_SIZE, person=b"delayq-key-id").digest()


def is_sealed(body: bytes) -> bool:
    """Whether these are the bytes of an encrypted body."""
    return body[:1] == SEALED


def sealed(body: bytes, identity: bytes) -> bytes:
    """A body, compressed or not, encrypted with the first key. One that is encrypted stays."""
    if is_sealed(body):
        return body
    cipher = _ciphers(get_settings().encryption_keys)[0]
    nonce = hashlib.blake2b(identity + body, digest_size=NONCE_SIZE, key=cipher.nonce_key).digest()
    text: bytes = cipher.aead.encrypt(nonce, body, SEALED + identity)
    return SEALED + cipher.id + nonce + text


def opened(body: bytes, identity: bytes) -> bytes:
    """What was encrypted for the message with this id. Raises MissingKey, and UndecryptableMessage
    for a body that was changed or is another message's."""
    key_id = body[len(SEALED) : _NONCE_AT]
    if len(body) < _TEXT_AT + TAG_SIZE:
        raise UndecryptableMessage("The encrypted body is cut short.")
    for cipher in _ciphers(get_settings().encryption_keys):
        if cipher.id == key_id:
            break
    else:
        raise MissingKey(
            f"The body is encrypted with the key {key_id.hex()}, which is not in "
            'DELAYQ["ENCRYPTION_KEYS"] here. Add the key again.'
        )
    from cryptography.exceptions import InvalidTag

    try:
        text: bytes = cipher.aead.decrypt(
            body[_NONCE_AT:_TEXT_AT], body[_TEXT_AT:], SEALED + identity
        )
    except InvalidTag:
        raise UndecryptableMessage(
            f"The body cannot be decrypted with the key {key_id.hex()}: it was changed, or it is "
            "that of another message."
        ) from None
    return text
