"""Which messages the next call of a batch task gets: all, then halves of those that failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

M = TypeVar("M")
#: When so many single messages have failed and no call has succeeded, the messages are not to
#: blame, but what they all need. What is left is not split any more: without that, a database that
#: is away would cost two calls for each message.
MOST_ALONE = 8


class Calls(Generic[M]):
    """The parts of one batch. A part that fails is split, until the culprits are alone."""

    def __init__(self, messages: Sequence[M]) -> None:
        self._parts = [messages] if messages else []
        self._alone = 0
        self._succeeded = False

    def take(self) -> Sequence[M]:
        """The messages of the next call; none when all calls are made."""
        return self._parts.pop() if self._parts else ()

    def succeeded(self) -> None:
        """The last call has returned."""
        self._succeeded = True

    def split(self, part: Sequence[M]) -> bool:
        """The call of this part has failed. Returns whether its halves are called next; if not,
        its messages have failed."""
        if len(part) == 1:
            self._alone += 1
            return False
        if self._alone >= MOST_ALONE and not self._succeeded:
            return False
        middle = len(part) // 2
        self._parts += [part[middle:], part[:middle]]
        return True
