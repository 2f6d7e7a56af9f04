"""The bodies of calls and of answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from ninja import Schema
from pydantic import ConfigDict, Field

from ...core.times import MAX_DELAY_MS

MOST_SECONDS = MAX_DELAY_MS // 1000
#: The name of a task where a message names none.
DEFAULT_TASK = "message"

TopicName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
MessageId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Instant = Annotated[datetime, Field(strict=False)]


# A message that is sent. By msgspec: 500 of them a call


class NewMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message to enqueue. Where a field is left out, the task or the topic decides."""

    task: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$", max_length=200)] = DEFAULT_TASK
    """Name of the task: what the consumer is to do."""
    args: list[Any] = []
    """Positional arguments."""
    kwargs: dict[str, Any] = {}
    """Named arguments."""
    delay: Annotated[float, Meta(ge=0, le=MOST_SECONDS)] | None = None
    """Seconds to wait."""
    due_at: Annotated[str, Meta(extra_json_schema={"format": "date-time"})] | None = None
    """When it is due, with an offset from UTC; instead of `delay`."""
    key: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Business identity inside the topic: at most one live message has it."""
    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")] | None = None
    """A UUID of RFC 9562 in 32 hexadecimal digits. The same message under the same id is stored
    once as long as it is live."""
    on_duplicate: Literal["raise", "keep", "replace", "extend", "earliest"] | None = None
    """What happens when a message with this key is live. `raise` is an error."""
    max_wait: Annotated[float, Meta(ge=1, le=MOST_SECONDS)] | None = None
    """With `replace` or `extend`: seconds after the first enqueue when it is due at the latest."""
    window: Annotated[float, Meta(ge=1, le=366 * 86_400)] | None = None
    """With `keep` or `raise`: seconds for which the key takes no other message, also after the end
    of this one."""
    priority: Literal["high", "normal", "low"] | None = None
    ttr: Annotated[float, Meta(ge=1, le=86_400)] | None = None
    """Seconds of a lease."""
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    """Failed attempts after which it is dead."""
    expires: Annotated[float, Meta(ge=0, le=MOST_SECONDS)] | None = None
    """Seconds after which it is not started any more."""
    headers: dict[str, str] | None = None
    """Small strings for people and tracing."""
    durable: bool | None = None
    """Keep it in the database too, so that the loss of Redis does not lose it."""


class Sent(msgspec.Struct, kw_only=True):
    """The outcome of one message of a call."""

    id: str
    outcome: str
    """`stored`, `kept` (a live message stays), `replaced`, `follows` (comes after the one that
    runs), `outbox` (the database has it until Redis takes it), or in a batch `duplicate`."""
    due_at: str | UnsetType = UNSET


class SentBatch(msgspec.Struct, kw_only=True):
    """What has become of the messages of a batch, in their order."""

    messages: list[Sent]


def json_schema_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema, with its parts in place."""
    schema = msgspec.json.schema(struct, ref_template="#/components/schemas/{name}")
    parts = schema.pop("$defs", {})

    def whole(node: Any) -> Any:
        if isinstance(node, dict):
            name = str(node.get("$ref", "")).rpartition("/")[2]
            node = parts[name] if name else node
            return {key: whole(value) for key, value in node.items()}
        return [whole(item) for item in node] if isinstance(node, list) else node

    return dict(whole(schema))


# All other calls


class Strict(Schema):
    """Values have the types of the schema, and no others are there."""

    model_config = ConfigDict(strict=True, extra="forbid")


class ByName(Strict):
    """Names a message: by its key or by its id."""

    key: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    id: MessageId | None = None


class NewTime(ByName):
    """A message, and when it is to be due: `delay` or `due_at`."""

    delay: Annotated[float, Field(ge=0, le=MOST_SECONDS)] | None = None
    due_at: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None


class Consume(Strict):
    """Which messages to take."""

    topics: Annotated[list[TopicName], Field(min_length=1, max_length=20)]
    """The first one comes first."""
    count: Annotated[int, Field(ge=1, le=100)] = 1
    """Most messages."""
    wait: Annotated[float, Field(ge=0, le=20)] = 0.0
    """Seconds to wait for the first one."""


class Held(Strict):
    """A lease, as consume gave it."""

    lease: Annotated[str, Field(min_length=1, max_length=400, pattern=r"^[A-Za-z0-9_-]+$")]


