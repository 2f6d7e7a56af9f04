"""Turns an error into one sentence: Spark wraps an error that was raised on an executor into pages
of traces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from django.db import Error as DatabaseError

from ..core import exceptions
from ..core.exceptions import DelayQError
from . import errors
from .errors import Code, LakeError, Refused, SparkMissing

#: The last line of a Python traceback: the class with its module, and what it says.
_RAISED = re.compile(r"^([A-Za-z_][\w.]*?)(?:: (.*))?$", re.DOTALL)
_TRACEBACK = "Traceback (most recent call last):\n"
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5}.*", re.DOTALL)
_REFUSED = (
    Refused,
    SparkMissing,
    LakeError,
    exceptions.ConfigurationError,
    exceptions.InvalidMessage,
)
_GONE = (
    "Answer from Java side is empty",
    "Error while sending or receiving",
    "Connection refused",
    "reset by peer",
)
_MEMORY = ("OutOfMemoryError", "Java heap space", "GC overhead limit")
MORE_MEMORY = (
    "Give it more memory with --driver-memory, for example 4g; on a cluster also "
    "spark.executor.memory."
)


def code_of(error: Exception) -> Code:
    """The exit code for an error as cause() gives it."""
    return Code.REFUSED if isinstance(error, _REFUSED) else Code.FAILED


def cause(error: Exception) -> Exception:
    """The DelayQError that caused this error; else a new one that says in a sentence what went
    wrong."""
    if isinstance(error, DelayQError):
        return error
    if isinstance(error, DatabaseError):
        return DelayQError(f"The database failed: {type(error).__name__}: {error}".strip())
    text = "\n".join(_texts(error))
    if any(word in text for word in _MEMORY):
        return DelayQError(f"Java ran out of memory. {MORE_MEMORY}")
    if raised := _raised(text):
        return raised
    if type(error).__module__.startswith("py4j") and any(word in text for word in _GONE):
        return DelayQError(
            f"Java has ended in the middle of the job. If it was killed for its size: {MORE_MEMORY}"
        )
    return DelayQError(_sentence(error))


def _texts(error: BaseException) -> Iterator[str]:
    """The texts of the error and of the errors that caused it."""
    seen: BaseException | None = error
    while seen is not None:
        yield str(seen)
        seen = seen.__cause__ or seen.__context__


def _raised(text: str) -> Exception | None:
    """The error that a Python process of Spark raised; of the same class if it is a DelayQError."""
    _, found, trace = text.rpartition(_TRACEBACK)
    lines = trace.splitlines()
    begin = next((at for at, line in enumerate(lines) if line[:1].strip()), None)
    if not found or begin is None:
        return None
    match = _RAISED.match("\n".join(lines[begin : begin + 5]).strip())
    if match is None:
        return None
    name, message = match[1].rpartition(".")[2], _SQLSTATE.sub("", match[2] or "").strip()
    kind = getattr(exceptions, name, None) or getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, DelayQError):
        with suppress(TypeError):  # some take more than a text
            return kind(message)
        return DelayQError(message)
    return DelayQError(f"{name}: {_first(message)}" if message else name)


def _sentence(error: Exception) -> str:
    text = _SQLSTATE.sub("", str(error))
    # Py4J: "An error occurred while calling o12.load.\n: java.io.IOException: ..."
    text = re.sub(r"^An error occurred while calling \S+\n?(: )?", "", text)
    first = _first(text)
    return first if "[" in first[:1] else f"{type(error).__name__}: {first}"


def _first(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
