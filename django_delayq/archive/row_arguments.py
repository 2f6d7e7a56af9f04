"""The arguments in a row of the archive: JSON, redacted or encrypted.

An encrypted row has `redaction` "encrypted", and under `sealed` the body as Redis had it, in
base64. So who knows nothing of encryption takes it for redacted, and replays nothing of it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from ..core.encryption import is_sealed, sealed
from ..core.exceptions import UndecodableMessage
from ..core.message import PACKED, decode_body
from ..models import ArchivedMessage
from ..tasks import redaction

#: What `redaction` says of a row whose arguments are encrypted.
ENCRYPTED = "encrypted"
#: What it says when they cannot be decrypted here.
UNDECRYPTABLE = "undecryptable"


class RowArguments(msgspec.Struct, omit_defaults=True):
    """The column `body` of a row. Its text of a record that could not be read has another form."""

    args: list[Any]
    kwargs: dict[str, Any]
    redaction: str = ""
    """Why these are not the arguments of the message: `done`, `failed`, `erased`, `encrypted` or
    `undecryptable`. Empty when they are."""
    sealed: str = ""
    """The encrypted body, in base64."""

    @property
    def arguments(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """For a call."""
        return self.args, self.kwargs


_decode = msgspec.json.Decoder(RowArguments).decode


def sealed_arguments(body: bytes, identity: bytes) -> str:
    """The column `body` for a body of Redis, encrypted or not."""
    text = base64.b64encode(sealed(body, identity)).decode()
    return msgspec.json.encode(RowArguments([], {}, redaction=ENCRYPTED, sealed=text)).decode()


def read_arguments(message_id: UUID, body: str) -> RowArguments:
    """The arguments as far as the row has them, decrypted. Raises msgspec.MsgspecError for a text
    of another form."""
    found = _decode(body)
    if found.redaction != ENCRYPTED:
        return found
    try:
        raw = base64.b64decode(found.sealed, validate=True)
        if not is_sealed(raw):
            raise UndecodableMessage
        true = decode_body(PACKED, raw, message_id.bytes)
    except (UndecodableMessage, ValueError):
        return RowArguments([], {}, redaction=UNDECRYPTABLE)
    return RowArguments(true.args, true.kwargs)


def visible_arguments(row: ArchivedMessage) -> RowArguments:
    """What people may see of the arguments of a row; `redaction` stays empty when the row itself
    has all of them. Raises msgspec.MsgspecError."""
    found = read_arguments(row.message_id, row.body)
    if found.redaction:
        return found
    seen = redaction.shown_arguments(row.topic, row.task, found.args, found.kwargs)
    return RowArguments(list(seen.args), dict(seen.kwargs))
