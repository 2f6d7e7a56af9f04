"""Makes messages of calls. A call that has to be refused is refused here, before anything is
sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, NamedTuple

import msgspec

from ..core.conf import Settings, get_settings
from ..core.exceptions import BodyTooLarge, InvalidMessage, UnserialisableArguments
from ..core.message import (
    EXPIRES_WITH_DUE,
    LIMITED,
    PACKED,
    Body,
    Record,
    check_json,
    decode_body,
    encode_body,
    encode_header,
    encode_record,
    key_id,
    limit_id,
    new_ids,
    restamped,
    seal_sent,
    with_limit,
    write_body,
)
from ..store.store import Outgoing, base_mode, has_window
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


#: Types of values that JSON carries unchanged, whatever they are, and those of which a value may
#: hold something else: NaN, an object.
_SCALARS = {str, int, bool, NoneType}
_JSON_TYPES = _SCALARS | {float, list, tuple, dict}
_WRONG_ID = (
    "This id is not that of the key, so nobody could find the message by its key. Leave the id or "
    "the key away."
)
#: Most shapes of calls that are remembered for a task.
MOST_SHAPES = 500


class Template:
    """What all messages of one copy of a task share. It is made once: that halves the cost of
    enqueue_many."""

    __slots__ = (
        "code", "durable", "expires", "extra", "fitting", "fixed", "header", "identity",
        "is_limited", "key", "may_exist", "mode", "name", "seals", "settings", "spills", "task",
        "topic", "when",
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
        self.fitting = task.definition.fitting
        self.key = options.key
        self.identity = options.id or (key_id(options.topic, options.key) if options.key else None)
        self.fixed = self.identity is not None
        """The id is given, by a key or by the caller: a message with it may be live already, also
        in an old partition. Else each message gets a fresh id."""
        self.may_exist = options.id is not None or options.key is None
        """The id is explicit, or nobody else makes it: to find the very same record is success."""
        # Without a key there is nothing that a window could hold.
        self.mode = options.mode if self.fixed else base_mode(options.mode)
        self.durable = options.durable
        self.spills = (options.on_redis_error or settings.on_redis_error) == "spill"
        self.seals = bool(settings.encryption_keys)
        self.when, self.expires = options.when, options.expires
        moves = EXPIRES_WITH_DUE if options.expires.is_delay else 0
        self.is_limited = has_limit(task, settings)
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
        if self.seals:
            record = seal_sent(record, identity)
        receipt = self.task.receipt(identity, self.topic, self.name, self.key)
        message = _named(Outgoing, (identity, self.mode, self.when, self.expires, record))
        return _named(Item, (receipt, message, self))

    def record(self, call: Call, extra: Body | None) -> bytes:
        """The record of one call, without its stamp. `extra`: what the body holds beside the
        arguments. Raises InvalidMessage and its subclasses.

        Names of arguments and types of values say of most calls whether they fit: a shape that fits
        is checked in full only once.
        """
        args, kwargs = call.args, call.kwargs
        shape: tuple[Any, ...] = tuple(map(type, args))
        if kwargs:
            shape = (*shape, *kwargs, *map(type, kwargs.values()))
        is_checked = self.fitting.get(shape)
        if is_checked is None:
            args, kwargs = self.task.definition.stored(args, kwargs)
            self._remember(shape)
        content: Body | Sequence[Any] = args
        if extra is not None:
            content = Body(
                list(args), dict(kwargs),
                extra.key, extra.headers, extra.max_attempts, extra.replay_of,
            )  # fmt: skip
        elif kwargs:
            content = Body(list(args), dict(kwargs))
        try:
            if is_checked is False:
                check_json([*args, *kwargs.values()])
            body = write_body(content, self.settings.body_limit)
        except UnserialisableArguments as error:
            raise self._with_parameter(args, kwargs, error) from None
        header = self.header
        if self.is_limited:
            header = with_limit(header, limit_of(self.task, call.args, call.kwargs))
        return encode_record(header, body, self.settings.compress_above)

    def _remember(self, shape: tuple[Any, ...]) -> None:
        """A call of this shape fits, if the types alone say so."""
        types = {part for part in shape if isinstance(part, type)}
        if (
            self.task.definition.annotations.decide_by_type
            and types <= _JSON_TYPES
            and len(self.fitting) < MOST_SHAPES
        ):
            self.fitting[shape] = types <= _SCALARS

    def _with_parameter(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], error: UnserialisableArguments
    ) -> UnserialisableArguments:
        """The same error, with the task and the parameter that it is about."""
        bound = self.task.definition.signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            try:
                encode_body((value,), self.settings.body_limit)
            except UnserialisableArguments as problem:
                return UnserialisableArguments(f"{self.name}, {name}: {problem}")
            except BodyTooLarge:
                continue
        return UnserialisableArguments(f"{self.name}: {error}")


class KeyedTemplate(Template):
    """Of messages with a key or a due time of their own: the task makes the key from the arguments,
    or the call has it."""

    __slots__ = ("keyed",)

    def __init__(self, task: Task[..., Any], settings: Settings) -> None:
        super().__init__(task, settings)
        self.keyed = Template(task, settings)
        """For messages with a key of their own: a call may have only a due time, and a function
        may return None."""
        self.keyed.fixed, self.keyed.may_exist = True, task.options.id is not None
        self.keyed.mode = task.options.mode

    def item(self, call: Call, fresh_id: bytes) -> Item:
        """The message of one call. Raises InvalidMessage and its subclasses, and what the function
        that makes the key raises."""
        key, when = None, self.when
        if isinstance(call, PlacedCall):
            key, when = call.key, call.when or self.when
        if key is None and self.task.options.key_maker is not None:
            self.task.definition.check_arguments(call.args, call.kwargs)
            key = self.task.key_of(call.args, call.kwargs)
        if key is None:
            item = super().item(call, fresh_id)
            return item._replace(message=item.message._replace(when=when))
        identity = key_id(self.topic, key)
        if self.task.options.id not in (None, identity):
            raise InvalidMessage(_WRONG_ID)
        extra = Body(key=key)
        if self.extra is not None:
            extra = msgspec.structs.replace(self.extra, key=key)
        record = self.record(call, extra)
        if self.seals:
            record = seal_sent(record, identity)
        receipt = self.task.receipt(identity, self.topic, self.name, key)
        message = _named(Outgoing, (identity, self.keyed.mode, when, self.expires, record))
        return _named(Item, (receipt, message, self.keyed))


def has_limit(task: Task[..., Any], settings: Settings) -> bool:
    """Whether each message of the task is under a limit. Raises InvalidMessage when the limit could
    not hold."""
    declared = task.definition.options
    if not declared.rule.holds_back:
        return False
    topic = task.options.topic
    if topic != declared.topic:
        raise InvalidMessage(
            f"{task.name} has a limit, which counts in its own topic {declared.topic!r}: it cannot "
            f"be sent to {topic!r}."
        )
    options = settings.topics.get(topic)
    if options is not None and options.partitions > 1:
        raise InvalidMessage(
            f"{task.name} has a limit, and its topic {topic!r} has {options.partitions} "
            "partitions. Give the task a topic with one partition."
        )
    return True


def limit_of(task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """What stands for the limit of a call in its record. Raises InvalidMessage."""
    template = task.definition.options.limit_by
    if template is None:
        return limit_id(task.name)
    bound = task.definition.signature.bind(*args, **kwargs)
    bound.apply_defaults()
    try:
        return limit_id(template.format_map(bound.arguments))
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise InvalidMessage(
            f"{task.name}: limit_by {template!r} cannot be made of these arguments: "
            f"{type(error).__name__}: {error}."
        ) from None


def build(calls: Sequence[Call]) -> list[Item]:
    """One item per call. Raises InvalidMessage and its subclasses; then nothing was sent."""
    settings = get_settings()
    if settings.enqueue_hooks:
        from .enqueue_hooks import with_hooked_headers

        calls = with_hooked_headers(calls, settings.enqueue_hooks)
    items: list[Item] = []
    for call, fresh_id in zip(calls, new_ids(len(calls)), strict=True):
        template: Template | None = call.task.template
        if template is None or template.settings is not settings:
            is_keyed = call.task.options.key_maker or isinstance(call, PlacedCall)
            kind = KeyedTemplate if is_keyed else Template
            template = kind(call.task, settings)
            if not (is_keyed or template.fixed) and has_window(call.task.options.mode):
                raise InvalidMessage(
                    f"{call.task.name} has a window, which is of a key: give the task a key, or "
                    "the call, with using(key=...)."
                )
            call.task.template = template
        items.append(template.item(call, fresh_id))
    return items


def edited(record: bytes, identity: bytes, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """A stored record with other arguments; the rest of it stays. Raises InvalidMessage and its
    subclasses."""
    settings, old = get_settings(), Record.decode(record)
    task = registry.by_code.get(old.task_code)
    if task is None:
        raise InvalidMessage(
            "The task of this message is not declared here, so nobody can tell what it takes."
        )
    body = decode_body(old.flags, old.body, identity)
    body.args, body.kwargs = task.definition.stored(args, kwargs)
    content = write_body(body if body != Body(body.args) else body.args, settings.body_limit)
    flags = old.flags & ~(PACKED | LIMITED)
    header = encode_header(old.task_code, flags, old.ttr_ms)
    if task.definition.options.rule.holds_back:
        header = with_limit(header, limit_of(task, args, kwargs))
    sent = encode_record(header, content, settings.compress_above)
    if settings.encryption_keys:
        sent = seal_sent(sent, identity)
    return restamped(record, sent)
