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
    """Publishes a batch of persistent messages to an exchange in one transaction of AMQP, which is
    committed when the queues have them. A message that no queue takes is refused. `url`:
    amqp://user:password@host:5672/vhost.

    pika waits for each single publisher confirm: that takes twenty times as long.
    """

    def __init__(self, url: str, *, exchange: str = "", routing_key: str) -> None:
        self._url = url
        self._exchange = exchange
        self._routing_key = routing_key
        self._local = threading.local()

    def send(self, messages: Sequence[ForwardedMessage]) -> Mapping[int, str]:
        """All of them, or none."""
        import pika
        from pika.exceptions import AMQPError

        try:
            channel, returned = self._channel()
            for message in messages:
                properties = pika.BasicProperties(
                    message_id=message.id,
                    content_type="application/json",
                    delivery_mode=2,
                    headers=message.properties,
                )
                channel.basic_publish(
                    self._exchange, self._routing_key, message.body, properties, mandatory=True
                )
            channel.tx_commit()
            channel.connection.process_data_events()  # what was returned came before the commit
        except (AMQPError, OSError) as error:
            channel, self._local.channel = getattr(self._local, "channel", None), None
            if channel is not None:
                with suppress(Exception):
                    channel.connection.close()
            raise TargetAway(f"{type(error).__name__}: {error}") from error
        ids = {properties.message_id for properties in returned}
        returned.clear()
        why = f"no queue takes {self._routing_key!r}"
        return {place: why for place, message in enumerate(messages) if message.id in ids}

    def _channel(self) -> tuple[Any, list[Any]]:
        """That of this thread, and what was returned on it: pika's connections belong to one."""
        import pika

        channel = getattr(self._local, "channel", None)
        if channel is None or not channel.is_open:
            parameters = pika.URLParameters(self._url)
            parameters.socket_timeout = parameters.blocked_connection_timeout = TIMEOUT
            parameters.stack_timeout = 2 * TIMEOUT
            # A server that stands still is noticed by its missing heartbeats.
            parameters.heartbeat = int(TIMEOUT)
            channel = pika.BlockingConnection(parameters).channel()
            channel.tx_select()
            returned: list[Any] = []
            channel.add_on_return_callback(
                lambda _, __, properties, ___: returned.append(properties)
            )
            self._local.channel, self._local.returned = channel, returned
        return channel, self._local.returned
