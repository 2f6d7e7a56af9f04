"""Topics that code declares for a moment only, as before a deploy that renames them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.test import override_settings

from django_delayq.client.handle import Handle
from tests.app.tasks import record


@contextmanager
def declared(*topics: str) -> Iterator[None]:
    """They are declared within."""
    with override_settings(DELAYQ={**settings.DELAYQ, "TOPICS": {name: {} for name in topics}}):
        yield


def leave(topic: str, *values: Any, **options: Any) -> list[Handle]:
    """Messages of a topic that nobody declares any more; each with one of these values."""
    with declared(topic):
        return record.using(topic=topic, **({"delay": 600} | options)).enqueue_many(
            [(value,) for value in values]
        )
