"""Every error this package raises, and the three a task raises to steer its own message."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured, PermissionDenied


class DelayQError(Exception):
    """Something went wrong in django_delayq."""

    enqueued: Sequence[Any] = ()
    """Handles of the messages that the same enqueue_many had already sent."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or self.meaning())

    @classmethod
    def meaning(cls) -> str:
        """What the error says by default: its docstring, on one line."""
        return " ".join((cls.__doc__ or "").split())


# Configuration


class ConfigurationError(DelayQError, ImproperlyConfigured):
    """The DELAYQ setting or a task's declaration is wrong."""


class InvalidTask(ConfigurationError):
    """A task is a function of a module: def or async def."""


class DuplicateTask(ConfigurationError):
    """Two tasks have the same name."""


# Bad input: refused at the door, nothing was sent


class InvalidMessage(DelayQError, ValueError):
    """The message cannot be accepted as it is."""


class InvalidDelay(InvalidMessage):
    """A delay is a timedelta or a number of seconds from 0 to ten years."""


class NaiveDatetime(InvalidMessage):
    """A datetime needs a time zone: use django.utils.timezone, for example timezone.now()."""


class InvalidName(InvalidMessage):
    """A name may hold A-Z a-z 0-9 _ . - and has 1 to 64 characters."""


class InvalidKey(InvalidMessage):
    """A key is a string of 1 to 256 characters, none of them NUL."""


class InvalidArguments(InvalidMessage):
    """The arguments do not fit the signature of the task."""

    def __init__(self, message: str = "", *, parameter: str = "") -> None:
        super().__init__(message)
        self.parameter = parameter
        """Name of the one parameter that it is about, if there is one."""


class UnserialisableArguments(InvalidMessage):
    """Arguments are JSON: None, bool, int, finite float, str, list, tuple and dict with str
    keys."""


class BodyTooLarge(InvalidMessage):
    """The arguments are larger than DELAYQ['BODY_LIMIT']."""


class UnknownTopic(InvalidMessage):
    """No task and no entry of DELAYQ['TOPICS'] declares this topic."""


class NotPermitted(DelayQError, PermissionDenied):
    """The user lacks the permission that this needs."""


# The state of a message forbids the call


