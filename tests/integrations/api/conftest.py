"""Callers of the API, and a topic that is consumed over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client

from django_delayq.integrations.api.bearer import bearer
from django_delayq.management.cli import ShellUser
from django_delayq.operators.api_tokens import TokenOptions, create_token
from django_delayq.store.store import RedisStore

ALL = ("send", "consume", "inspect", "operate")
Callers = Callable[..., "Caller"]


class Caller:
    """A program with a token. Answers have `.status_code` and `.json()`."""

    def __init__(self, token: str, public_id: str = "") -> None:
        self.token, self.public_id = token, public_id
        self.client = Client(headers={"Authorization": f"Bearer {token}"})

    def get(self, address: str, **query: Any) -> Any:
        return self.client.get(f"/delayq/api{address}", query)

    def post(self, address: str, _body: Any = None, _headers: Any = None, **fields: Any) -> Any:
        body = json.dumps(fields) if _body is None else _body
        kind = "application/x-ndjson" if address.endswith("/batch") else "application/json"
        return self.client.post(
            f"/delayq/api{address}", body, content_type=kind, headers=_headers or {}
        )

    def send(self, topic: str = "mail", **fields: Any) -> str:
        answer = self.post(f"/topics/{topic}/messages", **fields)
        assert answer.status_code == 201, answer.content
        return str(answer.json()["id"])

    def consume(self, *topics: str, **fields: Any) -> list[dict[str, Any]]:
        answer = self.post("/consume", topics=topics or ("mail",), **fields)
        assert answer.status_code == 200, answer.content
        messages: list[dict[str, Any]] = answer.json()["messages"]
        return messages

    def next(self, *topics: str) -> dict[str, Any]:
        """The next message, which comes at once."""
        (message,) = self.consume(*topics, wait=5)
        return message


@pytest.fixture
def api(settings: Any, delayq: RedisStore, transactional_db: None) -> Iterator[RedisStore]:
    settings.ROOT_URLCONF = "tests.integrations.api.urls"
    settings.DELAYQ = {**settings.DELAYQ, "API_TOPICS": ["mail", "acme.*", "umbrella.*"]}
    bearer.forget()
    from django_delayq.store import get_store

    yield get_store()
    bearer.forget()


@pytest.fixture
def caller_with(api: RedisStore) -> Callers:
    """Makes a caller with these rights: all, unless others are named."""

    def make(*rights: str, **options: Any) -> Caller:
        row, token = create_token(
            ShellUser("tests"),
            TokenOptions(**{"name": "program", "rights": rights or ALL, **options}),
        )
        return Caller(token, row.public_id)

    return make


@pytest.fixture
def caller(caller_with: Callers) -> Caller:
    return caller_with()
