"""A message: its states, its identity and its wire format.

A record, as it lies in Redis, is a fixed header that the Lua scripts can unpack, then the body:

    offset  size  field           meaning
    0       8     enqueued_at_us  Redis clock, microseconds: with the id it names one life of a key
    8       6     expires_at_ms   0 = never
    14      1     flags           bits 0-1 priority, 2 packed, 3 expiry moves with due_at,
                                  4-5 version, 6 under a limit, 7 durable
    15      4     ttr_ms          length of a lease
    19      4     task code       first bytes of a hash of the task's name; `meta` has the name
    23      8     limit           only with its flag: a hash of the limit's name
    23, 31  ...   body            JSON in UTF-8: an array of arguments, or an object with more

A packed body is compressed (zlib), or encrypted: see encryption.py. Its first byte says which.
All integers are unsigned and big-endian. The first 14 bytes are the stamp: the enqueue script
writes them, because only Redis' clock counts. A code in place of the name saves some 25 bytes in
every waiting message.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum
from functools import lru_cache
from time import time_ns
from typing import Any
from uuid import RFC_4122, UUID

import msgspec
from django.db.models import TextChoices

from .encryption import is_sealed, opened, sealed
from .exceptions import (
    BodyTooLarge,
    InvalidKey,
    InvalidMessage,
    NewerRecord,
    UndecodableMessage,
    UnserialisableArguments,
)

VERSION = 1
STAMP = struct.Struct(">Q6s")
HEADER = struct.Struct(">BI4s")
ATTEMPTS = struct.Struct(">HH6s6s16s6s")
#: The same: a number of 6 bytes is read as one of 2 and one of 4, which takes a third of the time.
_ATTEMPTS_IN_PARTS = struct.Struct(">HHHIHI16sHI")
HEADER_END = STAMP.size + HEADER.size
_WHOLE_HEADER = struct.Struct(STAMP.format + HEADER.format[1:])

PRIORITY_BITS = 0b0011
#: The body is compressed or encrypted.
PACKED = 0b0100
EXPIRES_WITH_DUE = 0b1000
VERSION_BITS = 0b0011_0000
#: Eight bytes of a limit's name stand before the body. The scripts know this bit too.
LIMITED = 0b0100_0000
LIMIT_SIZE = 8
#: The outbox holds a row of this message, which its end has to close. The scripts know this bit
#: too.
DURABLE = 0b1000_0000
#: A compressed body may not unfold to more than the hard limit of DELAYQ["BODY_LIMIT"].
MAX_BODY = 1024 * 1024
MAX_DEPTH = 32


class State(TextChoices):
    """Where a message is. Membership in a Redis structure is the state; the last four are rows of
    the archive.

    (new) -> delayed by enqueue; delayed -> delayed by reschedule;
    delayed and due (ready) -> leased by claim;
    leased -> acked by ack, -> delayed or dead by nack, -> delayed by release or put_off,
    -> delayed or dead by reclaim, -> cancelled by cancel_running;
    delayed -> cancelled by cancel, -> expired by claim.
    """

    DELAYED = "delayed"
    """Waits for its due time."""
    READY = "ready"
    """Delayed and due: waits for a worker."""
    LEASED = "leased"
    """A worker holds it."""
    ACKED = "acked"
    """The task returned."""
    DEAD = "dead"
    """Gave up: attempts used up, rejected, unknown, undecodable or poison."""
    CANCELLED = "cancelled"
    """Taken back before it ran."""
    EXPIRED = "expired"
    """Not started before its own expires_at."""


class Final(TextChoices):
    """The states that end a message: those of the archive's rows."""

    ACKED = "acked"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Priority(IntEnum):
    """Which lane of a topic a message waits in. A higher one goes first, a waiting one ages
    upwards."""

    HIGH = 0
    NORMAL = 1
    LOW = 2

    @classmethod
    def parse(cls, value: Priority | str | int) -> Priority:
        """From `Priority.HIGH`, `"high"` or 0. Raises InvalidMessage."""
        try:
            return cls[value.upper()] if isinstance(value, str) else cls(value)
        except (KeyError, ValueError):
            raise InvalidMessage(f'priority is {value!r}: use "high", "normal" or "low".') from None