class Nack(Held):
    """Why the message has failed, and what is to become of it."""

    error: Annotated[str, Field(max_length=2_000)] = ""
    """For people."""
    error_class: Annotated[str, Field(max_length=200, pattern=r"^[\w.:$-]*$")] = ""
    """The kind of the error: dead letters are grouped by it."""
    traceback: Annotated[str, Field(max_length=16_000)] = ""
    delay: Annotated[float, Field(ge=0, le=MOST_SECONDS)] | None = None
    """Seconds to the next attempt. Without it the task's backoff."""
    dead: bool = False
    """Give up at once, whatever attempts are left."""


class Release(Held):
    """Give the message back. The attempt does not count."""

    delay: Annotated[float, Field(ge=0, le=MOST_SECONDS)] | None = None
    """Seconds until it is due. Without it at once."""


class PauseOrder(Strict):
    """Why nothing more may be claimed, and until when."""

    reason: Annotated[str, Field(min_length=1, max_length=1_000)]
    until: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None


class ResumeOrder(Strict):
    """Why it goes on."""

    reason: Annotated[str, Field(max_length=1_000)] = ""


class DeadLetterIds(Strict):
    """Which dead letters of the topic: those with these ids, else the oldest ones."""

    ids: Annotated[list[int], Field(min_length=1, max_length=500)] | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 500


class ReplayOrder(DeadLetterIds):
    """Dead letters to send again."""

    reason: Annotated[str, Field(max_length=1_000)] = ""
    delay: Annotated[float, Field(ge=0, le=MOST_SECONDS)] = 0.0


class DiscardOrder(DeadLetterIds):
    """Dead letters that need no replay."""

    reason: Annotated[str, Field(min_length=1, max_length=1_000)]


# Answers


class MessageFields(Schema):
    """The fields of a waiting message and of a claimed one."""

    id: str
    topic: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    key: str | None = None
    headers: dict[str, str]
    attempt: int
    enqueued_at: datetime
    due_at: datetime


class ShownMessage(MessageFields):
    """A message that waits or is held."""

    state: str
    priority: str
    expires_at: datetime | None = None


class LeasedMessage(MessageFields):
    """A message that the caller holds until `lease_until`, unless it extends the lease."""

    lease: str
    lease_until: datetime
    ttr: float


class Leased(Schema):
    """The claimed messages; empty when nothing was due in time."""

    messages: list[LeasedMessage]


class Settled(Schema):
    """What has become of a message: `acked`, `retried`, `released` or `dead`."""

    id: str
    state: str
    due_in: float | None = None
    """Seconds to the next attempt."""


class LongerLease(Schema):
    """A lease that goes on."""

    id: str
    lease_until: datetime


class Rescheduled(Schema):
    """The new due time."""

    due_at: datetime


class CancelAnswer(Schema):
    """The message is cancelled."""

    state: str


class EndedMessage(Schema):
    """A message of the archive."""

    archived_id: int
    id: str
    topic: str
    task: str
    state: str
    key: str | None = None
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    attempt: int
    reason: str
    error_class: str
    error: str
    finished_at: datetime
    replayed: bool
    discarded: bool


class Waiting(Schema):
    """One page of waiting messages."""

    messages: list[ShownMessage]
    cursor: str | None = None


class DeadLetterPage(Schema):
    """One page of open dead letters, the newest first."""

    messages: list[EndedMessage]
    cursor: str | None = None


class Paused(Schema):
    """Who holds a topic, and why."""

    by: str
    reason: str
    since: datetime | None = None
    until: datetime | None = None


class ShownTopic(Schema):
    """The sizes of a topic."""

    topic: str
    delayed: int
    backlog: int
    leased: int
    finished: int
    lag: float
    next_due_at: datetime | None = None
    paused: Paused | None = None
    counters: dict[str, int]


class TopicList(Schema):
    """The topics that the token sees and that have messages, or had some."""

    topics: list[ShownTopic]
    more: bool


class Totals(Schema):
    """Sums over all topics that the token sees."""

    topics: int
    delayed: int
    backlog: int
    leased: int
    lag: float
    counters: dict[str, int]


class Changed(Schema):
    """How many dead letters were changed, and how many were left as they are, by the reason."""

    count: int
    skipped: dict[str, int]


class Health(Schema):
    """Whether Redis and the database answer."""

    redis: bool
    database: bool


class ProblemDocument(Schema):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