class DuplicateMessage(DelayQError):
    """A message with this key is live. Pass on_duplicate="keep" or "replace", or cancel it
    first."""

    def __init__(self, message: str = "", *, keys: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.keys = tuple(keys)


class NotWaiting(DelayQError):
    """The message does not wait: see MessageNotFound and MessageRunning."""


class MessageNotFound(NotWaiting):
    """No live message has this id or key: it was never enqueued, or it has already ended."""


class MessageRunning(NotWaiting):
    """A worker holds this message: it can no longer be cancelled or rescheduled."""


class MessageChanged(DelayQError):
    """Another caller has changed this message at the same moment. Read it again, then decide."""


class LeaseLost(DelayQError):
    """The lease of this run has ended: another worker may run the message, or it was cancelled.
    Stop here: what the run returns is refused."""


class TransactionLeftOpen(DelayQError):
    """The task has begun an atomic block and has not ended it: what it wrote there is undone."""


class MiddlewareFailed(DelayQError):
    """A middleware failed before or after the task: see the cause. The attempt has failed, and the
    message is tried again."""


class UndecodableMessage(DelayQError):
    """The stored record is not one that this version can read."""


class NewerRecord(UndecodableMessage):
    """The stored record was written by a newer version. A worker of that version can read it."""


class UndecryptableMessage(UndecodableMessage):
    """The body of the message cannot be decrypted. It is kept as it is."""


class MissingKey(UndecryptableMessage):
    """The key that encrypts the body is not in DELAYQ["ENCRYPTION_KEYS"] here. A worker that has it
    can run the message."""


# How an isolated run fails: each counts as a failed attempt of the task


class IsolatedRunFailed(DelayQError):
    """The child process of an isolated run could not run the task, or the run has failed there: see
    the subclasses."""

    stack = ""
    """Where the child process was when it was killed, as text."""


class ChildDied(IsolatedRunFailed):
    """The child process ended before the task did: by a signal, by os._exit(), or for lack of
    memory."""


class MemoryLimitExceeded(IsolatedRunFailed):
    """The child process took more memory than the task's memory_limit, and was killed."""


class RuntimeLimitExceeded(IsolatedRunFailed):
    """The run took longer than the task's max_runtime, and its child process was killed."""


class TaskFailedInChild(IsolatedRunFailed):
    """The task has raised an error in its child process. Only text comes from there."""

    def __init__(self, message: str = "", *, error_class: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.error_class = error_class
        """Full name of the class of the task's exception."""
        self.traceback = traceback
        """Its traceback in the child process, as text."""

    def __str__(self) -> str:
        return f"{self.error_class}: {super().__str__()}\n{self.traceback}"


# What wait() and result() raise


class NoResult(DelayQError):
    """The message has no result to return: see the subclasses. This class itself: it has ended, and
    nobody keeps how (its topic is not archived, or its row was pruned), or it was never sent."""


class MessageFailed(NoResult):
    """The message is dead."""

    def __init__(self, message: str = "", *, error_class: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.error_class = error_class
        """Full name of the class of the task's last exception. Empty when the task raised none:
        then the message says why."""
        self.traceback = traceback
        """The traceback of the last run, as text."""


class MessageCancelled(NoResult):
    """The message was cancelled, before it ran or while it ran."""


class MessageExpired(NoResult):
    """The message was not started before its own expires_at."""


class WaitTimeout(NoResult, TimeoutError):
    """The message has not ended within the timeout. It goes on."""


# Redis


class StoreError(DelayQError):
    """Redis could not execute a call. This class itself stands for an unexpected answer: a bug, or
    a server that is not supported. Its subclasses say whether the call was executed."""

    def __init__(self, message: str = "", *, problem: str = "") -> None:
        super().__init__(message)
        self.problem = problem or str(self)
        """What is wrong with Redis, without what became of the call."""

    @property
    def is_bug(self) -> bool:
        """True if Redis answers and refuses only this call, so that the next call may succeed."""
        return type(self) is StoreError


class StoreUnavailable(StoreError):
    """Redis did not execute the call. Nothing was changed; calling again is safe."""


class StoreReadOnly(StoreUnavailable):
    """Redis is a read-only replica, or cannot write to its disk. Connect to the primary, or repair
    the disk."""


class StoreFull(StoreUnavailable):
    """Redis is at maxmemory and takes no new message. Workers go on. Raise maxmemory, or add
    workers."""


class StoreLoading(StoreUnavailable):
    """Redis is still loading its data set. Call again in a moment."""


class StoreMoved(StoreUnavailable):
    """The store has moved to another Redis, and this process does not know where: nothing was
    changed. Name the new one in DELAYQ['REDIS'], and start the process again."""


class MoveRefused(DelayQError):
    """The store cannot be moved so. Nothing was changed."""


class MoveUndone(StoreUnavailable):
    """Carrying everything over took longer than it may. The old store serves again, and nothing was
    lost."""


class TooFewReplicas(StoreUnavailable):
    """Fewer replicas of Redis keep up than DELAYQ['WAIT_REPLICAS']: nothing was sent."""


class StoreForbidden(StoreUnavailable):
    """The Redis user may not run this command or touch this key. docs/how-to/redis-user.md
    lists the rights that it needs."""


class OutcomeUnknown(StoreError):
    """The connection broke before the answer came: Redis may have executed the call or not."""


class LoadLost(StoreError):
    """Redis has lost messages of a load that it had taken, as after a failover, a power cut or a
    FLUSHALL."""


class NotReplicated(OutcomeUnknown):
    """The messages are stored, but too few replicas have them (WAIT_REPLICAS): a failover may lose
    them."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer
        """The answer of the call."""


class EnqueueUnknown(OutcomeUnknown):
    """Nobody knows whether the messages were stored. Enqueue them again with using(id=...) and the
    ids of this error: that is safe."""

    def __init__(self, message: str = "", *, ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.ids = tuple(ids)


class FenceChanged(InvalidMessage):
    """A load of this name has added other messages. Give this load another name."""


# SQL


class ArchiveUnavailable(DelayQError):
    """The database did not take rows of the archive. Nothing is lost: the finished streams keep
    them."""

    def __init__(self, error: Exception, answers: bool) -> None:
        super().__init__(f"{type(error).__name__}: {error}".strip())
        self.answers = answers
        """True if the database answers: then the rows, a lock or a missing migration are to
        blame."""


class DatabaseUnavailable(DelayQError):
    """The database cannot be reached. Rows that wait in it wait until it is back."""


class ArchiveBusy(DelayQError):
    """Long transactions hold the table of the archive, so it was not changed. Run it again when
    they have ended: pg_stat_activity shows them."""


class PartitioningRefused(DelayQError):
    """The archive stays as it is: something speaks against its partitioning."""


# Raised by a task about its own message


class ControlFlow(Exception):
    """Base of the exceptions by which a task decides about its own message."""


class Retry(ControlFlow):
    """Run the message again after `delay` (timedelta or seconds; None: the task's backoff). Counts
    as a failed attempt, so without attempts left the message is dead."""

    def __init__(self, message: str = "", *, delay: timedelta | float | None = None) -> None:
        super().__init__(message)
        self.delay = delay


class Snooze(ControlFlow):
    """Run the message again after `delay` (timedelta or seconds). Does not count as an attempt."""

    def __init__(self, delay: timedelta | float) -> None:
        super().__init__()
        self.delay = delay


class Reject(ControlFlow):
    """Give up at once. The message becomes a dead letter with this reason. All operators may read
    the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class InvalidResult(Reject):
    """The return value of a task with result=True is no JSON, or larger than BODY_LIMIT. The
    message becomes a dead letter at once: the task has run, and another run would return the
    same."""
