"""What operators do, and whether they may: every call asks for a permission, acts, and leaves one
OperatorAction.

`user` is a Django user, or whatever has has_perm() and get_username(). The permissions are those of
models.Dashboard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Protocol

from django.db.models import QuerySet
from django.utils import timezone

from ..archive import unarchivable
from ..client import client, moving, topics
from ..client.moving import Moved
from ..core.conf import get_settings
from ..core.exceptions import InvalidMessage, MessageNotFound, NotPermitted, OutcomeUnknown
from ..core.ids import parse_id
from ..models import ArchivedMessage, OperatorAction, UnarchivableEntry
from ..store import get_store
from ..tasks import registry
from ..tasks.handle import Handle, Manner
from ..tasks.options import when
from . import replay

#: Operators see at once what has become of what they do, also where each request is a transaction.
_AT_ONCE = Manner(after_commit=False, on_redis_error="raise")

Arguments = tuple[Sequence[Any], Mapping[str, Any]]


class User(Protocol):
    """Who does it."""

    def has_perm(self, permission: str) -> bool: ...
    def get_username(self) -> str: ...


def require(user: User, *permissions: str) -> None:
    """Raise NotPermitted unless the user has all of these permissions of ours."""
    if missing := [name for name in permissions if not user.has_perm(f"django_delayq.{name}")]:
        raise NotPermitted(
            f"{user.get_username() or 'Nobody'} lacks the permission {', '.join(missing)}."
        )


# Topics


def pause(user: User, topic: str, *, reason: str, until: datetime | None = None) -> None:
    """Hold a topic, at most until then. Raises UnknownTopic, InvalidMessage without a reason or for
    a past instant."""
    require(user, "pause_topic")
    _required(reason)
    words = f"topic {topic}" + (f", until {until.isoformat(' ', 'seconds')}" if until else "")
    with recorded(user, "pause", words, reason):
        topics.pause_topic(topic, by=user.get_username(), reason=reason, until=until)


def resume(user: User, topic: str, *, reason: str = "") -> None:
    """Let a paused topic go on. Raises UnknownTopic."""
    require(user, "pause_topic")
    with recorded(user, "resume", f"topic {topic}", reason):
        topics.resume_topic(topic)


def move(
    user: User,
    topic: str,
    to: str,
    *,
    reason: str = "",
    progress: Callable[[Moved], object] = lambda so_far: None,
) -> Moved:
    """Move all that waits in a topic to another one. Raises UnknownTopic, or InvalidMessage while
    somebody does it."""
    require(user, "bulk_operate", "cancel_message")
    with recorded(user, "move", f"topic {topic}, to topic {to}", reason) as action:

        def look(so_far: Moved) -> None:
            action.count = so_far.moved
            action.save(using=get_settings().database, update_fields=["count"])
            progress(so_far)

        done = moving.move_topic(topic, to, look)
        action.count = done.moved
    return done


# Waiting messages


def cancel(user: User, topic: str, message_id: str, *, reason: str = "") -> None:
    """Take a waiting message back. Raises MessageNotFound or MessageRunning."""
    require(user, "cancel_message")
    message_id = parse_id(message_id).hex()
    with recorded(user, "cancel", f"message {message_id} of {topic}", reason):
        client.cancel(topic, None, message_id, _AT_ONCE)


def run_now(user: User, topic: str, message_id: str, *, reason: str = "") -> None:
    """Make a waiting message due at once. Raises MessageNotFound or MessageRunning."""
    require(user, "cancel_message")
    message_id = parse_id(message_id).hex()
    with recorded(user, "run now", f"message {message_id} of {topic}", reason):
        client.reschedule(topic, None, message_id, "+0", _AT_ONCE)


def reschedule(
    user: User, topic: str, message_id: str, due_at: datetime, *, reason: str = ""
) -> datetime:
    """Give a waiting message another due time, which is returned. Raises MessageNotFound or
    MessageRunning."""
    require(user, "cancel_message")
    message_id = parse_id(message_id).hex()
    words = f"message {message_id} of {topic} to {due_at.isoformat(' ', 'seconds')}"
    with recorded(user, "reschedule", words, reason):
        return client.reschedule(topic, None, message_id, when(None, due_at), _AT_ONCE) or due_at


def edit(
    user: User, topic: str, message_id: str, arguments: Arguments, *, reason: str = ""
) -> None:
    """Give a waiting message other arguments; the rest of it stays. Raises MessageNotFound,
    MessageRunning or InvalidMessage."""
    require(user, "edit_message", "view_payload")
    message_id = parse_id(message_id).hex()
    with recorded(user, "edit", f"message {message_id} of {topic}", reason):
        client.edit(topic, message_id, *arguments)


def schedule(user: User, task: str, arguments: Arguments, **options: Any) -> Handle:
    """Enqueue a message; `options` are those of using(). Raises InvalidMessage, DuplicateMessage
    and what enqueue raises."""
    require(user, "edit_message", "view_payload")
    if task not in registry.by_name:
        raise InvalidMessage(f"No task is named {task!r}.")
    args, kwargs = arguments
    with recorded(user, "schedule", f"task {task}") as action:
        handle = registry.by_name[task].using(**options).enqueue(*args, **kwargs)
        kept = handle.outcome == "kept"
        action.count = 0 if kept else 1
        action.selection = f"message {handle.id} of {handle.topic}, task {task}" + (
            ": it was there" if kept else ""
        )
    return handle


# Dead letters


def replay_one(
    user: User, pk: int, *, arguments: Arguments | None = None, reason: str = ""
) -> ArchivedMessage:
    """Send one dead letter again, with other arguments when they are given. Returns its row, which
    names the new message.

    Raises MessageNotFound, InvalidMessage (it cannot be replayed; says why) or StoreUnavailable.
    """
    require(user, "replay_message", *(("edit_message", "view_payload") if arguments else ()))
    rows, words = _dead_letter(pk)
    edit = None if arguments is None else lambda row: arguments
    with _one(pk, "replayed", words + (", with other arguments" if arguments else "")) as options:
        replay.replay(rows, edit=edit, by=user.get_username(), reason=clean(reason), **options)
    row: ArchivedMessage = rows.get()
    return row


def discard_one(user: User, pk: int, *, reason: str) -> None:
    """Say that one dead letter needs no replay. Raises MessageNotFound or InvalidMessage."""
    require(user, "discard_message")
    _required(reason)
    rows, words = _dead_letter(pk)
    with _one(pk, "discarded", words) as options:
        replay.discard(rows, by=user.get_username(), reason=clean(reason), **options)


# What the archive refused


def archive_again(
    user: User, pk: int | None = None, *, reason: str = ""
) -> unarchivable.ArchivedAgain:
    """Try once more to archive one unarchivable entry, or the oldest MOST_AT_ONCE of all. Raises
    MessageNotFound and DatabaseUnavailable."""
    require(user, "replay_message", *(("bulk_operate",) if pk is None else ()))
    rows: QuerySet[UnarchivableEntry] = UnarchivableEntry.objects.using(get_settings().database)
    if pk is None:
        oldest = rows.order_by("pk").values_list("pk", flat=True)[: unarchivable.MOST_AT_ONCE]
        rows = rows.filter(pk__in=list(oldest))
    else:
        rows = rows.filter(pk=pk)
        if not rows.exists():
            raise MessageNotFound(
                f"There is no unarchivable entry {pk}: it was archived again, or never there."
            )
    return unarchivable.archive_again(rows, by=user.get_username(), reason=clean(reason))


# Workers


def quiet(user: User, worker: str, *, reason: str = "") -> None:
    """A worker claims nothing more, until unquiet(). What it runs goes on. Raises InvalidMessage
    for an unknown one."""
    require(user, "pause_topic")
    if worker not in get_store().workers.heartbeats():
        raise InvalidMessage(f"No worker is named {worker!r}; it may have ended.")
    with recorded(user, "quiet", f"worker {worker}", reason):
        get_store().workers.quiet(worker)


def unquiet(user: User, worker: str, *, reason: str = "") -> None:
    """A worker that was told to be quiet claims again. Raises InvalidMessage when it was not."""
    require(user, "pause_topic")
    if not get_store().workers.is_quiet(worker):
        raise InvalidMessage(f"Worker {worker!r} was not told to be quiet.")
    with recorded(user, "unquiet", f"worker {worker}", reason):
        get_store().workers.unquiet(worker)


# Shared


def _dead_letter(pk: int) -> tuple[QuerySet[ArchivedMessage], str]:
    """The row, as a selection and in the words of its record."""
    rows: QuerySet[ArchivedMessage] = ArchivedMessage.objects.using(get_settings().database).filter(
        pk=pk
    )
    row = rows.only("message_id", "topic", "task").first()
    if row is None:
        raise MessageNotFound(f"The archive has no row {pk}: it was pruned, or never there.")
    return rows, f"dead letter {pk}: message {row.message_id.hex} of {row.topic}, task {row.task}"


@contextmanager
def _one(pk: int, done: str, words: str) -> Iterator[dict[str, Any]]:
    """Around a replay or discard of one row: its record has these words, and when nothing was
    changed no record stays. Gives the progress to pass."""
    seen: list[replay.Replayed] = []

    def look(so_far: replay.Replayed) -> None:
        if not seen:  # the record is there, and nothing is changed yet
            so_far.action.selection = words
            so_far.action.save(using=get_settings().database, update_fields=["selection"])
        seen.append(so_far)

    try:
        yield {"progress": look}
        if not seen[-1].count:
            raise InvalidMessage(
                f"Dead letter {pk} was not {done}: {', '.join(seen[-1].skipped) or 'it is gone'}."
            )
    except Exception:
        if seen and not seen[-1].count:
            seen[-1].action.delete(using=get_settings().database)
        raise


def clean(text: str) -> str:
    """What an operator has written, at most 1,000 characters. Raises InvalidMessage for what no
    database takes."""
    if "\0" in text:
        raise InvalidMessage("The character 0 cannot be stored.")
    return text[:1_000]


def _required(reason: str) -> None:
    if not reason.strip():
        raise InvalidMessage("Say why: a reason is required, for those who look at it later.")


@contextmanager
def recorded(user: User, name: str, selection: str, reason: str = "") -> Iterator[OperatorAction]:
    """The record is there before anything changes, and goes when nothing was changed. Raises
    InvalidMessage."""
    alias = get_settings().database
    words = {"reason": clean(reason), "selection": clean(selection)}
    action = OperatorAction(action=name, operator=user.get_username()[:150], **words)
    action.save(using=alias)
    action.count = 1
    try:
        yield action
    except OutcomeUnknown:
        action.selection += ": the answer was lost, it may have been done"
        action.count = 0
        action.save(using=alias)
        raise
    except Exception:
        action.delete(using=alias)
        raise
    action.finished_at = timezone.now()
    action.save(using=alias)
