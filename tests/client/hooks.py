"""Functions for ENQUEUE_HOOKS that tests name by their paths."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

request_id: ContextVar[str] = ContextVar("hooked_request_id", default="")
called: list[tuple[str, str]] = []


def with_request_id(topic: str, task: str) -> dict[str, str]:
    called.append((topic, task))
    return {"request-id": request_id.get(), "by": "first"}


def silent(topic: str, task: str) -> None:
    """Has nothing to add."""


def second(topic: str, task: str) -> dict[str, str]:
    return {"by": "second"}


def wrong(topic: str, task: str) -> Any:
    return {"number": 1}


def fails(topic: str, task: str) -> Any:
    raise LookupError("no request")
