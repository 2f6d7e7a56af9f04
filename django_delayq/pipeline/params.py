"""The parameters of a job: where things are, and references to secrets, but no secret."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..core.conf import Settings, parse_settings
from ..core.exceptions import ConfigurationError
from .errors import Code, Refused

T = TypeVar("T")
Tell = Callable[[str], object]
"""Takes a line about the progress of a job."""

#: Names of settings whose values are secret.
SECRET_NAME = r"(?i)secret|password|passwd|token|access[.]?key|dsn"


def ignore(line: str) -> None:
    """A Tell for callers that do not want to know."""


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`env:NAME` or `file:/path`, resolved where it is used: on the driver and on each executor."""

    ref: str = ""

    def __post_init__(self) -> None:
        if self.ref and self.ref.partition(":")[0] not in (
            "env",
            "file",
        ):  # not repeated: it may be the secret itself
            raise ConfigurationError(
                "A secret is referred to as env:NAME or file:/path, and never given itself."
            )

    def __bool__(self) -> bool:
        return bool(self.ref)

    def resolve(self) -> str:
        """The secret. Raises ConfigurationError that names the reference, never the secret."""
        kind, _, name = self.ref.partition(":")
        if not self.ref:
            return ""
        if kind == "env" and name in os.environ:
            return os.environ[name]
        if kind == "file":
            try:
                return Path(name).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise ConfigurationError(
                    f"The secret {self.ref} cannot be read: {error.strerror}."
                ) from None
        raise ConfigurationError(
            f"The secret {self.ref!r} is not there: use env:NAME (set on every executor) or "
            f"file:/path."
        )


class Database(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The database of the archive, as Django knows it."""

    engine: str
    name: str
    table: str
    """Of the archive."""
    outbox: str = ""
    """Table of the outbox."""
    host: str = ""
    port: str = ""
    user: str = ""
    password: Secret = Secret()
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    zone: str = "UTC"
    """Zone of the times that are stored without one."""

    @property
    def vendor(self) -> str:
        """postgresql, mysql, sqlite or another one's."""
        return self.engine.rpartition(".")[2].removesuffix("3")


class Redis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The server of the queue."""

    url: Secret = Secret()
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """DELAYQ without REDIS: prefix, topics, limits, timeouts; durations in seconds."""

    def settings(self) -> Settings:
        """For a RedisStore. They hold the secret: never to be logged, pickled or put into a plan.

        Raises ConfigurationError.
        """
        return parse_settings({**self.options, "REDIS": self.url.resolve()})


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it, as JSON on disk for `python -m django_delayq.pipeline JOB --params FILE`."""

    database: Database
    redis: Redis = Redis()
    lake: str = ""
    """Directory."""
    since: str = ""
    """ISO 8601, UTC."""
    until: str = ""
    topic: str = ""
    """Only this one; empty: all."""
    dry_run: bool = False
    """Say what would be done, and change nothing."""
    job: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The options of this job: see options.py."""

    def options(self, kind: type[T]) -> T:
        """The options of a job. Raises Refused."""
        try:
            return msgspec.convert(self.job, kind)
        except msgspec.ValidationError as error:
            raise Refused(f"The options of the job are not what it takes: {error}") from error

    def period(self) -> tuple[datetime | None, datetime | None]:
        """`since` and `until`, aware. Raises Refused for naive ones and for what is no time."""
        return _instant("since", self.since), _instant("until", self.until)

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def decode(cls, raw: bytes) -> Params:
        """From encode(). Raises ConfigurationError."""
        try:
            return msgspec.json.decode(raw, type=cls)
        except msgspec.MsgspecError as error:
            raise ConfigurationError(f"The parameters cannot be read: {error}") from error


class Report(msgspec.Struct, kw_only=True):
    """The result of a job."""

    job: str
    code: Code = Code.DONE
    figures: dict[str, Any] = msgspec.field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()
    """A table, if there is one."""
    problems: list[str] = msgspec.field(default_factory=list)
    """Sentences that a person should read."""


def _instant(name: str, text: str) -> datetime | None:
    if not text:
        return None
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise Refused(
            f"{name} is {text!r}: use ISO 8601 with an offset, such as 2026-01-31T09:00:00Z."
        ) from None
    if when.tzinfo is None:
        raise Refused(
            f"{name} is {text!r}, which may be any of 24 instants: add its offset, such as Z or "
            f"+01:00."
        )
    return when.astimezone(timezone.utc)
