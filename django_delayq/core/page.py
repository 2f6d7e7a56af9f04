"""One page of a list."""

from __future__ import annotations

from dataclasses import dataclass

from .message import Message


@dataclass(frozen=True, kw_only=True)
class Page:
    """Part of a listing."""

    messages: list[Message]
    cursor: str | None
    """Pass it to list_messages for the next page; None at the end."""
