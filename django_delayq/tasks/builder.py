"""Makes messages of calls. Everything that can be refused is refused here, before anything is
sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..core.conf import Settings, get_settings
from ..core.exceptions import BodyTooLarge, InvalidMessage, UnserialisableArguments
from ..core.ids import key_id, new_id, new_ids
from ..core.message import (
    COMPRESSED,
    EXPIRES_WITH_DUE,
    HEADER,
    VERSION,
    Body,
    Record,
    compress,
    decode_body,
    encode_body,
    encode_record,
    restamped,
)
from ..store.store import Outgoing
from . import registry
from .handle import Handle
from .options import OnDuplicate, Options
from .registry import check_topic
from .task import Call, DelayedTask


class Item(NamedTuple):
    """One message on its way: its handle and what the enqueue script takes."""

    handle: Handle
    message: Outgoing
    template: Template


class Template:
    """What all messages of one copy of a task share. Made once: it halves the cost of
    enqueue_many."""

    __slots__ = (
        "code", "durable", "extra", "flags", "header", "identity", "key", "may_exist", "mode",
        "name", "names", "settings", "spills", "task", "topic", "ttr_ms", "when_expires",
    )  # fmt: skip

    def __init__(self, task: DelayedTask[..., Any], settings: Settings) -> None:
        options = task.options
        self.settings = settings
        self.task = task
        self.topic = check_topic(options.topic)
        self.name = task.name
        self.code = task.definition.code
        self.names = {self.code: self.name}
        self.key = options.key
        self.identity = options.id or (key_id(options.topic, options.key) if options.key else None)
        if options.id and options.key and options.id != key_id(options.topic, options.key):
            raise InvalidMessage(
                "This id is not that of the key: a message enqueued so could not be found by its "
                "key."
            )
        self.may_exist = options.id is not None or options.key is None
        """An explicit id, or one that nobody else makes: finding the very same record is success.
        """
        self.mode: OnDuplicate = options.on_duplicate
        self.durable = options.durable
        self.spills = (options.on_redis_error or settings.on_redis_error) == "spill"
        self.when_expires = (options.when, options.expires)
        _check_durable(options, settings)
        self.flags = (
            options.priority
            | (EXPIRES_WITH_DUE if options.expires[:1] == "+" else 0)
            | VERSION << 4
        )
        self.ttr_ms = task.ttr_ms
        self.header = HEADER.pack(self.flags, self.ttr_ms, self.code)
        extra = Body(
            key=options.key, headers=dict(options.headers), max_attempts=task.max_attempts_of_call
        )
        extra.replay_of = options.replay_of
        self.extra = extra if extra != Body() else None
        """What stands beside the arguments in the body; None lets the body be a plain array."""

    @property
    def fixed(self) -> bool:
        """Whether the id is given, by a key or by the caller: it may be live already, also in an
        old partition."""
        return self.identity is not None

    def item(self, call: Call, fresh_id: bytes) -> Item:
        """The message of one call. Raises InvalidMessage and its subclasses."""
        self.task.definition.check_arguments(call.args, call.kwargs)
        try:
            body = encode_body(self._content(call.args, call.kwargs), self.settings.body_limit)
        except UnserialisableArguments as error:
            raise self._which(call, error) from None
        if len(body) <= self.settings.compress_above:
            record = self.header + body
        else:
            record = compress(self.flags, self.ttr_ms, self.code, body)
        identity = self.identity or fresh_id
        when, expires = self.when_expires
        handle = Handle(identity, self.topic, self.name, self.key)
        return Item(handle, (identity, self.mode, when, expires, record), self)

    def _which(self, call: Call, error: UnserialisableArguments) -> UnserialisableArguments:
        """The same error, with the task and the parameter that it is about."""
        for name, value in self.task.definition.signature.bind(
            *call.args, **call.kwargs
        ).arguments.items():
            try:
                encode_body((value,), self.settings.body_limit)
            except UnserialisableArguments as problem:
                return UnserialisableArguments(f"{self.name}, {name}: {problem}")
            except BodyTooLarge:
                continue
        return UnserialisableArguments(f"{self.name}: {error}")

    def _content(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Body | Sequence[Any]:
        extra = self.extra
        if extra is None:
            return Body(list(args), dict(kwargs)) if kwargs else args
        return Body(
            list(args), dict(kwargs), extra.key, extra.headers, extra.max_attempts, extra.replay_of
        )


def _check_durable(options: Options, settings: Settings) -> None:
    """A durable message is a row in the database of the outbox, and is nowhere before that
    commits."""
    if options.durable and options.database not in (None, settings.database):
        raise InvalidMessage(
            f'A durable message is written to DELAYQ["DATABASE"], {settings.database!r}, not to '
            f"{options.database!r}."
        )
    if options.durable and options.after_commit is False:
        raise InvalidMessage(
            "A durable message belongs to its transaction: after_commit=False contradicts that."
        )


def build(calls: Sequence[Call]) -> list[Item]:
    """One item per call. Raises InvalidMessage and its subclasses; then nothing was sent."""
    settings = get_settings()
    return [
        _template(call.task, settings).item(call, fresh_id)
        for call, fresh_id in zip(calls, new_ids(len(calls)), strict=True)
    ]


def build_one(call: Call) -> Item:
    """The item of one call. Raises InvalidMessage and its subclasses."""
    return _template(call.task, get_settings()).item(call, new_id())


def edited(record: bytes, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """A stored record with other arguments; the rest of it stays. Raises InvalidMessage and its
    subclasses."""
    settings, old = get_settings(), Record.decode(record)
    task = registry.by_code.get(old.task_code)
    if task is None:
        raise InvalidMessage(
            "The task of this message is not declared here, so nobody can tell what it takes."
        )
    task.definition.check_arguments(args, kwargs)
    body = decode_body(old.flags, old.body)
    body.args, body.kwargs = list(args), dict(kwargs)
    content = encode_body(body if body != Body(body.args) else tuple(args), settings.body_limit)
    flags, above = old.flags & ~COMPRESSED, settings.compress_above
    sent = encode_record(
        old.task_code, content, flags=flags, ttr_ms=old.ttr_ms, compress_above=above
    )
    return restamped(record, sent)


def _template(task: DelayedTask[..., Any], settings: Settings) -> Template:
    """The template of this copy of a task, kept with it until the settings change."""
    kept: Template | None = task.template
    if kept is None or kept.settings is not settings:
        kept = task.template = Template(task, settings)
    return kept
