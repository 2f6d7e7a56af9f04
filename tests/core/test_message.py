"""message.py: states, identity and the wire format."""

from __future__ import annotations

import json
import os
import struct
import uuid
import zlib
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from django.utils.safestring import SafeString
from hypothesis import example, given
from hypothesis import strategies as st

from django_delayq.core.exceptions import (
    BodyTooLarge,
    InvalidMessage,
    NewerRecord,
    UndecodableMessage,
    UnserialisableArguments,
)
from django_delayq.core.message import (
    EXPIRES_WITH_DUE,
    HEADER_END,
    MAX_BODY,
    MAX_DEPTH,
    PACKED,
    Attempts,
    Body,
    Found,
    Priority,
    Record,
    State,
    check_json,
    decode_body,
    encode_body,
    encode_header,
    encode_record,
    ids_of_key,
    key_id,
    key_id_range,
    new_ids,
    parse_id,
    task_code,
)
from django_delayq.core.present import view

LIMIT = 64 * 1024
STAMP = struct.pack(">Q6s", 1_763_632_200_123_456, (1_763_632_300_000).to_bytes(6, "big"))
CODE = task_code("shop.close_order")

texts = st.text(st.characters(codec="utf-8"))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=15,
)


def stored(
    body: Body, *, compress_above: int = 1024, flags: int = 0, ttr_ms: int = 60_000
) -> bytes:
    """As it lies in Redis."""
    header = encode_header(CODE, flags, ttr_ms)
    return STAMP + encode_record(header, encode_body(body, LIMIT), compress_above)


def loaded(raw: bytes) -> Body:
    record = Record.decode(raw)
    return decode_body(record.flags, record.body, b"")


# Round trips


@given(
    args=st.lists(json_values, max_size=4), kwargs=st.dictionaries(texts, json_values, max_size=3)
)
@example([9_007_199_254_740_993], {})
@example([[], {}, [[]], "\0", "🧀", "", 1e308, 5e-324, True, 1], {"": None})
def test_arguments_come_back_as_they_were_sent(args: list[Any], kwargs: dict[str, Any]) -> None:
    for compress_above in (0, LIMIT):
        body = loaded(stored(Body(args, kwargs), compress_above=compress_above))
        assert (body.args, body.kwargs) == (args, kwargs)
        assert repr(body.args) == repr(args)  # 1, 1.0 and True are equal


def test_everything_else_comes_back_too() -> None:
    body = Body([1], {"a": 2}, "order:7", {"trace": "x"}, 9)
    assert loaded(stored(body)) == body


@pytest.mark.parametrize("args", [(1, "a", None), [1, "a", None]])
def test_positional_arguments_alone_are_a_plain_array(args: Any) -> None:
    assert encode_body(args, LIMIT) == b'[1,"a",null]'
    assert decode_body(0, b'[1,"a",null]', b"") == Body([1, "a", None])


def test_anything_more_is_an_object_without_defaults() -> None:
    assert json.loads(encode_body(Body([1], key="k"), LIMIT)) == {"args": [1], "key": "k"}


def test_tuples_become_lists() -> None:
    assert loaded(stored(Body([(1, (2,))]))).args == [[1, [2]]]


@given(priority=st.sampled_from(Priority), expires=st.booleans(), ttr_ms=st.integers(0, 2**32 - 1))
def test_the_header_comes_back(priority: Priority, expires: bool, ttr_ms: int) -> None:
    flags = priority | (EXPIRES_WITH_DUE if expires else 0)
    record = Record.decode(stored(Body(), flags=flags, ttr_ms=ttr_ms))
    assert (record.priority, record.ttr_ms, record.task_code) == (priority, ttr_ms, CODE)
    assert bool(record.flags & EXPIRES_WITH_DUE) == expires
    assert (record.enqueued_at_us, record.expires_at_ms) == (
        1_763_632_200_123_456,
        1_763_632_300_000,
    )


def test_the_header_has_the_places_that_the_scripts_read() -> None:
    raw = stored(Body(), flags=Priority.LOW, ttr_ms=30_000)
    assert HEADER_END == 23
    assert int.from_bytes(raw[8:14], "big") == 1_763_632_300_000
    assert raw[14] & 0b11 == Priority.LOW
    assert int.from_bytes(raw[15:19], "big") == 30_000
    assert raw[19:23] == CODE


def test_attempts_are_what_the_scripts_pack() -> None:
    token = os.urandom(16)
    raw = struct.pack(">HH", 3, 1) + (5).to_bytes(6, "big") + (7).to_bytes(6, "big") + token
    raw += (9).to_bytes(6, "big")
    assert Attempts.decode(raw + b"{}") == Attempts(3, 1, 5, 7, token, b"{}", put_off_since_ms=9)


