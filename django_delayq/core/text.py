"""Words for people: counts, and text of whatever origin on one line."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def on_one_line(text: str, limit: int = 300) -> str:
    """Without characters that a terminal obeys or that end a line.

    What a message holds, or an operator has typed, must not write log lines of its own.
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:limit])
