"""Sends due messages to another place: a Redis stream or list, a webhook, RabbitMQ, Kafka, Celery.

Nothing here is imported before a project names it, and each target imports its library when it
connects. May import all but admin and management. Start with forwarding.py.
"""

from __future__ import annotations

from .celery_app import CeleryApp
from .forwarding import ForwardedMessage, ForwardTarget, TargetAway, forwarded_task
from .kafka import Kafka
from .rabbitmq import RabbitMQ
from .redis_server import RedisList, RedisStream
from .webhook import Webhook

__all__ = [
    "CeleryApp",
    "Kafka",
    "ForwardedMessage",
    "RabbitMQ",
    "RedisList",
    "RedisStream",
    "ForwardTarget",
    "TargetAway",
    "Webhook",
    "forwarded_task",
]
