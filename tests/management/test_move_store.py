"""manage.py delayq move-store: its checks, its record, and what callers see of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq.core.conf import get_settings
from django_delayq.models import OperatorAction, OutboxMessage
from django_delayq.store import get_store
from django_delayq.store.connection import mask
from django_delayq.store.moving import mover as module
from django_delayq.store.moving.mover import StoreMover
from django_delayq.store.store import RedisStore
from django_delayq.worker.worker import Worker, WorkerOptions
from tests.app.tasks import record as note
from tests.hands import DEFAULT, Hands
from tests.servers import Server, launcher

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def new_server(server_kind: str) -> Iterator[Server]:
    with launcher(server_kind) as new:
        yield new


@pytest.fixture
def known(settings: Any, new_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of the new server, which all processes know. For usefixtures(): it comes before
    `delayq`."""
    monkeypatch.setattr(module, "LATE_S", 0.0)
    with new_server.client() as client:
        client.flushall()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS_NEXT": new_server.url}
    return new_server.url


def run(*args: str) -> str:
    out = StringIO()
    call_command("delayq", "move-store", *args, stdout=out, stderr=StringIO())
    return out.getvalue()


def test_the_store_moves_and_the_record_says_so(known: str, hands: Hands) -> None:
    note.enqueue(1)
    note.using(delay=3600).enqueue(2)
    (lease,) = hands.claim()
    answer = json.loads(run("--json", "--reason", "new machine", "--by", "ann"))
    assert answer["before"] == answer["after"]
    assert (answer["before"]["records"], answer["before"]["leased"]) == (2, 1)
    hands.run(lease)
    note.enqueue(3)
    hands.work()
    assert [row.state for row in hands.archive()] == ["acked", "acked"]
    assert get_store().client.where == known
    action = OperatorAction.objects.get(action="move store")
    assert (action.operator, action.reason, action.count) == ("ann", "new machine", 2)
    assert known in action.selection and action.finished_at is not None


def test_people_read_both_sides_and_what_to_do_next(known: str, delayq: RedisStore) -> None:
    note.using(delay=3600).enqueue(1)
    text = run()
    assert "waiting messages" in text and "has moved from" in text
    assert "name the new Redis in DELAYQ['REDIS']" in text


def test_a_dry_run_changes_nothing(known: str, delayq: RedisStore) -> None:
    note.using(delay=3600).enqueue(1)
    assert "Nothing speaks against it. By copy" in run("--dry-run")
    assert delayq.queries.stats(DEFAULT).waiting == 1
    assert delayq.client.where != known
    assert not OperatorAction.objects.exists()


def test_without_the_new_redis_it_says_what_to_set(delayq: RedisStore) -> None:
    with pytest.raises(CommandError, match="REDIS_NEXT") as refused:
        run()
    assert refused.value.returncode == 2


def test_a_worker_that_does_not_know_the_new_redis_stops_it(known: str, delayq: RedisStore) -> None:
    now_ms = int(delayq.clock_ms())
    delayq.workers.beat("web-1:7", json.dumps({"at_ms": now_ms}))
    with pytest.raises(CommandError, match=r"do not know .*REDIS_NEXT.*web-1:7"):
        run()
    assert not OperatorAction.objects.exists()


def test_a_worker_says_which_new_redis_it_knows(known: str, delayq: RedisStore) -> None:
    worker = Worker(delayq, get_settings(), WorkerOptions(topics=("orders",)))
    worker.heartbeat.run_once()
    (beat,) = delayq.workers.heartbeats().values()
    assert beat["next"] == mask(known)


def test_a_dry_run_says_when_the_store_has_moved(known: str, delayq: RedisStore) -> None:
    note.using(delay=3600).enqueue(1)
    run()
    assert json.loads(run("--dry-run", "--json")) == {"state": "moved"}
    assert "has moved from" in run(), "it can be run again"


def test_an_error_on_the_way_lets_the_old_store_go_on(
    known: str, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    note.enqueue(1)

    def fail(mover: StoreMover, move: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(StoreMover, "_copy", fail)
    with pytest.raises(SystemExit):
        run()
    assert hands.work() == 1
    assert get_store().client.where != known
    assert not OperatorAction.objects.filter(finished_at__isnull=False).exists()


def test_what_a_process_enqueues_that_does_not_know_the_new_redis_goes_to_the_outbox(
    known: str, settings: Any, delayq: RedisStore
) -> None:
    note.using(delay=3600).enqueue(1)
    run()
    aware = dict(settings.DELAYQ)
    settings.DELAYQ = {name: value for name, value in aware.items() if name != "REDIS_NEXT"}
    handle = note.using(delay=3600).enqueue(2)
    assert handle.outcome == "outbox"
    assert OutboxMessage.objects.count() == 1
    settings.DELAYQ = aware
    hands = Hands(get_store())
    hands.relayer.run_once()
    assert get_store().queries.stats(DEFAULT).waiting == 2