class Body(msgspec.Struct, omit_defaults=True):
    """What the task is called with, and what only people read. JSON."""

    args: list[Any] = msgspec.field(default_factory=list)
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    key: str | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    max_attempts: int | None = None
    replay_of: int | None = None
    """Id of the archived message that this one replays."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message as people see it. All instants are by Redis' clock."""

    id: str
    """32 hexadecimal digits: a UUIDv7, or with a key a hash of topic and key."""
    topic: str
    task: str
    """Name of the task; `code:` and its code when the name is not known here."""
    state: State
    key: str | None = None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    priority: Priority = Priority.NORMAL
    attempt: int = 0
    """1 during the first run; 0 before it."""
    crashes: int = 0
    """Leases that ended without a word from the worker."""
    runs: Sequence[Mapping[str, Any]] = ()
    """One mapping per run that has ended, the oldest first: started_ms, ended_ms, outcome, worker,
    error."""
    enqueued_at: datetime
    due_at: datetime
    expires_at: datetime | None = None
    replay_of: int | None = None
    """Id of the archived message that this one replays."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of list_messages()."""

    messages: list[Message]
    """The waiting messages, by due time."""
    cursor: str | None
    """Pass it to list_messages() to get the next page. None on the last page."""


class Attempts(msgspec.Struct, frozen=True, gc=False):
    """What the partition remembers of a message that has been claimed."""

    attempt: int
    crashes: int
    due_at_ms: int
    """The due time of the newest claim."""
    first_claimed_at_ms: int
    token: bytes
    """Names the newest lease."""
    history: bytes = b""
    """One line of JSON per run that has ended, the newest 8 KiB of them."""
    put_off_since_ms: int = 0
    """When a worker whose code cannot run it met it first, since it ran last; 0: none has."""

    @property
    def runs(self) -> list[dict[str, Any]]:
        """The history, decoded."""
        return runs_of(self.history)

    @classmethod
    def decode(cls, raw: bytes) -> Attempts:
        """From the bytes in the `attempts` hash."""
        attempt, crashes, due, due_low, first, first_low, token, off, off_low = (
            _ATTEMPTS_IN_PARTS.unpack_from(raw)
        )
        return cls(
            attempt,
            crashes,
            due << 32 | due_low,
            first << 32 | first_low,
            token,
            raw[ATTEMPTS.size :],
            off << 32 | off_low,
        )


def token_of(entry: bytes) -> bytes:
    """The token in an entry of the `attempts` hash: the newest lease's."""
    return entry[16:32]


def has_crashed(entry: bytes) -> bool:
    """Whether an entry of the `attempts` hash counts a crash. Reads two bytes: nearly no message
    has crashed, and decoding the entry of each one claimed takes ten times as long."""
    return entry[2:4] != b"\0\0"


def runs_of(history: bytes) -> list[dict[str, Any]]:
    """The runs in a history of JSON lines; a damaged line is left out."""
    runs = []
    for line in history.split(b"\n"):
        with suppress(msgspec.MsgspecError, UnicodeError):
            runs.append(msgspec.json.decode(line, type=dict[str, Any]))
    return runs


class Record(msgspec.Struct, frozen=True, gc=False):
    """The decoded header of a record and its body, still encoded."""

    enqueued_at_us: int
    expires_at_ms: int
    flags: int
    ttr_ms: int
    task_code: bytes
    body: bytes
    limit: bytes = b""
    """Stands for the name of the limit that it is under; empty without one."""

    @property
    def priority(self) -> Priority:
        """The lane."""
        return Priority(self.flags & PRIORITY_BITS)

    @staticmethod
    def version_of(raw: bytes) -> int:
        """The version of a record that has a header."""
        return (raw[STAMP.size] & VERSION_BITS) >> 4

    @classmethod
    def decode(cls, raw: bytes) -> Record:
        """From the bytes in the `messages` hash. Raises UndecodableMessage."""
        if len(raw) < HEADER_END:
            raise UndecodableMessage(
                f"The record has {len(raw)} bytes, its header alone has {HEADER_END}."
            )
        enqueued_at_us, expires_at, flags, ttr_ms, code = _WHOLE_HEADER.unpack_from(raw)
        version = (flags & VERSION_BITS) >> 4
        if version != VERSION:
            raise (NewerRecord if version > VERSION else UndecodableMessage)(
                f"The record has version {version}, django-delayq here reads version {VERSION}."
            )
        expires_at_ms = int.from_bytes(expires_at, "big")
        if not flags & LIMITED:
            return cls(enqueued_at_us, expires_at_ms, flags, ttr_ms, code, raw[HEADER_END:])
        limit, body = raw[HEADER_END : HEADER_END + LIMIT_SIZE], raw[HEADER_END + LIMIT_SIZE :]
        return cls(enqueued_at_us, expires_at_ms, flags, ttr_ms, code, body, limit)


