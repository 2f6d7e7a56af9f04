"""Messages that are forwarded while the other side goes away and comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.acceptance.forward_tasks import forward
from tests.acceptance.harness import Figure, Queue
from tests.acceptance.process import ROOT
from tests.integrations.forward.conftest import Hook, Rabbit, rabbit
from tests.servers import launcher

__all__ = ["rabbit"]

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

#: Seconds for which the other side is away (DELAYQ_TEST_AWAY=60), and before and after that.
AWAY, AROUND = float(os.environ.get("DELAYQ_TEST_AWAY", "10")), 4.0
EACH_SECOND = 500


class RedisSide:
    """A stream on a server of its own, which stands still while it is away."""

    kind = "redis"

    def __init__(self) -> None:
        self._server = launcher("redis7")
        self._server.start()
        self.address = f"{self.kind} {self._server.url}"

    def leave(self) -> None:
        os.kill(self._server.primaries[0].pid, signal.SIGSTOP)

    def come_back(self) -> None:
        os.kill(self._server.primaries[0].pid, signal.SIGCONT)

    def arrived(self) -> list[str]:
        client = self._server.client()
        entries = client.xrange("arrived")
        client.close()
        return [fields[b"delayq-id"].decode() for _, fields in entries]

    def end(self) -> None:
        self._server.stop()


class ListSide(RedisSide):
    """A list on such a server. It has the bodies only: the only argument of each message, which is
    its number."""

    kind = "list"

    def arrived(self) -> list[str]:
        client = self._server.client()
        bodies = client.lrange("arrived", 0, -1)
        client.close()
        return [body.decode() for body in bodies]


class CelerySide(RedisSide):
    """The queue of a Celery whose broker is such a server."""

    kind = "celery"

    def arrived(self) -> list[str]:
        client = self._server.client()
        calls = [json.loads(raw) for raw in client.lrange("arrived", 0, -1)]
        client.close()
        return [call["headers"]["id"] for call in calls]


class KafkaSide:
    """A topic on a broker of librdkafka in a process of its own, which stands still while it is
    away. Its records are there as long as the process is."""

    def __init__(self) -> None:
        self._broker = subprocess.Popen(
            [sys.executable, "-m", "tests.acceptance.mock_kafka"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._broker.stdout is not None
        self._servers = self._broker.stdout.readline().strip()
        self.address = f"kafka {self._servers}"

    def leave(self) -> None:
        self._broker.send_signal(signal.SIGSTOP)

    def come_back(self) -> None:
        self._broker.send_signal(signal.SIGCONT)

    def arrived(self) -> list[str]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {"bootstrap.servers": self._servers, "group.id": "t", "enable.partition.eof": True}
        )
        partitions = list(consumer.list_topics("arrived", timeout=10).topics["arrived"].partitions)
        consumer.assign([TopicPartition("arrived", number, 0) for number in partitions])
        ids, ended = list[str](), 0
        while ended < len(partitions):
            record = consumer.poll(10)
            assert record is not None, "the broker does not answer"
            if record.error():
                ended += 1
            else:
                ids.append(dict(record.headers())["delayq-id"].decode())
        consumer.close()
        return ids

    def end(self) -> None:
        self._broker.kill()
        self._broker.wait(10)
        assert self._broker.stdout is not None
        self._broker.stdout.close()


class HookSide:
    """A web server that is not there while it is away."""

    def __init__(self) -> None:
        self._posts: list[tuple[Any, bytes]] = []
        self._port = 0
        self.come_back()
        self.address = f"webhook {self._hook.url}"

    def come_back(self) -> None:
        self._hook = Hook(self._port)
        self._port, self._hook.posts = self._hook.server_port, self._posts
        threading.Thread(target=self._hook.serve_forever, daemon=True).start()

    def leave(self) -> None:
        self._hook.shutdown()
        self._hook.server_close()

    def arrived(self) -> list[str]:
        return [message["id"] for _, body in self._posts for message in json.loads(body)]

    end = leave


class RabbitSide:
    """A durable queue of a server that is killed, and started with its data."""

    def __init__(self, rabbit: Rabbit) -> None:
        self._rabbit = rabbit
        self.address = f"rabbitmq {rabbit.url}"
        self.leave, self.come_back = rabbit.stop, rabbit.start
        with self._channel() as channel:
            channel.queue_declare("arrived", durable=True)

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        import pika

        connection = pika.BlockingConnection(pika.URLParameters(self._rabbit.url))
        yield connection.channel()
        connection.close()

    def arrived(self) -> list[str]:
        ids: list[str] = []
        with self._channel() as channel:
            # Not basic_get: it takes a round trip for each.
            for method, properties, _ in channel.consume("arrived", inactivity_timeout=5):
                if method is None:
                    break
                ids.append(properties.message_id)
        return ids

    def end(self) -> None:
        """The fixture ends it."""


_SIDES: dict[str, Callable[[], Any]] = {
    "redis": RedisSide,
    "list": ListSide,
    "webhook": HookSide,
    "kafka": KafkaSide,
    "celery": CelerySide,
}


@pytest.mark.timeout(200 + 8 * AWAY)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pika's sockets
@pytest.mark.parametrize("kind", ["redis", "list", "webhook", "rabbitmq", "kafka", "celery"])
def test_nothing_is_lost_while_the_other_side_is_away(
    queue: Queue, figure: Figure, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "rabbitmq":
        side: Any = RabbitSide(request.getfixturevalue("rabbit"))
    else:
        side = _SIDES[kind]()
    queue.worker("--topics", "forwards", "--concurrency", "2", DELAYQ_TEST_TARGET=side.address)
    handles: list[Any] = []
    _produce(handles, AROUND)
    side.leave()
    _produce(handles, AWAY)
    side.come_back()
    back_at = time.monotonic()
    _produce(handles, AROUND)
    queue.wait_until_drained("forwards", seconds=90 + 4 * AWAY)  # Celery sends one by one
    took, counts = time.monotonic() - back_at, Counter(side.arrived())
    side.end()
    if kind == "list":
        sent = {str(number) for number in range(len(handles))}
    else:
        sent = {handle.id for handle in handles}
    twice = sum(count - 1 for count in counts.values())
    figure(
        f"{kind}: {len(handles)} messages, away for {AWAY:.0f} s; lost "
        f"{len(sent - counts.keys())}, twice {twice}; all had arrived "
        f"{took:.1f} s after it came back"
    )
    assert counts.keys() == sent
    # Two threads had a batch each in flight; a frozen server takes what it was sent when it wakes.
    assert twice <= 2 * 500 * 2
    assert queue.acked_once(handles, "forwards")


def _produce(handles: list[Any], seconds: float) -> None:
    """Add messages, each with its number."""
    before, began = len(handles), time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        wanted = before + int(passed * EACH_SECOND)
        if wanted > len(handles):
            handles += forward.enqueue_many([(n,) for n in range(len(handles), wanted)])
        time.sleep(0.05)
