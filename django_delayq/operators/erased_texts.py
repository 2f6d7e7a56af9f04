"""Texts of operators about a person, and the text that replaces them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from django.db.models import Model

from ..archive.erasure import Person
from ..models import BulkMessage, BulkOperation, OperatorAction, RecurringTask

#: A value of fewer characters is not sought in free texts: it would be found everywhere.
DISTINCT = 5
#: In place of what is taken out of a text.
GAP = "[erased]"
#: The columns in which operators write, or which quote what they chose.
TEXTS: Mapping[type[Model], Sequence[str]] = {
    OperatorAction: ("selection", "reason"),
    BulkOperation: ("selection", "options", "reason", "error"),
    BulkMessage: ("key",),
    RecurringTask: ("pause_reason",),
}


def gaps_of(person: Person) -> dict[str, str]:
    """The texts about the person, each with its replacement."""
    gaps: dict[str, str] = {}
    for value in person.match.values if person.match else ():
        written = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        # As a Selection says it in words, and as JSON.
        gaps[f"{person.argument} = {written}"] = f"{person.argument} = {GAP}"
        named = f'"argument":{_json(person.argument)},"value":'
        for text in (_json(written), msgspec.json.encode(value).decode()):
            gaps[named + text] = named + _json(GAP)
        if len(written) >= DISTINCT:
            gaps[written] = GAP
            gaps[_json(written)] = _json(GAP)
    if person.key_prefix:
        gaps[f"key prefix {person.key_prefix}"] = f"key prefix {GAP}"
        gaps[f'"key_prefix":{_json(person.key_prefix)}'] = f'"key_prefix":{_json(GAP)}'
        if len(person.key_prefix) >= DISTINCT:
            gaps[person.key_prefix] = GAP
    return gaps


def gaps_of_keys(keys: Iterable[str]) -> dict[str, str]:
    """The same for the keys of messages."""
    gaps: dict[str, str] = {}
    for key in keys:
        gaps[f"key {key}"] = f"key {GAP}"
        gaps[f'"key":{_json(key)}'] = f'"key":{_json(GAP)}'
        if len(key) >= DISTINCT:
            gaps[key] = GAP
    return gaps


def with_gaps(text: str, gaps: Mapping[str, str]) -> str:
    """The text with gaps in place of whole words. Longer ones come first: a value may be part of
    its own condition."""
    for needle in sorted(gaps, key=len, reverse=True):
        end = r"(?!\w)" if re.match(r"\w", needle[-1]) else ""
        text = gaps[needle].join(re.split(rf"(?<!\w){re.escape(needle)}{end}", text))
    return text


def _json(text: str) -> str:
    return msgspec.json.encode(text).decode()
