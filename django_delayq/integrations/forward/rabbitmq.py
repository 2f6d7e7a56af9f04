"""RabbitMQ as a target (extra `rabbitmq`)."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from .forwarding import ForwardedMessage, TargetAway

#: Seconds in which the server has to answer.
TIMEOUT = 10.0


class RabbitMQ:
    """Publishes to an exchange with publisher confirms, as persistent messages. A message that no
    queue takes is refused. `url`: amqp://user:password@host:5672/vhost."""

    def __init__(self, url: str, *, exchange: str = "", routing_key: str) -> None:
        self._url = url
        self._exchange = exchange
        self._routing_key = routing_key
        self._local = threading.local()

    def send(self, messages: Sequence[ForwardedMessage]) -> Mapping[int, str]:
        """One after the other, each confirmed."""
        import pika
        from pika.exceptions import AMQPError, NackError, UnroutableError

        refused: dict[int, str] = {}
        place = 0
        try:
            channel = self._channel()
            for place, message in enumerate(messages):
                properties = pika.BasicProperties(
                    message_id=message.id,
                    content_type="application/json",
                    delivery_mode=2,
                    headers=message.properties,
                )
                try:
                    channel.basic_publish(
                        self._exchange,
                        self._routing_key,
                        message.body,
                        properties,
                        mandatory=True,
                    )
                except UnroutableError:
                    refused[place] = f"no queue takes {self._routing_key!r}"
                except NackError:
                    refused[place] = "the server has not taken it"
        except (AMQPError, OSError) as error:
            self._close()
            done = [each for each in range(place) if each not in refused]
            raise TargetAway(f"{type(error).__name__}: {error}", done) from error
        return refused

    def _channel(self) -> Any:
        """That of this thread: pika's connections belong to one."""
        import pika

        channel = getattr(self._local, "channel", None)
        if channel is None or not channel.is_open:
            parameters = pika.URLParameters(self._url)
            parameters.socket_timeout = parameters.blocked_connection_timeout = TIMEOUT
            parameters.stack_timeout = 2 * TIMEOUT
            # A server that stands still is noticed by its missing heartbeats.
            parameters.heartbeat = int(TIMEOUT)
            channel = pika.BlockingConnection(parameters).channel()
            channel.confirm_delivery()
            self._local.channel = channel
        return channel

    def _close(self) -> None:
        channel, self._local.channel = getattr(self._local, "channel", None), None
        if channel is not None:
            with suppress(Exception):
                channel.connection.close()
