"""Kafka as a target (extra `kafka`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from .forwarding import ForwardedMessage, TargetAway

#: Seconds after which a message that no broker has confirmed has failed.
TIMEOUT = 10.0


class Kafka:
    """Produces into a topic of Kafka, idempotently and with `acks=all`. The key of a message is
    that of the record, else its id. `config`: for confluent_kafka.Producer, at least
    `bootstrap.servers`."""

    def __init__(self, config: Mapping[str, Any], topic: str) -> None:
        self._config = dict(config)
        self._topic = topic

    @cached_property
    def _producer(self) -> Any:
        from confluent_kafka import Producer

        ours = {"enable.idempotence": True, "delivery.timeout.ms": int(TIMEOUT * 1000)}
        return Producer({**ours, **self._config})

    def send(self, messages: Sequence[ForwardedMessage]) -> Mapping[int, str]:
        """All at once; returns when each was confirmed or has failed."""
        from confluent_kafka import KafkaError, KafkaException

        for_good = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD)
        confirmed: list[int] = []
        errors: dict[int, Any] = {}

        def note(place: int, error: Any, _: Any) -> None:
            if error is None:
                confirmed.append(place)
            else:
                errors[place] = error

        producer = self._producer
        for place, message in enumerate(messages):
            try:
                producer.produce(
                    self._topic,
                    message.body,
                    key=(message.key or message.id).encode(),
                    headers=[(name, text.encode()) for name, text in message.properties.items()],
                    on_delivery=partial(note, place),
                )
            except KafkaException as error:
                errors[place] = error.args[0]
            except BufferError:  # its buffer is full: what is left waits for the next try
                break
        producer.flush(2 * TIMEOUT)
        if any(each.fatal() for each in errors.values()):
            self.__dict__.pop("_producer", None)  # it sends nothing any more: the next one will
        refused = {place: str(each) for place, each in errors.items() if each.code() in for_good}
        if len(confirmed) + len(refused) < len(messages):
            why = next((str(each) for each in errors.values()), "no broker has confirmed")
            raise TargetAway(why, confirmed)
        return refused
