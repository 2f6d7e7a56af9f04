"""The errors of the jobs and their exit codes; and one sentence for any other error.

Spark wraps an error that was raised on an executor into pages of traces: cause() finds it there.
"""

from __future__ import annotations

import re
from contextlib import suppress

from django.db import Error as DatabaseError

from ..core import exceptions
from ..core.exceptions import DelayQError
from ..core.job_report import Code


class Refused(DelayQError):
    """The job refuses its input or its session, and stops. Nothing is half done."""


class SparkMissing(DelayQError):
    """Spark cannot be started here."""


class ArrowMissing(DelayQError):
    """pyarrow is not installed: pip install 'django-delayq[arrow]'."""


class LakeError(DelayQError):
    """The lake contradicts its commits."""


class LakeConflict(LakeError):
    """Another writer has committed meanwhile. Nothing of this writer counts; run it again."""


#: The last line of a Python traceback: the class with its module, and its message.
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
    # Spark stops itself when a thread has no memory, and Java is about to end.
    '.dagScheduler()" is null',
    "SparkContext was shut down",
)
_MEMORY = ("OutOfMemoryError", "Java heap space", "GC overhead limit")
MORE_MEMORY = (
    "Give it more memory with --driver-memory, for example 4g; on a cluster also "
    "spark.executor.memory."
)


def code_of(error: Exception) -> Code:
    """The exit code for an error that cause() returned."""
    return Code.REFUSED if isinstance(error, _REFUSED) else Code.FAILED


def cause(error: Exception) -> Exception:
    """The DelayQError that caused this error; or else a new one with a sentence that says what
    failed."""
    if isinstance(error, DelayQError):
        return error
    if isinstance(error, DatabaseError):
        return DelayQError(f"The database failed: {type(error).__name__}: {error}".strip())
    texts: list[str] = []
    seen: BaseException | None = error
    while seen is not None:
        texts.append(_text(seen))
        seen = seen.__cause__ or seen.__context__
    text = "\n".join(texts)
    if any(word in text for word in _MEMORY):
        return DelayQError(f"Java ran out of memory. {MORE_MEMORY}")
    if raised := _raised_by_python(text):
        return raised
    if type(error).__module__.startswith("py4j") and any(word in text for word in _GONE):
        return DelayQError(
            f"Java has ended in the middle of the job. If it was killed for its size: {MORE_MEMORY}"
        )
    # Py4J: "An error occurred while calling o12.load.\n: java.io.IOException: ..."
    message = re.sub(
        r"^An error occurred while calling \S+\n?(: )?", "", _SQLSTATE.sub("", texts[0])
    )
    first = _first_line(message)
    return DelayQError(first if first.startswith("[") else f"{type(error).__name__}: {first}")


def _text(error: BaseException) -> str:
    """Py4J asks Java for the text of an error, and Java may be gone."""
    try:
        return str(error)
    except Exception as failed:
        return str(failed)


def _raised_by_python(text: str) -> Exception | None:
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
    kind = getattr(exceptions, name, None) or globals().get(name)
    if isinstance(kind, type) and issubclass(kind, DelayQError):
        with suppress(TypeError):  # some take more than a text
            return kind(message)
        return DelayQError(message)
    return DelayQError(f"{name}: {_first_line(message)}" if message else name)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
