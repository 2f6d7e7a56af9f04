"""Makes messages of calls. A call that has to be refused is refused here, before anything is
sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from ..core.conf import Settings, get_settings
from ..core.exceptions import BodyTooLarge, InvalidMessage, UnserialisableArguments
from ..core.message import (
    COMPRESSED,
    EXPIRES_WITH_DUE,
    Body,
    Record,
    decode_body,
    encode_body,
    encode_header,
    encode_record,
    key_id,
    new_ids,
    restamped,
)
from ..store.store import Outgoing
from . import registry
from .registry import check_topic
from .task import Call, PlacedCall, Receipt, Task


class Item(NamedTuple):
    """A message on its way: its receipt, what the enqueue script takes, and what it shares with the
    others of its task."""

    receipt: Receipt
    message: Outgoing
    template: Template

    @property
    def address(self) -> tuple[str, bytes]:
        """Topic and id."""
        return self.template.topic, self.message.id


#: Makes a NamedTuple in a third of the time of its own call. Each message of a bulk needs two.
_named = tuple.__new__


_WRONG_ID = (
    "This id is not that of the key, so nobody could find the message by its key. Leave the id or "
    "the key away."
)


class Template:
    """What all messages of one copy of a task share. It is made once: that halves the cost of
    enqueue_many."""

    __slots__ = (
        "code", "durable", "expires", "extra", "fixed", "header", "identity", "key",
        "may_exist", "mode", "name", "positional", "settings", "spills", "task", "topic", "when",
    )  # fmt: skip

    def __init__(self, task: Task[..., Any], settings: Settings) -> None:
        options = task.options
        # Options that contradict each other are refused.
        if options.id and options.key and options.id != key_id(options.topic, options.key):
            raise InvalidMessage(_WRONG_ID)
        if options.durable and options.database not in (None, settings.database):
            raise InvalidMessage(
                f'A durable message is written to DELAYQ["DATABASE"], {settings.database!r}, not '
                f"to {options.database!r}."
            )
        if options.durable and options.after_commit is False:
            raise InvalidMessage(
                "A durable message belongs to its transaction: after_commit=False contradicts "
                "that. Leave one of both away."
            )
        self.settings = settings
        self.task = task
        self.topic = check_topic(options.topic)
        self.name = task.name
        self.code = task.definition.code
        self.positional = task.definition.positional
        self.key = options.key
        self.identity = options.id or (key_id(options.topic, options.key) if options.key else None)
        self.fixed = self.identity is not None
        """The id is given, by a key or by the caller: a message with it may be live already, also
        in an old partition. Else each message gets a fresh id."""
        self.may_exist = options.id is not None or options.key is None
        """The id is explicit, or nobody else makes it: to find the very same record is success."""
        self.mode = options.mode
        self.durable = options.durable
        self.spills = (options.on_redis_error or settings.on_redis_error) == "spill"
        self.when, self.expires = options.when, options.expires
        moves = EXPIRES_WITH_DUE if options.expires.is_delay else 0
        self.header = encode_header(self.code, options.priority | moves, task.ttr_ms)
        extra = Body(
            key=options.key,
            headers=dict(options.headers),
            max_attempts=task.max_attempts_of_call,
            replay_of=options.replay_of,
        )
        self.extra = extra if extra != Body() else None
        """What the body holds beside the arguments. With None the body may be a plain array."""

    def item(self, call: Call, fresh_id: bytes) -> Item:
        """The message of one call. Raises InvalidMessage and its subclasses."""
        record = self.record(call, self.extra)
        identity = self.identity or fresh_id
        receipt = self.task.receipt(identity, self.topic, self.name, self.key)
        message = _named(Outgoing, (identity, self.mode, self.when, self.expires, record))
        return _named(Item, (receipt, message, self))

    def record(self, call: Call, extra: Body | None) -> bytes:
        """The record of one call, without its stamp. `extra`: what the body holds beside the
        arguments. Raises InvalidMessage and its subclasses."""
        args, kwargs = call.args, call.kwargs
        if kwargs or len(args) not in self.positional:
            self.task.definition.check_arguments(args, kwargs)
        content: Body | Sequence[Any] = args
        if extra is not None:
            content = Body(
                list(args), dict(kwargs),
                extra.key, extra.headers, extra.max_attempts, extra.replay_of,
            )  # fmt: skip
        elif kwargs:
            content = Body(list(args), dict(kwargs))
        try:
            body = encode_body(content, self.settings.body_limit)
        except UnserialisableArguments as error:
            raise self._with_parameter(call, error) from None
        return encode_record(self.header, body, self.settings.compress_above)

    def _with_parameter(
        self, call: Call, error: UnserialisableArguments
    ) -> UnserialisableArguments:
        """The same error, with the task and the parameter that it is about."""
        bound = self.task.definition.signature.bind(*call.args, **call.kwargs)
        for name, value in bound.arguments.items():
            try:
                encode_body((value,), self.settings.body_limit)
            except UnserialisableArguments as problem:
                return UnserialisableArguments(f"{self.name}, {name}: {problem}")
            except BodyTooLarge:
                continue
        return UnserialisableArguments(f"{self.name}: {error}")


class PlacedTemplate(Template):
    """Of calls with a key or a due time of their own."""

    __slots__ = ("keyed",)

    def __init__(self, task: Task[..., Any], settings: Settings) -> None:
        super().__init__(task, settings)
        self.keyed = Template(task, settings)
        """For calls with a key of their own."""
        self.keyed.fixed, self.keyed.may_exist = True, task.options.id is not None

    def item(self, call: Call, fresh_id: bytes) -> Item:
        """The message of one call. Raises InvalidMessage and its subclasses."""
        placed = cast(PlacedCall, call)
        key, when = placed.key, placed.when or self.when
        if key is None:
            item = super().item(call, fresh_id)
            return item._replace(message=item.message._replace(when=when))
        identity = key_id(self.topic, key)
        if self.task.options.id not in (None, identity):
            raise InvalidMessage(_WRONG_ID)
        extra = self.extra
        extra = Body(key=key) if extra is None else msgspec.structs.replace(extra, key=key)
        record = self.record(call, extra)
        receipt = self.task.receipt(identity, self.topic, self.name, key)
        message = _named(Outgoing, (identity, self.mode, when, self.expires, record))
        return _named(Item, (receipt, message, self.keyed))


def build(calls: Sequence[Call]) -> list[Item]:
    """One item per call. Raises InvalidMessage and its subclasses; then nothing was sent."""
    settings = get_settings()
    items: list[Item] = []
    for call, fresh_id in zip(calls, new_ids(len(calls)), strict=True):
        template: Template | None = call.task.template
        if template is None or template.settings is not settings:
            kind = PlacedTemplate if isinstance(call, PlacedCall) else Template
            template = call.task.template = kind(call.task, settings)
        items.append(template.item(call, fresh_id))
    return items


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
    header = encode_header(old.task_code, old.flags & ~COMPRESSED, old.ttr_ms)
    return restamped(record, encode_record(header, content, settings.compress_above))
