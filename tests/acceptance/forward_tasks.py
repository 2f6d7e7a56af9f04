"""A task whose messages are forwarded. A worker has it when a test says so."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property

from django_delayq.integrations.forward import (
    CeleryApp,
    ForwardedMessage,
    ForwardTarget,
    Kafka,
    RabbitMQ,
    RedisList,
    RedisStream,
    Webhook,
    forwarded_task,
)


class Told:
    """The target that the environment of the worker names: kind and address."""

    @cached_property
    def _target(self) -> ForwardTarget:
        kind, _, url = os.environ["DELAYQ_TEST_TARGET"].partition(" ")
        if kind == "redis":
            return RedisStream(url, "arrived")
        if kind == "list":
            return RedisList(url, "arrived")
        if kind == "rabbitmq":
            return RabbitMQ(url, routing_key="arrived")
        if kind == "kafka":
            return Kafka({"bootstrap.servers": url}, "arrived")
        if kind == "celery":
            from celery import Celery

            app = Celery("shop", broker=url)
            app.conf.broker_transport_options = {"socket_timeout": 5}
            return CeleryApp(app, "shop.mail", queue="arrived")
        return Webhook(url, "shh", timeout=5)

    def send(self, messages: Sequence[ForwardedMessage]) -> Mapping[int, str]:
        return self._target.send(messages)


forward = forwarded_task(
    "tests.acceptance.forward_tasks.forward", Told(), topic="forwards", max_attempts=1
)
