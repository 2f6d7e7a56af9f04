"""The rules of DELAYQ["ALERTS"]: one dict in, one AlertRule out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .exceptions import ConfigurationError, InvalidDelay
from .times import duration_ms

#: What a rule can be about, and the unit of its limit; None: it has no limit.
ALERT_KINDS: Mapping[str, str | None] = {
    "backlog": "messages",
    "lag": "duration",
    "dead": "messages",
    "dead_letters": "messages",
    "unserved": None,
    "saturated": "duration",
    "worker_gone": None,
    "paused": None,
    "archive_lag": "duration",
    "archive_limit": "percent",
    "unarchivable": "messages",
    "outbox": "messages",
    "relay_lag": "duration",
    "audit": "findings",
    "redis": None,
}
#: Kinds whose limit has a default.
_FIRST = {"dead": 1, "audit": 1, "unarchivable": 1, "archive_limit": 80}
#: Kinds that hold for a moment at each deploy or failover: seconds before they fire.
_AFTER = {"unserved": 60.0, "redis": 60.0}
#: Kinds that are not about topics.
_WITHOUT_TOPICS = ("audit", "redis", "relay_lag", "unarchivable")
_OPTIONS = ("kind", "limit", "topics", "after", "to", "name")
_NAME = re.compile(r"[\w .:,-]{1,100}\Z")
_MAIL = re.compile(r"[^\s@/]+@[^\s@/]+\Z")
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+\Z")


@dataclass(frozen=True, kw_only=True)
class AlertRule:
    """The rules of alerts: the condition, and who gets the message."""

    name: str
    """Alerts belong to the rule of this name, also when its limit changes."""
    kind: str
    """One of ALERT_KINDS."""
    limit: float
    """It holds from this value on: messages, findings, percent, or seconds."""
    topics: tuple[str, ...]
    """Only these; empty: all."""
    after: float
    """Seconds for which it has to hold before the alert begins, and not to hold before it ends."""
    to: tuple[str, ...]
    """Mail addresses, URLs, and dotted paths of functions."""


def is_mail(target: str) -> bool:
    """Whether a target is a mail address."""
    return bool(_MAIL.match(target))


def is_url(target: str) -> bool:
    """Whether a target is the URL of a webhook."""
    return target.startswith(("http://", "https://"))


def checked_alerts(value: Any, where: str) -> tuple[AlertRule, ...]:
    """The rules. Raises ConfigurationError that names the entry and what is wrong with it."""
    if not isinstance(value, list | tuple):
        raise ConfigurationError(f"{where} must be a list of dicts, not {value!r}.")
    rules = tuple(_rule(raw, f"{where}[{index}]") for index, raw in enumerate(value))
    names = [rule.name for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(
                f'{where} has {names.count(name)} rules {name!r}. Give each a "name" of its own.'
            )
    return rules


def _rule(raw: Any, where: str) -> AlertRule:
    if not isinstance(raw, Mapping):
        raise ConfigurationError(f"{where} must be a dict, not {raw!r}.")
    if wrong := [str(option) for option in raw if option not in _OPTIONS]:
        near = difflib.get_close_matches(wrong[0], _OPTIONS, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigurationError(f"{where} has no option {wrong[0]}.{hint}")
    kind = str(raw.get("kind"))
    if kind not in ALERT_KINDS:
        raise ConfigurationError(
            f'{where}["kind"] is {raw.get("kind")!r}: use one of {", ".join(ALERT_KINDS)}.'
        )
    topics = _texts(raw.get("topics", ()), f'{where}["topics"]')
    if topics and kind in _WITHOUT_TOPICS:
        raise ConfigurationError(f"{where}: the kind {kind} is not about topics.")
    name = raw.get("name", " ".join((kind, *topics))[:100])
    if not isinstance(name, str) or not _NAME.match(name):
        raise ConfigurationError(
            f'{where}["name"] is {name!r}: use at most 100 letters, digits, spaces and ".:,-_".'
        )
    return AlertRule(
        name=name,
        kind=kind,
        limit=_limit(kind, raw, where),
        topics=topics,
        after=_seconds(raw.get("after", _AFTER.get(kind, 0)), f'{where}["after"]'),
        to=_targets(raw.get("to", ()), f'{where}["to"]'),
    )


def _targets(value: Any, where: str) -> tuple[str, ...]:
    targets = _texts(value, where)
    if not targets:
        raise ConfigurationError(
            f"{where} is missing: name mail addresses, URLs or dotted paths of functions."
        )
    for target in targets:
        if not (is_mail(target) or is_url(target) or _PATH.match(target)) or len(target) > 500:
            raise ConfigurationError(
                f"{where} has {target!r}: it is no mail address, no URL and no dotted path."
            )
    return targets


def _limit(kind: str, raw: Mapping[str, Any], where: str) -> float:
    unit, where = ALERT_KINDS[kind], f'{where}["limit"]'
    if unit is None:
        if "limit" in raw:
            raise ConfigurationError(f"{where}: the kind {kind} has no limit.")
        return 1
    limit = raw.get("limit", _FIRST.get(kind))
    if unit == "duration":
        seconds = _seconds(limit, where)
        if not seconds:
            raise ConfigurationError(f"{where} must be longer than 0.")
        return seconds
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ConfigurationError(f"{where} must be a whole number of {unit} from 1, not {limit!r}.")
    return limit


def _seconds(value: Any, where: str) -> float:
    try:
        return duration_ms(value, where) / 1000
    except InvalidDelay as error:
        raise ConfigurationError(str(error)) from None


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise ConfigurationError(f"{where} must be a text or a list of texts, not {value!r}.")
    return tuple(dict.fromkeys(value))
