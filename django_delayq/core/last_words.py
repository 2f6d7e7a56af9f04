"""Says that something failed, whatever it was: the last line of defence of every thread must not
fail itself."""

from __future__ import annotations

import logging
import os


def say_failure(logger: logging.Logger, error: BaseException, text: str, *args: object) -> None:
    """Log the error with its traceback; without, if it cannot be formatted; to stderr, if a handler
    fails."""
    for exc_info in (error, None):
        try:
            logger.error(text, *args, exc_info=exc_info)
        except BaseException:
            continue
        return
    os.write(2, f"{text % args}: {type(error).__name__}\n".encode(errors="replace"))