def test_a_message_for_people_has_everything() -> None:
    attempts = Attempts(2, 1, 0, 0, bytes(16))
    raw = stored(Body([1], {"a": 2}, "k", {"h": "x"}), flags=Priority.HIGH)
    found = Found(bytes(16), State.LEASED, 1_763_632_200_000, raw, attempts)
    message = view("orders", "shop.close", found)
    assert (message.id, message.topic, message.task, message.key) == (
        "0" * 32,
        "orders",
        "shop.close",
        "k",
    )
    assert (message.args, message.kwargs, message.headers) == ([1], {"a": 2}, {"h": "x"})
    assert (message.priority, message.attempt, message.crashes) == (Priority.HIGH, 2, 1)
    assert message.due_at == datetime(2025, 11, 20, 9, 50, tzinfo=timezone.utc)
    assert message.expires_at == datetime(2025, 11, 20, 9, 51, 40, tzinfo=timezone.utc)
    assert message.enqueued_at.microsecond == 123_456


# Compression


def test_a_large_body_is_compressed_and_a_small_one_is_not() -> None:
    small, large = stored(Body(["x" * 1000])), stored(Body(["x" * 2000]))
    assert not Record.decode(small).flags & PACKED
    assert Record.decode(large).flags & PACKED
    assert len(large) < len(small)


def test_a_body_that_does_not_shrink_is_stored_as_it_is() -> None:
    body = Body([os.urandom(6).hex()])
    assert not Record.decode(stored(body, compress_above=0)).flags & PACKED
    assert loaded(stored(body, compress_above=0)) == body


def test_a_body_that_unfolds_without_end_is_refused() -> None:
    bomb = zlib.compress(b'["' + b"x" * (MAX_BODY + 10) + b'"]', 9)
    assert len(bomb) < 5000
    with pytest.raises(UndecodableMessage, match="larger than"):
        decode_body(PACKED, bomb, b"")


def test_a_body_of_the_largest_size_is_read() -> None:
    text = b'["' + b"x" * (MAX_BODY - 4) + b'"]'
    assert decode_body(PACKED, zlib.compress(text), b"").args == ["x" * (MAX_BODY - 4)]


@given(cut=st.integers(0, 60))
def test_a_compressed_body_that_was_cut_is_refused(cut: int) -> None:
    packed = zlib.compress(json.dumps([os.urandom(40).hex()]).encode())
    with pytest.raises(UndecodableMessage):
        decode_body(PACKED, packed[:cut], b"")


# Damage


@given(cut=st.integers(0, HEADER_END - 1))
def test_a_truncated_record_is_refused(cut: int) -> None:
    with pytest.raises(UndecodableMessage, match=f"has {cut} bytes"):
        Record.decode(stored(Body([1]))[:cut])


@pytest.mark.parametrize("version", [0, 2, 3])
def test_a_record_of_another_version_is_refused(version: int) -> None:
    raw = bytearray(stored(Body()))
    raw[14] = version << 4
    with pytest.raises(
        UndecodableMessage, match=f"version {version}, django-delayq here reads version 1"
    ) as found:
        Record.decode(bytes(raw))
    assert isinstance(found.value, NewerRecord) == (version > 1)


@given(raw=st.binary(max_size=80), flags=st.sampled_from([0, PACKED]))
@example(b"{}", 0)
@example(b"[1", 0)
@example(b'{"args": 1}', 0)
@example(b'{"kwargs": []}', 0)
@example(b'["\xff"]', 0)
@example(b"null", 0)
@example(b"[" * 5000, 0)
def test_garbage_is_undecodable_and_nothing_else(raw: bytes, flags: int) -> None:
    try:
        body = decode_body(flags, raw, b"")
    except UndecodableMessage:
        return
    assert isinstance(body.args, list) and isinstance(body.kwargs, dict)


@given(raw=st.binary(max_size=60))
def test_a_garbage_record_is_undecodable_and_nothing_else(raw: bytes) -> None:
    try:
        view("t", "x", Found(bytes(16), State.READY, 0, raw, None))
    except UndecodableMessage:
        return


# What JSON cannot carry is refused at the door

UNFIT = [
    Decimal(1), datetime(2025, 1, 1), b"x", {1, 2}, frozenset(), uuid.UUID(int=1), object, 1j, float("nan"),
    float("inf"), -float("inf"), {1: 2}, {None: 1}, {"a": b""}, [[{"a": (b"",)}]], "\ud800",
]  # fmt: skip