# Parts of a record, damaged or not. `sent` is a record without its stamp, as an enqueue sends it.


def stamp_of(record: bytes) -> bytes:
    """The 8 bytes of enqueued_at: with the id they name one life of a key."""
    return record[:8]


def stamp_us_of(record: bytes) -> int | None:
    """enqueued_at in microseconds; None when the record is cut short."""
    return int.from_bytes(record[:8], "big") if len(record) >= 8 else None


def without_stamp(record: bytes) -> bytes:
    """The record as an enqueue sends it."""
    return record[STAMP.size :]


def with_stamp(stamp_us: int, expires_at_ms: int, sent: bytes) -> bytes:
    """The record as it lies in Redis."""
    return STAMP.pack(stamp_us, expires_at_ms.to_bytes(6, "big")) + sent


def restamped(record: bytes, sent: bytes) -> bytes:
    """What was sent, with the stamp of this record."""
    return record[: STAMP.size] + sent


def task_code_of(record: bytes) -> bytes:
    """The code of the task; shorter than 4 bytes when the record is cut short."""
    return record[HEADER_END - 4 : HEADER_END]


def task_code_sent(sent: bytes) -> bytes:
    """The code of the task."""
    return sent[HEADER.size - 4 : HEADER.size]


def ttr_ms_of(record: bytes) -> int:
    """Length of a lease. Of a damaged record the default that claim.lua gives it, too."""
    return int.from_bytes(record[15:19], "big") if len(record) >= HEADER_END else 60_000


def is_durable(record: bytes) -> bool:
    """Whether the outbox has a row of the message."""
    return len(record) > STAMP.size and bool(record[STAMP.size] & DURABLE)


def lane_sent(sent: bytes) -> int:
    """The lane where the message will belong, as lane_of() in shared/partition.lua; a damaged one
    has a lane too."""
    lane = sent[0] & PRIORITY_BITS
    return lane if lane < 3 else 1


def window_mark(message_id: bytes, sent: bytes) -> bytes:
    """Names a message in all its enqueues: the id and what its record says. As mark_of() in
    shared/windows.lua."""
    return message_id + hashlib.sha1(sent[1:], usedforsecurity=False).hexdigest()[:16].encode()


def is_same_content(sent: bytes, other: bytes) -> bool:
    """Whether two records are equal but for their flags: one of these only says that SQL has the
    message. As standing() in shared/accepting.lua."""
    return sent[1:] == other[1:]


def seal_sent(sent: bytes, identity: bytes) -> bytes:
    """The record with its body encrypted for the message with this id."""
    at = HEADER.size + LIMIT_SIZE * bool(sent[0] & LIMITED)
    return bytes((sent[0] | PACKED,)) + sent[1:at] + sealed(sent[at:], identity)


def is_record_sealed(record: bytes) -> bool:
    """Whether a record, damaged or not, has an encrypted body."""
    if len(record) < HEADER_END or not record[STAMP.size] & PACKED:
        return False
    return is_sealed(record[_body_at(record) :])


def seal_again(record: bytes, identity: bytes, as_id: bytes) -> bytes:
    """The record of a message that gets another id. One that is not encrypted stays. Raises
    UndecodableMessage."""
    if identity == as_id or not is_record_sealed(record):
        return record
    at = _body_at(record)
    return record[:at] + sealed(opened(record[at:], identity), as_id)


def _body_at(record: bytes) -> int:
    return HEADER_END + LIMIT_SIZE * bool(record[STAMP.size] & LIMITED)


