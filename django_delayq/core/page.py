"""One page of a list."""

from __future__ import annotations

from dataclasses import dataclass

from .message import Message


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page of list_messages()."""

    messages: list[Message]
    """The waiting messages, by due time."""
    cursor: str | None
    """Pass it to list_messages() to get the next page. None on the last page."""