@pytest.mark.parametrize(
    "value", UNFIT, ids=lambda value: repr(value)[:30].encode("ascii", "replace").decode()
)
def test_what_does_not_come_back_unchanged_is_refused(value: Any) -> None:
    for body in ([value], (value,), Body([[value]]), Body(kwargs={"a": value})):
        with pytest.raises(UnserialisableArguments):
            encode_body(body, LIMIT)


def test_a_subclass_of_str_or_int_comes_back_as_a_plain_one_that_is_equal() -> None:
    raw = encode_body((State.READY, Priority.LOW, SafeString("<b>")), LIMIT)
    assert (
        decode_body(0, raw, b"").args
        == ["ready", 2, "<b>"]
        == [State.READY, Priority.LOW, SafeString("<b>")]
    )


def test_the_refusal_says_what_to_do() -> None:
    with pytest.raises(
        UnserialisableArguments, match=r"b'x' of type bytes.*JSON.*pass a primary key"
    ):
        check_json([b"x"])


def test_arguments_may_be_nested_but_not_without_end() -> None:
    nested: Any = 1
    for _ in range(MAX_DEPTH):
        nested = [nested]
    check_json([nested])
    with pytest.raises(UnserialisableArguments, match=f"deeper than {MAX_DEPTH}"):
        check_json([[[nested]]])


def test_an_argument_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UnserialisableArguments):
        encode_body(Body([endless]), LIMIT)


def test_the_limit_counts_bytes_of_json() -> None:
    assert len(encode_body(["é" * 48], 100)) == 100
    with pytest.raises(
        BodyTooLarge, match=r"take 102 bytes, the limit is 100. Store the data and send its key"
    ):
        encode_body(["é" * 49], 100)


# Identity


def test_fresh_ids_are_uuids_of_version_7_that_sort_by_time() -> None:
    first, second = uuid.UUID(bytes=new_ids(1)[0]), uuid.UUID(bytes=new_ids(1)[0])
    assert (first.version, first.variant) == (7, uuid.RFC_4122)
    assert first.bytes[:6] <= second.bytes[:6]


def test_fresh_ids_differ() -> None:
    ids = new_ids(5000)
    assert len(set(ids)) == 5000
    assert {len(i) for i in ids} == {16}
    assert {uuid.UUID(bytes=i).version for i in ids} == {7}


@given(
    topic=st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True),
    key=st.text(min_size=1, max_size=40),
)
def test_a_key_names_one_id_in_one_topic(topic: str, key: str) -> None:
    key = key.encode("utf-8", "ignore").decode() or "k"
    assert key_id(topic, key) == key_id(topic, key)
    assert len(key_id(topic, key)) == 16
    assert key_id(topic, key) not in (
        key_id(topic + "x", key),
        key_id(topic, key + "x"),
        key_id(key, topic + "!"),
    )


@given(
    topic=st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True),
    key=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40),
)
def test_ids_of_a_key_lie_in_one_range_whatever_the_topic(topic: str, key: str) -> None:
    first, last = key_id_range(key)
    identity = uuid.UUID(bytes=key_id(topic, key))
    assert first <= identity <= last
    assert (identity.version, identity.variant) == (8, uuid.RFC_4122)
    assert dict(ids_of_key(key, [topic, "mail"])) == {
        name: key_id(name, key) for name in (topic, "mail")
    }
    assert first.bytes[:8] == last.bytes[:8] == identity.bytes[:8]
    other = key_id_range(key + "x")
    assert not other[0] <= identity <= other[1]


def test_an_id_is_sixteen_bytes_or_their_digits() -> None:
    message_id = new_ids(1)[0]
    for value in (
        message_id,
        message_id.hex(),
        str(uuid.UUID(bytes=message_id)),
        uuid.UUID(bytes=message_id),
    ):
        assert parse_id(value) == message_id


@pytest.mark.parametrize("value", ["", "x", "1234", b"short", "g" * 32, b"x" * 17])
def test_anything_else_is_not_an_id(value: Any) -> None:
    with pytest.raises(InvalidMessage, match="not a message id: 32 hexadecimal digits"):
        parse_id(value)


@pytest.mark.parametrize("value", ["high", "HIGH", 0, Priority.HIGH])
def test_a_priority_has_a_name_and_a_number(value: Any) -> None:
    assert Priority.parse(value) is Priority.HIGH


@pytest.mark.parametrize("value", ["urgent", "", 3, -1])
def test_an_unknown_priority_says_which_there_are(value: Any) -> None:
    with pytest.raises(InvalidMessage, match='use "high", "normal" or "low"'):
        Priority.parse(value)