def plain_value(value: Any) -> Any:
    """A str, int or float of a subclass as what it is (msgspec knows enums by itself)."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return str.__str__(value) if kind is str else kind(value)
    raise NotImplementedError


_encoder = msgspec.json.Encoder(enc_hook=plain_value)
_decode_array = msgspec.json.Decoder(list[Any]).decode
_decode_object = msgspec.json.Decoder(Body).decode


def encode_body(content: Body | Sequence[Any], limit: int) -> bytes:
    """JSON: a plain array when there are only positional arguments, else an object.

    Raises UnserialisableArguments for what JSON cannot carry unchanged and BodyTooLarge above
    `limit` bytes.
    """
    if isinstance(content, Body):
        check_json(content.args)
        check_json(content.kwargs)
    else:
        check_json(content if type(content) is tuple else list(content))
    return write_body(content, limit)


def write_body(content: Body | Sequence[Any], limit: int) -> bytes:
    """encode_body() of arguments that are known to be JSON. Raises UnserialisableArguments and
    BodyTooLarge too: half characters and whole numbers beyond 64 bits are found only here."""
    try:
        encoded = _encoder.encode(content)
    except (TypeError, ValueError, OverflowError, UnicodeError) as error:
        raise UnserialisableArguments(
            f"The arguments cannot be written as JSON: {error}."
        ) from None
    if len(encoded) > limit:
        raise BodyTooLarge(
            f"The arguments take {len(encoded):,} bytes, the limit is {limit:,}. Store the data "
            f"and send its key."
        )
    return encoded


def encode_header(code: bytes, flags: int, ttr_ms: int) -> bytes:
    """The header of a record of this version."""
    return HEADER.pack(flags | VERSION << 4, ttr_ms, code)


def with_limit(header: bytes, limit: bytes) -> bytes:
    """The header of a message that is under this limit (8 bytes)."""
    return bytes((header[0] | LIMITED,)) + header[1:] + limit


def encode_record(header: bytes, body: bytes, compress_above: int) -> bytes:
    """Header and body without the stamp, which the enqueue script adds. A body of more bytes than
    `compress_above` is compressed when that makes it smaller."""
    if len(body) > compress_above:
        packed = zlib.compress(body, 1)
        if len(packed) < len(body):
            header, body = bytes((header[0] | PACKED,)) + header[1:], packed
    return header + body


def decode_body(flags: int, raw: bytes, identity: bytes) -> Body:
    """The body of a record of the message with this id. Raises UndecodableMessage."""
    try:
        if flags & PACKED:
            raw = unpacked(raw, identity)
        return _decode_object(raw) if raw[:1] == b"{" else Body(_decode_array(raw))
    except (msgspec.MsgspecError, zlib.error, UnicodeError, RecursionError) as error:
        raise UndecodableMessage(f"The body is not the JSON we write: {error}.") from None


def unpacked(raw: bytes, identity: bytes) -> bytes:
    """The JSON of a packed body. Raises UndecodableMessage and zlib.error."""
    if is_sealed(raw):
        raw = opened(raw, identity)
        if raw[:1] in (b"[", b"{"):
            return raw
    unpacker = zlib.decompressobj()
    raw = unpacker.decompress(raw, MAX_BODY + 1)
    if len(raw) > MAX_BODY or not unpacker.eof:
        raise UndecodableMessage(
            f"The compressed body is cut short or larger than {MAX_BODY} bytes."
        )
    return raw


#: Values whose repr may stand in an error. Others may do anything: a QuerySet runs its query.
_SHOWN = (float, bytes, date, time, timedelta, Decimal, UUID)


_SCALARS = frozenset({str, int, bool, type(None)})
_CONTAINERS = frozenset({list, tuple, dict})


def check_json(value: Any, depth: int = 0) -> None:
    """Raise UnserialisableArguments unless a round trip through JSON gives the value back (tuples
    become lists)."""
    kind = type(value)
    # A str or int of a subclass (TextChoices, SafeString) comes back as a plain one that is equal.
    if kind in _SCALARS or (
        kind not in _CONTAINERS
        and (isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)))
    ):
        return
    if depth > MAX_DEPTH:
        raise UnserialisableArguments(f"The arguments are nested deeper than {MAX_DEPTH} levels.")
    if kind is dict and all(isinstance(name, str) for name in value):
        value = value.values()
    elif kind is not list and kind is not tuple:
        shown = f"{value!r:.80} " if isinstance(value, _SHOWN) else ""
        raise UnserialisableArguments(
            f"An argument is {shown}of type {kind.__name__}. "
            f"{UnserialisableArguments.meaning()} "
            "Annotate the parameter with its type, or pass a primary key and load the rest in the "
            "task."
        )
    for item in value:
        if type(item) not in _SCALARS:
            check_json(item, depth + 1)


class Found(msgspec.Struct, frozen=True):
    """A live message as a partition holds it."""

    id: bytes
    state: State
    due_at_ms: int
    record: bytes
    attempts: Attempts | None


# Ids


def task_code(name: str) -> bytes:
    """Four bytes that stand for the task's name in records."""
    return hashlib.blake2b(name.encode(), digest_size=4).digest()


