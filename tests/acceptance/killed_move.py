"""`delayq move-store` that kills itself at a step: python -m tests.acceptance.killed_move STEP ..."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

#: By the way of the move: what the command does last, or (False) what it does not do any more.
STEPS: dict[str, dict[str, tuple[str, bool]]] = {
    "begun": {"copy": ("_empty_new", True), "replica": ("_replicate", True)},
    "frozen": {"copy": ("freeze", True), "replica": ("freeze", True)},
    "half": {"copy": ("_carry_batch", True), "replica": ("thaw", False)},
    "carried": {"copy": ("_copy", True), "replica": ("_promote", True)},
    "decided": {"copy": ("decide", True), "replica": ("decide", True)},
    "arrived": {"copy": ("_carry", False), "replica": ("_carry", False)},
}


def killing(call: Callable[..., Any], after: bool) -> Callable[..., Any]:
    """The call, and kill -9 of this process after it, or in its place."""

    def do(*args: Any, **kwargs: Any) -> None:
        if after:
            call(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    return do


def main(step: str, *arguments: str) -> None:
    """Run the command."""
    import django
    from django.core.management import call_command

    from django_delayq.store.moving import mover

    django.setup()
    way = arguments[arguments.index("--way") + 1]
    name, after = STEPS[step][way]
    if step == "arrived":  # by copy, the first call of it carries the store itself
        end = mover.StoreMover._end

        def kill_in_end(self: Any, *args: Any) -> Any:
            mover.StoreMover._carry = killing(self._carry, after)  # type: ignore[method-assign]
            return end(self, *args)

        mover.StoreMover._end = kill_in_end  # type: ignore[method-assign]
    else:
        where: Any = mover if name == "thaw" else mover.StoreMover
        setattr(where, name, killing(getattr(where, name), after))
    mover.AT_ONCE = 3  # many round trips
    call_command("delayq", "move-store", *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
