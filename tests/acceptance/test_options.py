"""The options of the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance import tasks
from tests.acceptance.harness import Figure, Queue, free_port, http_status
from tests.servers import Server, wait_until

pytestmark = pytest.mark.acceptance

Servers = Callable[..., Server]
Queues = Callable[..., Queue]


def test_burst_ends_when_nothing_is_due(queue: Queue) -> None:
    due = tasks.note.enqueue_many([()] * 500) + tasks.overrun_async.enqueue_many([(0.01,)] * 20)
    later = tasks.note.using(delay=3600).enqueue_many([()] * 5)

    assert queue.begin("--burst").wait() == 0

    assert queue.history.count() == queue.history.count(*due) == 520
    assert queue.live() == len(later)
    assert queue.begin("--burst").wait() == 0  # and with nothing to do


@pytest.mark.django_db(transaction=True)
def test_max_messages_ends_after_so_many(queue: Queue) -> None:
    handles = tasks.note.enqueue_many([()] * 50)

    assert queue.begin("--max-messages", "10", "--concurrency", "4").wait() == 0

    assert len(queue.history.starts()) == 10
    assert queue.live() == 40
    left = [message for handle in handles if (message := handle.get())]
    assert {message.attempt for message in left} == {0}


def test_processes_share_the_work_and_each_message_runs_once(queue: Queue, figure: Figure) -> None:
    worker = queue.worker("--processes", "3")
    queue.wait_for_beats(3)
    handles = tasks.work.enqueue_many([(0.002,)] * 2000)
    queue.wait_until_drained()

    pids = {run.pid for run in queue.history.starts()}
    figure(f"{len(pids)} processes ran 2,000 messages, none twice")
    assert len(pids) == 3
    assert not queue.history.lost(handles)
    assert not queue.history.duplicates()
    assert queue.acked_once(handles)
    assert worker.stop() == 0


@pytest.mark.long
def test_health_port_tells_whether_it_works(own_server: Servers, queue_on: Queues) -> None:
    server, port = own_server(), free_port()
    queue = queue_on(server)
    worker = queue.worker("--health-port", str(port), "--processes", "2")

    def statuses(path: str) -> list[int]:
        return [http_status(one, path)[0] for one in (port, port + 1)]

    wait_until(lambda: statuses("/readyz") == [200, 200], "both are ready")
    assert statuses("/healthz") == [200, 200]
    assert statuses("/nothing") == [404, 404]
    assert http_status(port, "/readyz")[1]["topics"] == ["async", "default", "keyed", "paced"]

    server.kill()
    wait_until(lambda: statuses("/readyz") == [503, 503], "both say that Redis is gone")
    assert statuses("/healthz") == [200, 200]  # a restart of the worker would not help

    server.restart()
    wait_until(lambda: statuses("/readyz") == [200, 200], "both are ready again")
    assert worker.stop() == 0
    assert statuses("/healthz") == [0, 0]


def test_draining_worker_is_alive_but_not_ready(queue: Queue, tmp_path: Path) -> None:
    port = free_port()
    worker = queue.worker("--health-port", str(port))
    handle = tasks.hold.enqueue(str(tmp_path / "gate"))
    wait_until(lambda: queue.history.starts(handle), "it runs")
    worker.terminate()

    wait_until(lambda: http_status(port, "/readyz")[0] == 503, "it is not ready")
    assert http_status(port, "/healthz")[0] == 200

    (tmp_path / "gate.1").touch()
    assert worker.wait() == 0


TOPICS = {"a": {}, "b": {}, "c": {}}


@pytest.mark.parametrize(
    ("wanted", "served"),
    [
        ("a", {"a"}),
        ("a,-b", {"a"}),
        ("-b", {"a", "c"}),
        ("all,-c", {"a", "b"}),
        ("a:3,c:1", {"a", "c"}),
    ],
)
def test_topics_chooses_what_is_served(
    aof_server: Server, queue_on: Queues, wanted: str, served: set[str]
) -> None:
    queue = queue_on(aof_server, TOPICS=TOPICS)
    handles = {topic: tasks.note.using(topic=topic).enqueue() for topic in TOPICS}

    assert queue.begin(f"--topics={wanted}", "--burst").wait() == 0

    assert {topic for topic, handle in handles.items() if queue.history.starts(handle)} == served


@pytest.mark.long
def test_weights_share_the_threads_between_topics_that_are_due(
    aof_server: Server, queue_on: Queues, figure: Figure
) -> None:
    queue = queue_on(aof_server, TOPICS=TOPICS)
    often = tasks.work.using(topic="a").enqueue_many([(0.002,)] * 400)
    seldom = tasks.work.using(topic="b").enqueue_many([(0.002,)] * 400)

    assert queue.begin("--topics", "a:3,b:1", "--burst", "--concurrency", "2").wait(20) == 0

    first = queue.history.starts()[:200]
    shares = [
        sum(run.id in {handle.id for handle in some} for run in first) for some in (often, seldom)
    ]
    figure(
        f"of the first 200 runs {shares[0]} were of the topic with weight 3, {shares[1]} of that "
        f"with weight 1"
    )
    assert 120 <= shares[0] <= 180


def test_flood_in_one_topic_does_not_starve_another(
    aof_server: Server, queue_on: Queues, figure: Figure
) -> None:
    queue = queue_on(aof_server, TOPICS=TOPICS)
    tasks.work.using(topic="a").enqueue_many([(0.002,)] * 3000)
    queue.worker("--concurrency", "2")
    wait_until(lambda: queue.history.count() > 100, "the flood is served")

    quiet = tasks.note.using(topic="b").enqueue_many([()] * 20)
    queue.wait_for_runs(quiet, 3)

    late = max(queue.history.lateness(quiet).values())
    figure(f"20 messages beside a flood of 3,000 at most {1000 * late:.0f} ms late")
    assert queue.live("a") > 0
    assert late < 1


def test_json_log_can_be_parsed_line_by_line(queue: Queue) -> None:
    tasks.note.using(key="order:7\n{}").enqueue(1)
    tasks.fail_odd.using(max_attempts=1).enqueue(1)

    worker = queue.begin("--burst", "--log-format", "json")

    assert worker.wait() == 0
    lines = [json.loads(line) for line in worker.out.splitlines()]
    events = {line["event"]: line for line in lines if "event" in line}
    assert events["acked"]["key"] == "order:7\n{}"
    assert events["dead"]["error"] == "ValueError: odd"
    assert events["dead"]["task"] == "tests.acceptance.tasks.fail_odd"
    assert {"at", "level", "topic", "id", "attempt", "late_ms", "run_ms"} <= set(events["acked"])
    assert all({"at", "level"} <= set(line) for line in lines)


def test_environment_gives_defaults(queue: Queue) -> None:
    tasks.note.enqueue_many([()] * 20)
    assert queue.begin(DELAYQ_MAX_MESSAGES="5", DELAYQ_LOG_FORMAT="json").wait() == 0
    assert len(queue.history.starts()) == 5


@pytest.mark.long
def test_reload_starts_anew_with_changed_code(queue: Queue, tmp_path: Path) -> None:
    module = tmp_path / "changing.py"
    module.write_text("VERSION = 1\n")
    environment = {
        "DELAYQ_TEST_DEBUG": "1",
        "DELAYQ_TEST_CHANGING": "1",
        "PYTHONPATH": str(tmp_path),
    }
    worker = queue.worker(**environment)
    first = tasks.say_version.enqueue()
    wait_until(lambda: [run.what for run in queue.history.all()] == ["1"], "the old code runs")
    pid = queue.history.all()[0].pid

    module.write_text("VERSION = = 2\n")
    worker.wait_for("the old code goes on")
    module.write_text("import no_such_module\n")
    worker.wait_for("No module named 'no_such_module'")
    module.write_text("VERSION = 222\n")
    worker.wait_for("Ready in ", times=2)
    second = tasks.say_version.enqueue()

    wait_until(lambda: len(queue.history.all()) == 2, "the new code runs")
    assert queue.history.all()[1].what == "222"
    assert (
        queue.history.all()[1].pid == pid == worker.pid
    )  # a supervisor or a container sees one process
    queue.wait_until_drained()
    assert queue.acked_once([first, second])
    assert worker.stop() == 0
