"""Each target, against the real thing."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from django_delayq.integrations.forward import (
    CeleryApp,
    ForwardedMessage,
    Kafka,
    RabbitMQ,
    RedisList,
    RedisStream,
    TargetAway,
    Webhook,
)
from tests.integrations.forward.conftest import Hook, Rabbit, free_port
from tests.servers import Server


def outgoing(count: int) -> list[ForwardedMessage]:
    return [
        ForwardedMessage(f"{n:032x}", "forwards", 1, {"n": n}, f"k{n}", {"trace": "7"})
        for n in range(count)
    ]


NOWHERE = "127.0.0.1:1"
#: The connection of a target ends with its thread, and that of the tests with the process.
SOCKETS_OF_PIKA = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


# Redis


def test_a_stream_has_an_entry_for_each(server: Server, client: Any) -> None:
    key = f"test-{secrets.token_hex(6)}"
    assert RedisStream(server.url, key, most=1_000).send(outgoing(3)) == {}
    entries = [fields for _, fields in client.xrange(key)]
    assert [json.loads(fields[b"body"]) for fields in entries] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert entries[2][b"delayq-id"] == f"{2:032x}".encode()
    assert (entries[2][b"delayq-key"], entries[2][b"trace"]) == (b"k2", b"7")
    client.delete(key)


def test_a_list_has_the_bodies_in_order(server: Server, client: Any) -> None:
    key = f"test-{secrets.token_hex(6)}"
    assert RedisList(server.url, key).send(outgoing(3)) == {}
    assert client.lrange(key, 0, -1) == [b'{"n":0}', b'{"n":1}', b'{"n":2}']
    client.delete(key)


def test_a_redis_that_takes_it_only_in_part_takes_nothing(server: Server, client: Any) -> None:
    key = f"test-{secrets.token_hex(6)}"
    client.set(key, "no stream")
    with pytest.raises(TargetAway, match="WRONGTYPE"):
        RedisStream(server.url, key).send(outgoing(2))
    client.delete(key)


def test_a_redis_that_is_not_there_is_away() -> None:
    with pytest.raises(TargetAway):
        RedisStream(f"redis://{NOWHERE}", "events").send(outgoing(1))


# Webhook


def test_a_webhook_gets_one_signed_array(hook: Hook) -> None:
    assert Webhook(hook.url, "shh").send(outgoing(2)) == {}
    ((headers, body),) = hook.posts
    signed = f"{headers['X-Delayq-Timestamp']}.".encode() + body
    expected = hmac.new(b"shh", signed, hashlib.sha256).hexdigest()
    assert headers["X-Delayq-Signature"] == f"sha256={expected}"
    first, second = json.loads(body)
    assert first == {
        "id": f"{0:032x}",
        "topic": "forwards",
        "attempt": 1,
        "key": "k0",
        "headers": {"trace": "7"},
        "payload": {"n": 0},
    }
    assert second["payload"] == {"n": 1}


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503, 302])
def test_a_webhook_that_says_later_is_away(hook: Hook, status: int) -> None:
    hook.status = status
    with pytest.raises(TargetAway, match=str(status)):
        Webhook(hook.url, "shh").send(outgoing(1))


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_webhook_that_says_no_refuses_the_batch(hook: Hook, status: int) -> None:
    hook.status = status
    refused = Webhook(hook.url, "shh").send(outgoing(2))
    assert refused.keys() == {0, 1}
    assert str(status) in refused[0]


def test_a_webhook_that_is_not_there_is_away() -> None:
    with pytest.raises(TargetAway):
        Webhook(f"http://{NOWHERE}/", "shh").send(outgoing(1))


# RabbitMQ


@pytest.fixture
def queue(rabbit: Rabbit) -> Iterator[tuple[Any, str]]:
    """A channel, and a durable queue."""
    import pika
    from pika.exceptions import AMQPError

    connection = pika.BlockingConnection(pika.URLParameters(rabbit.url))
    channel, name = connection.channel(), f"test-{secrets.token_hex(6)}"
    channel.queue_declare(name, durable=True)
    yield channel, name
    with suppress(AMQPError):  # the server was killed meanwhile
        connection.close()


@pytest.mark.long
@SOCKETS_OF_PIKA
def test_rabbitmq_has_each_message(rabbit: Rabbit, queue: tuple[Any, str]) -> None:
    channel, name = queue
    assert RabbitMQ(rabbit.url, routing_key=name).send(outgoing(3)) == {}
    got = [channel.basic_get(name, auto_ack=True) for _ in range(3)]
    assert [json.loads(body) for _, _, body in got] == [{"n": 0}, {"n": 1}, {"n": 2}]
    properties = got[1][1]
    assert (properties.message_id, properties.delivery_mode) == (f"{1:032x}", 2)
    assert properties.headers["delayq-key"] == "k1"


@pytest.mark.long
@SOCKETS_OF_PIKA
def test_rabbitmq_refuses_what_no_queue_takes(rabbit: Rabbit) -> None:
    refused = RabbitMQ(rabbit.url, routing_key="nobody").send(outgoing(2))
    assert refused == dict.fromkeys([0, 1], "no queue takes 'nobody'")


@pytest.mark.long
@SOCKETS_OF_PIKA
def test_a_rabbitmq_that_was_restarted_is_found_again(
    rabbit: Rabbit, queue: tuple[Any, str]
) -> None:
    _, name = queue
    target = RabbitMQ(rabbit.url, routing_key=name)
    target.send(outgoing(1))
    rabbit.stop()
    with pytest.raises(TargetAway):
        target.send(outgoing(1))
    rabbit.start()
    assert target.send(outgoing(1)) == {}


@SOCKETS_OF_PIKA
def test_a_rabbitmq_that_is_not_there_is_away() -> None:
    with pytest.raises(TargetAway):
        RabbitMQ(f"amqp://guest:guest@{NOWHERE}/", routing_key="x").send(outgoing(1))


# Kafka


def test_kafka_has_each_message() -> None:
    """The brokers of librdkafka, which it has for tests."""
    target = Kafka({"bootstrap.servers": "", "test.mock.num.brokers": 3}, "mails")
    assert target.send(outgoing(100)) == {}
    metadata = target._producer.list_topics("mails", timeout=10)
    assert "mails" in metadata.topics


def test_a_kafka_that_is_not_there_is_away() -> None:
    target = Kafka(
        {
            "bootstrap.servers": f"127.0.0.1:{free_port()}",
            "delivery.timeout.ms": 300,
            "linger.ms": 1,
        },
        "mails",
    )
    with pytest.raises(TargetAway):
        target.send(outgoing(2))


def test_a_message_that_kafka_never_takes_is_refused() -> None:
    target = Kafka(
        {"bootstrap.servers": "", "test.mock.num.brokers": 1, "message.max.bytes": 1_000}, "mails"
    )
    large = ForwardedMessage("f" * 32, "forwards", 1, "x" * 2_000)
    refused = target.send([*outgoing(1), large, *outgoing(1)])
    assert refused.keys() == {1}
    assert "large" in refused[1]


def test_after_a_fatal_error_of_the_producer_another_one_sends() -> None:
    from confluent_kafka import KafkaError, KafkaException

    class Fenced:
        """Any call of such a producer fails for good."""

        def produce(self, *args: Any, **kwargs: Any) -> None:
            raise KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True))

        def flush(self, seconds: float) -> int:
            return 0

    target = Kafka({"bootstrap.servers": "", "test.mock.num.brokers": 1}, "mails")
    target.__dict__["_producer"] = Fenced()
    with pytest.raises(TargetAway, match="fenced"):
        target.send(outgoing(2))
    assert target.send(outgoing(2)) == {}


# Celery


def test_celery_has_a_call_for_each(server: Server, client: Any) -> None:
    from celery import Celery

    name = f"test-{secrets.token_hex(6)}"
    app = Celery("tests", broker=server.url)
    assert CeleryApp(app, "shop.mail", queue=name).send(outgoing(2)) == {}
    calls = [json.loads(raw) for raw in reversed(client.lrange(name, 0, -1))]
    assert [call["headers"]["id"] for call in calls] == [f"{n:032x}" for n in range(2)]
    assert {call["headers"]["task"] for call in calls} == {"shop.mail"}
    client.delete(name)


@pytest.mark.long
def test_a_celery_whose_broker_is_not_there_is_away() -> None:
    from celery import Celery

    app = Celery("tests", broker=f"redis://{NOWHERE}")
    with pytest.raises(TargetAway):
        CeleryApp(app, "shop.mail").send(outgoing(1))
