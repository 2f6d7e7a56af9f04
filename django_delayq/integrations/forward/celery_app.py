"""A Celery application as a target (extra `celery`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .forwarding import ForwardedMessage, TargetAway


class CeleryApp:
    """Sends each message as a call of a task that a worker of Celery knows by its name. The payload
    is its one argument, and the id of the message that of the call. `options`: for
    `app.send_task`, as `queue`."""

    def __init__(self, app: Any, task: str, **options: Any) -> None:
        self._app = app
        self._task = task
        self._options = options

    def send(self, messages: Sequence[ForwardedMessage]) -> Mapping[int, str]:
        """One after the other, by one connection."""
        done = 0
        try:
            with self._app.producer_or_acquire() as producer:
                for message in messages:
                    self._app.send_task(
                        self._task,
                        args=[message.payload],
                        task_id=message.id,
                        headers=message.properties,
                        producer=producer,
                        retry=False,
                        **self._options,
                    )
                    done += 1
        except Exception as error:  # each transport of kombu has errors of its own
            raise TargetAway(f"{type(error).__name__}: {error}", range(done)) from error
        return {}
