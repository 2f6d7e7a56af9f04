"""What operators do, and whether they may: every call checks a permission, acts, and leaves one
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

from ..archive import unarchivable
from ..client import changes, moving, topics
from ..client.decorator import DelayedTask
from ..client.handle import Handle
from ..client.moving import Moved
from ..core.exceptions import InvalidMessage, MessageNotFound, NotPermitted
from ..core.message import parse_id
from ..core.times import When
from ..models import (
    ArchivedMessage,
    BulkKind,
    BulkOperation,
    OperatorAction,
    UnarchivableEntry,
)
from ..store import get_store
from ..tasks import registry
from ..tasks.arguments import Arguments
from ..tasks.options import ChangeOptions
from .bulk_run import run_in_place
from .topic_permission import check_permitted, is_visible, permitted_topics

#: Operators see the result at once, also where each request is a transaction.
_AT_ONCE = ChangeOptions(after_commit=False, on_redis_error="raise")


class User(Protocol):
    """The person who acts."""

    def has_perm(self, permission: str) -> bool: ...
    def get_username(self) -> str: ...


def require(user: User, *permissions: str, topic: str = "") -> None:
    """Raise NotPermitted unless the user has all of these permissions of ours, on this topic when
    one is given. Raises UnknownTopic for a topic that the user may not see."""
    if missing := [name for name in permissions if not user.has_perm(f"django_delayq.{name}")]:
        raise NotPermitted(
            f"{user.get_username() or 'Nobody'} lacks the permission {', '.join(missing)}."
        )
    if topic:
        check_permitted(user, topic, *permissions)


# Topics


def pause(user: User, topic: str, *, reason: str, until: datetime | None = None) -> None:
    """Hold a topic, at most until then. Raises UnknownTopic, InvalidMessage without a reason or for
    a past instant."""
    require(user, "pause_topic", topic=topic)
    check_reason(reason)
    words = f"until {until.isoformat(' ', 'seconds')}" if until else ""
    with _recorded(user, "pause", reason, topic=topic, selection=words):
        topics.pause_topic(topic, by=user.get_username(), reason=reason, until=until)


def resume(user: User, topic: str, *, reason: str = "") -> None:
    """Let a paused topic go on; one that is not paused leaves no record. Raises UnknownTopic."""
    require(user, "pause_topic", topic=topic)
    if topics.topic_stats(topic).paused is None:
        return
    with _recorded(user, "resume", reason, topic=topic):
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
    another process moves it."""
    for name in (topic, to):
        require(user, "bulk_operate", "cancel_message", topic=name)
    with OperatorAction.recorded(
        "move", user.get_username(), clean(reason), topic=topic, selection=f"to topic {to}"
    ) as action:

        def count(so_far: Moved) -> None:
            action.add(so_far.moved - action.count)
            action.count = so_far.moved
            progress(so_far)

        done = moving.move_topic(topic, to, count)
        count(done)
    return done


# Waiting messages


def cancel(user: User, topic: str, message_id: str, *, reason: str = "") -> None:
    """Take a waiting message back. Raises MessageNotFound or MessageRunning."""
    require(user, "cancel_message", topic=topic)
    with _recorded(user, "cancel", reason, topic=topic, message_id=message_id):
        changes.cancel(topic, None, message_id, _AT_ONCE)


def cancel_running(user: User, topic: str, message_id: str, *, reason: str = "") -> None:
    """Cancel a message at once, also while it runs. Raises MessageNotFound."""
    require(user, "cancel_message", topic=topic)
    with _recorded(user, "cancel running", reason, topic=topic, message_id=message_id):
        changes.cancel(topic, None, message_id, _AT_ONCE._replace(running=True))


def run_now(user: User, topic: str, message_id: str, *, reason: str = "") -> None:
    """Make a waiting message due at once. Raises MessageNotFound or MessageRunning."""
    require(user, "cancel_message", topic=topic)
    with _recorded(user, "run now", reason, topic=topic, message_id=message_id):
        changes.reschedule(topic, None, message_id, When.after(0), _AT_ONCE)


def reschedule(
    user: User, topic: str, message_id: str, due_at: datetime, *, reason: str = ""
) -> datetime:
    """Give a waiting message another due time, which is returned. Raises MessageNotFound or
    MessageRunning."""
    require(user, "cancel_message", topic=topic)
    words = f"to {due_at.isoformat(' ', 'seconds')}"
    with _recorded(user, "reschedule", reason, topic=topic, message_id=message_id, selection=words):
        when = When.given(None, due_at)
        return changes.reschedule(topic, None, message_id, when, _AT_ONCE) or due_at


def edit(
    user: User, topic: str, message_id: str, arguments: Arguments, *, reason: str = ""
) -> None:
    """Give a waiting message other arguments; the rest of it stays. Raises MessageNotFound,
    MessageRunning or InvalidMessage."""
    require(user, "edit_message", "view_payload", topic=topic)
    with _recorded(user, "edit", reason, topic=topic, message_id=message_id):
        changes.edit(topic, message_id, *arguments)


