"""How tests order a bulk operation: as an operator does, by the form."""

from __future__ import annotations

import html
import re
from typing import Any

from django.http import HttpResponse
from django.test import Client

from django_delayq.models import BulkOperation
from django_delayq.operators.bulk_runner import BulkRunner
from tests.admin.browser import address
from tests.hands import Hands


def form_of(client: Client, query: str) -> dict[str, str]:
    """What the browser would send of the form at bulk/new/?query."""
    response = client.get(f"{address('bulk_new')}?{query}")
    assert response.status_code == 200
    text = response.content.decode()
    given = re.findall(r'<input type="hidden" name="(kind|query|token)" value="([^"]*)"', text)
    return {name: html.unescape(value) for name, value in given}


def send(client: Client, form: dict[str, str], **more: Any) -> HttpResponse:
    """Press the button."""
    response: Any = client.post(address("bulk_start"), {**form, **more})
    return response


def order(client: Client, query: str, **more: Any) -> BulkOperation:
    """The whole way from the address to the stored operation."""
    response = send(client, form_of(client, query), **{"reason": "it is mended", **more})
    assert response.status_code == 302, text_of(response)
    operation = BulkOperation.objects.latest("pk")
    assert response["Location"] == address("bulk", pk=operation.pk)
    return operation


def text_of(response: Any) -> str:
    """What is read, without markup."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", "", response.content.decode())))


def page_of(client: Client, operation: BulkOperation) -> str:
    return text_of(client.get(address("bulk", pk=operation.pk)))


def run(hands: Hands) -> None:
    """A worker does what waits."""
    BulkRunner(hands.store, "host:1:bulk").run_once()
