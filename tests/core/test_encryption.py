"""Encrypted bodies: what is refused, and what a key is."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from django_delayq.core.conf import parse_settings
from django_delayq.core.encryption import is_sealed, opened, sealed
from django_delayq.core.exceptions import ConfigurationError, MissingKey, UndecryptableMessage
from django_delayq.core.message import PACKED, Body, decode_body, new_id

FIRST = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY"
SECOND = "MDEyMzQ1Njc4OUFCQ0RFRjAxMjM0NTY3ODlBQkNERUY"
BODY = b'["4111"]'


@pytest.fixture
def keys(settings: Any) -> Any:
    """Sets the keys."""

    def of(*given: str) -> None:
        settings.DELAYQ = {**settings.DELAYQ, "ENCRYPTION_KEYS": given}

    of(FIRST)
    return of


def test_a_body_comes_back_and_is_not_in_what_is_stored(keys: Any) -> None:
    identity = new_id()
    raw = sealed(BODY, identity)
    assert is_sealed(raw) and BODY not in raw
    assert opened(raw, identity) == BODY
    assert decode_body(PACKED, raw, identity) == Body(["4111"])


def test_the_same_body_of_a_message_is_the_same_and_another_one_differs(keys: Any) -> None:
    identity = new_id()
    assert sealed(BODY, identity) == sealed(BODY, identity), "a repeated enqueue finds itself"
    assert sealed(BODY, identity)[5:17] != sealed(BODY, new_id())[5:17]
    assert sealed(BODY, identity)[5:17] != sealed(b"[]", identity)[5:17]


def test_the_body_of_another_message_is_refused(keys: Any) -> None:
    raw = sealed(BODY, new_id())
    with pytest.raises(UndecryptableMessage, match="changed, or it is that of another"):
        opened(raw, new_id())


@pytest.mark.parametrize("at", [0, 1, 5, 20, -1])
def test_no_changed_byte_passes(keys: Any, at: int) -> None:
    identity = new_id()
    raw = bytearray(sealed(BODY, identity))
    raw[at] ^= 1
    with pytest.raises(Exception, match=r"decrypt|ENCRYPTION_KEYS|not the JSON"):
        decode_body(PACKED, bytes(raw), identity)


@pytest.mark.parametrize("size", [1, 4, 16, 17, 32])
def test_a_body_that_is_cut_short_is_refused(keys: Any, size: int) -> None:
    identity = new_id()
    with pytest.raises(UndecryptableMessage):
        opened(sealed(BODY, identity)[:size], identity)


def test_all_keys_decrypt_and_the_first_encrypts(keys: Any) -> None:
    identity = new_id()
    old = sealed(BODY, identity)
    keys(SECOND, FIRST)
    assert opened(old, identity) == BODY
    new = sealed(BODY, identity)
    keys(SECOND)
    assert opened(new, identity) == BODY
    with pytest.raises(MissingKey, match="Add the key again"):
        opened(old, identity)


@pytest.mark.parametrize("wrong", ["abc", ["short"], ["ü" * 43], [7], ["A" * 44], [None], 7])
def test_what_is_no_key_is_refused_and_not_shown(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="ENCRYPTION_KEYS") as caught:
        parse_settings({"ENCRYPTION_KEYS": wrong})
    assert "short" not in str(caught.value)


def test_keys_do_not_stand_in_the_settings_as_text() -> None:
    assert FIRST not in repr(parse_settings({"ENCRYPTION_KEYS": [FIRST]}))
    padded = parse_settings({"ENCRYPTION_KEYS": [FIRST + "="]})
    assert padded.encryption_keys


def test_without_keys_nothing_imports_cryptography() -> None:
    program = (
        "import sys, django; from django.conf import settings; "
        "settings.configure(INSTALLED_APPS=['django.contrib.contenttypes', 'django.contrib.auth', "
        "'django_delayq'], DELAYQ={'REDIS': 'redis://127.0.0.1:1/0'}); django.setup(); "
        "import django_delayq.worker.executor, django_delayq.client.enqueue, "
        "django_delayq.archive.archive_rows; "
        "from django_delayq.core.message import decode_body, encode_body; "
        "decode_body(0, encode_body((1,), 99), b''); "
        "assert 'cryptography.hazmat.primitives.ciphers.aead' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