def limit_id(name: str) -> bytes:
    """Eight bytes that stand for the name of a limit in records."""
    return hashlib.blake2b(name.encode(), digest_size=LIMIT_SIZE).digest()


def new_ids(count: int) -> list[bytes]:
    """Fresh UUIDv7 (RFC 9562): they sort by time. One read of the kernel's randomness for all:
    quick and fork-safe."""
    noise = os.urandom(10 * count)
    stamp = (time_ns() // 1_000_000).to_bytes(6, "big")
    return [
        stamp
        + bytes((0x70 | noise[at] & 0x0F, noise[at + 1], 0x80 | noise[at + 2] & 0x3F))
        + noise[at + 3 : at + 10]
        for at in range(0, 10 * count, 10)
    ]


def new_id() -> bytes:
    """One fresh UUIDv7."""
    return new_ids(1)[0]


#: The bits of a UUID that say its version (8) and its variant; where they are; the other bits of
#: the byte with the variant.
_UUID_V8, _FIXED, _NINTH = 8 << 76 | 2 << 62, 0xF << 76 | 3 << 62, 0x3F << 56


def key_id(topic: str, key: str) -> bytes:
    """The id of the message with this key, a UUIDv8: finding it costs no index.

    Its first eight bytes are those of the key in every topic (key_id_range()).
    """
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    return _mixed(int.from_bytes(digest, "big"), topic)


def _mixed(digest: int, topic: str) -> bytes:
    """The id of a topic and the digest of a key."""
    number = digest ^ _topic_bits(topic)
    # Not 0x80 itself in the ninth byte: MariaDB takes no UUIDv8 that has it.
    if not number & _NINTH:
        number |= 1 << 56
    return (number & ~_FIXED | _UUID_V8).to_bytes(16, "big")


def ids_of_key(key: str, topics: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Each topic with key_id() of it and this key."""
    digest = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=16).digest(), "big")
    return ((topic, _mixed(digest, topic)) for topic in topics)


def key_id_range(key: str) -> tuple[UUID, UUID]:
    """The ids of messages with this key lie from the first one to the second one, whatever their
    topics are. Others may lie there too: compare them with key_id()."""
    first = int.from_bytes(key_id("", key), "big") >> 64 << 64
    return UUID(int=first | 0x81 << 56), UUID(int=first | 0xBF << 56 | (1 << 56) - 1)


@lru_cache(maxsize=16_384)
def _topic_bits(topic: str) -> int:
    """What makes an id of a topic and a key from that of the key."""
    return int.from_bytes(hashlib.blake2b(topic.encode(), digest_size=8).digest(), "big")


def check_key(value: str | None) -> str | None:
    """The key itself. Raises InvalidKey, also for what UTF-8 does not have (half characters) and
    what PostgreSQL does not (the character 0)."""
    try:
        is_key = isinstance(value, str) and 1 <= len(value) <= 256 and b"\0" not in value.encode()
    except UnicodeEncodeError:
        is_key = False
    if value is not None and not is_key:
        raise InvalidKey(f"key is {value!r:.80}. {InvalidKey.meaning()}")
    return value


def parse_id(value: str | UUID | bytes) -> bytes:
    """Sixteen bytes from a UUID or its hexadecimal digits. Raises InvalidMessage.

    Of the variant of RFC 9562, as ours and Python's are: MariaDB takes no other for a UUID.
    """
    if isinstance(value, bytes) and len(value) == 16:
        return value
    try:
        parsed = UUID(str(value))
    except ValueError:
        raise InvalidMessage(f"{value!r} is not a message id: 32 hexadecimal digits.") from None
    if parsed.variant != RFC_4122 or (parsed.bytes[6] >= 0x80 and parsed.bytes[8] == 0x80):
        raise InvalidMessage(
            f"{value!r} is not a UUID of RFC 9562: use the id of a handle, or uuid.uuid4()."
        )
    return parsed.bytes