def schedule(user: User, task: str, arguments: Arguments, **options: Any) -> Handle:
    """Enqueue a message; `options` are those of using(). Raises InvalidMessage, DuplicateMessage
    and what enqueue raises."""
    require(user, "edit_message", "view_payload")
    declared = registry.by_name.get(task)
    if declared is None:
        raise InvalidMessage(f"No task is named {task!r}.")
    require(user, "edit_message", "view_payload", topic=declared.options.topic)
    args, kwargs = arguments
    with OperatorAction.recorded(
        "schedule", user.get_username(), selection=f"task {task}"
    ) as action:
        delayed = DelayedTask[..., Any](declared.definition, declared.options)
        handle = delayed.using(**options).enqueue(*args, **kwargs)
        kept = handle.outcome == "kept"
        OperatorAction.objects.filter(pk=action.pk).update(
            count=0 if kept else 1,
            topic=handle.topic,
            message_id=handle.id,
            selection=f"task {task}" + (": a message with this key was live" if kept else ""),
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
    needed = "replay_message", *(("edit_message", "view_payload") if arguments else ())
    require(user, *needed)
    return _change_one(
        user,
        needed,
        BulkKind.REPLAY,
        pk,
        ", with other arguments" if arguments else "",
        edit=None if arguments is None else lambda row: arguments,
        by=user.get_username(),
        reason=clean(reason),
    )


def discard_one(user: User, pk: int, *, reason: str) -> None:
    """Say that one dead letter needs no replay. Raises MessageNotFound or InvalidMessage."""
    require(user, "discard_message")
    check_reason(reason)
    needed = ("discard_message",)
    _change_one(user, needed, BulkKind.DISCARD, pk, by=user.get_username(), reason=clean(reason))


def _change_one(
    user: User, needed: Sequence[str], kind: str, pk: int, words: str = "", **options: Any
) -> ArchivedMessage:
    """Replay or discard one row, and return it. When nothing was changed, no record stays."""
    rows: QuerySet[ArchivedMessage] = ArchivedMessage.objects.filter(pk=pk).order_by("pk")
    row = rows.only("message_id", "topic", "task").first()
    if row is None or not is_visible(user, row.topic):
        raise MessageNotFound(f"The archive has no row {pk}: it was pruned, or never there.")
    check_permitted(user, row.topic, *needed)
    done = run_in_place(
        kind,
        rows,
        selection=f"task {row.task}{words}",
        topic=row.topic,
        message_id=row.message_id,
        archived_id=pk,
        **options,
    )
    # Nobody has to see the progress of one message.
    BulkOperation.objects.filter(actions=done.action.pk).delete()
    if not done.count:
        done.action.delete(using=rows.db)
        why = ", ".join(done.skipped) or "it is gone"
        raise InvalidMessage(f"Dead letter {pk} was not {kind}ed: {why}.")
    return rows.get()


# What the archive refused


def archive_again(
    user: User, pk: int | None = None, *, reason: str = ""
) -> unarchivable.ArchivedAgain:
    """Try once more to archive one unarchivable entry, or the oldest MOST_AT_ONCE of all. Raises
    MessageNotFound and DatabaseUnavailable."""
    require(user, "replay_message", *(("bulk_operate",) if pk is None else ()))
    rows: QuerySet[UnarchivableEntry] = UnarchivableEntry.objects.all()
    if (topics := permitted_topics(user, "replay_message")) is not None:
        rows = rows.filter(topic__in=topics)
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
    beat = get_store().workers.heartbeats().get(worker)
    seen = permitted_topics(user)
    if beat is None or (seen is not None and seen.isdisjoint(beat.get("topics", ()))):
        raise InvalidMessage(f"No worker is named {worker!r}; it may have ended.")
    _check_worker(user, beat)
    with _recorded(user, "quiet", reason, selection=f"worker {worker}"):
        get_store().workers.quiet(worker)


def unquiet(user: User, worker: str, *, reason: str = "") -> None:
    """A worker that was told to be quiet claims again. Raises InvalidMessage when it was not."""
    require(user, "pause_topic")
    if not get_store().workers.is_quiet(worker):
        raise InvalidMessage(f"Worker {worker!r} was not told to be quiet.")
    _check_worker(user, get_store().workers.heartbeats().get(worker))
    with _recorded(user, "unquiet", reason, selection=f"worker {worker}"):
        get_store().workers.unquiet(worker)


def _check_worker(user: User, beat: Mapping[str, Any] | None) -> None:
    """Raise NotPermitted unless the user may pause all that the worker serves."""
    topics = permitted_topics(user, "pause_topic")
    if topics is not None and (beat is None or not topics.issuperset(beat.get("topics", ()))):
        raise NotPermitted("This worker also serves topics that you may not pause.")


# Shared


def clean(text: str) -> str:
    """What an operator has written, at most 1,000 characters. Raises InvalidMessage for what no
    database takes."""
    if "\0" in text:
        raise InvalidMessage("The character 0 cannot be stored.")
    return text[:1_000]


def check_reason(reason: str) -> None:
    """Raise InvalidMessage when there is none."""
    if not reason.strip():
        raise InvalidMessage("Write a reason for those who look at it later.")


@contextmanager
def _recorded(user: User, name: str, reason: str, **fields: Any) -> Iterator[None]:
    """Store an action that changes one thing. Raises InvalidMessage for a `message_id` that is not
    the id of a message."""
    if "message_id" in fields:
        fields["message_id"] = parse_id(fields["message_id"]).hex()
    with OperatorAction.recorded(name, user.get_username(), clean(reason), **fields) as action:
        yield
        action.add(1)
