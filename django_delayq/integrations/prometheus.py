"""Metrics for Prometheus: on the health port of workers, and as a view for the web side.

What Redis and the database know is the same wherever it is read: counters and sizes by topic.
Lateness and run times are those of the processes of one command. DELAYQ["METRICS"] turns on the
port; the view is there when a project's urls have it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar

from django.db import Error
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.http import require_safe

from ..core.conf import get_settings
from ..core.connections import close_all
from ..core.exceptions import StoreError
from ..core.message import Final
from ..stats.figures import DatabaseCounts, TopicFigures, read_database, read_topics
from ..stats.overview_sql import kept_for
from ..store import get_store
from ..store.queries import COUNTERS
from ..store.store import RedisStore
from ..tasks import registry
from ..worker.process.health import METRICS_TYPE
from .run_counts import LATENESS_S, OTHER, RESULTS, RUN_S, RunCounts, RunFigures

#: Seconds for which an answer of Redis is kept; kept_for() says it of one of the database. So many
#: scrapers cost no more than one.
KEPT = 1.0


class Metric(NamedTuple):
    """What a metric is."""

    kind: str
    """gauge, counter or histogram."""
    text: str


#: Every metric of ours.
METRICS: Mapping[str, Metric] = {
    "delayq_redis_up": Metric("gauge", "Whether Redis answers."),
    "delayq_database_up": Metric("gauge", "Whether the database answers."),
    "delayq_messages": Metric("gauge", "Messages in Redis by state: delayed, ready, leased."),
    "delayq_lag_seconds": Metric("gauge", "How long ago the oldest waiting message fell due."),
    "delayq_workers": Metric("gauge", "Living workers that serve the topic."),
    "delayq_paused": Metric("gauge", "Whether the topic is paused."),
    "delayq_unarchived_messages": Metric("gauge", "Ended messages that wait for the archiver."),
    "delayq_archive_lag_seconds": Metric("gauge", "How long ago the oldest of these has ended."),
    "delayq_enqueued_total": Metric("counter", "Messages that Redis has taken."),
    "delayq_ended_total": Metric("counter", "Messages that have ended, by state."),
    "delayq_retried_total": Metric("counter", "Failed attempts that another attempt follows."),
    "delayq_reclaimed_total": Metric("counter", "Leases that ended without an answer."),
    "delayq_outbox_messages": Metric("gauge", "Messages that wait in the outbox."),
    "delayq_dead_letters": Metric("gauge", "Open dead letters."),
    "delayq_unarchivable_messages": Metric("gauge", "Messages that the archive refused."),
    "delayq_runs_total": Metric("counter", "Runs of tasks in the processes of this command."),
    "delayq_lateness_seconds": Metric("histogram", "Start of a run minus its due time."),
    "delayq_run_seconds": Metric("histogram", "How long the runs of a task took."),
}

_WAITING, _ENDED = ("delayed", "ready", "leased"), tuple(Final.values)

_Answer = TypeVar("_Answer")


class _KeptAnswer(Generic[_Answer]):
    """An answer that is read anew when it is old. None when there was an error."""

    def __init__(
        self, read: Callable[[], _Answer], error: type[Exception], kept: Callable[[float], float]
    ) -> None:
        self._read, self._error, self._kept = read, error, kept
        self._lock = threading.Lock()
        self._until = 0.0
        self._answer: _Answer | None = None

    def get(self) -> _Answer | None:
        with self._lock:
            began = time.monotonic()
            if began >= self._until:
                try:
                    self._answer = self._read()
                except self._error:
                    self._answer = None
                now = time.monotonic()
                self._until = now + self._kept(now - began)
            return self._answer


@lru_cache(maxsize=1)
def _topics_in(store: RedisStore) -> _KeptAnswer[Sequence[TopicFigures]]:
    return _KeptAnswer(lambda: read_topics(store), StoreError, lambda took: KEPT)


_database = _KeptAnswer(read_database, Error, kept_for)


class WorkerMetrics:
    """The page of a worker's health port."""

    def __init__(self, processes: int, *, has_database: bool) -> None:
        """Make it before the fork. `processes`: of the command, 0 when it runs no tasks."""
        self._counts = RunCounts(processes, get_settings().metrics_max_topics)
        self._has_database = has_database

    @contextlib.contextmanager
    def counting(self, index: int) -> Iterator[None]:
        """Count what this process runs, from 0 its number."""
        self._counts.begin(index)
        try:
            yield
        finally:
            self._counts.end()

    def page(self) -> bytes:
        """The figures of now. Never raises because Redis or the database is away."""
        text = page(self._has_database, self._counts.read())
        close_all()  # of this request's thread
        return text + _metrics_of_the_project()


def page(has_database: bool, runs: Sequence[RunFigures] = ()) -> bytes:
    """All metrics in the text format."""
    lines: list[str] = []
    topics = _topics_in(get_store()).get()
    _write(lines, "delayq_redis_up", [("", int(topics is not None))])
    if topics is not None:
        _write_topics(lines, _bounded(topics))
    if has_database:
        counts = _database.get()
        _write(lines, "delayq_database_up", [("", int(counts is not None))])
        if counts is not None:
            _write_counts(lines, counts, {figures.topic for figures in topics or ()})
    if runs:
        _write_runs(lines, runs)
    return "".join(lines).encode()


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """The figures of all topics, for a project's urls. Answers who sends METRICS_TOKEN as bearer
    token; without such a setting, users who may see the overview. All others get 403."""
    token = get_settings().metrics_token
    if token:
        allowed = constant_time_compare(request.headers.get("Authorization", ""), f"Bearer {token}")
    else:
        user = getattr(request, "user", None)
        allowed = user is not None and user.has_perm("django_delayq.view_dashboard")
        if allowed and get_settings().topic_permission:
            from ..operators.topic_permission import sees_every_topic

            allowed = sees_every_topic(user)
    if not allowed:
        return HttpResponse("403: send METRICS_TOKEN as bearer token\n", METRICS_TYPE, status=403)
    return HttpResponse(page(has_database=True), content_type=METRICS_TYPE)


# Lines of the text format


def _write(lines: list[str], name: str, samples: Iterable[tuple[str, float]]) -> None:
    """The head and the samples of a gauge or a counter."""
    lines.append(_head(name))
    lines += [f"{name}{labels} {value}\n" for labels, value in samples]


def _head(name: str) -> str:
    kind, text = METRICS[name]
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _write_topics(lines: list[str], topics: Sequence[TopicFigures]) -> None:
    labelled = [(f'topic="{figures.topic}"', figures) for figures in topics]
    for name, value in (
        ("delayq_lag_seconds", lambda figures: round(figures.lag, 3)),
        ("delayq_workers", lambda figures: figures.workers),
        ("delayq_paused", lambda figures: int(figures.paused)),
        ("delayq_unarchived_messages", lambda figures: figures.finished),
        ("delayq_archive_lag_seconds", lambda figures: round(figures.archive_lag, 3)),
        ("delayq_enqueued_total", lambda figures: figures.counters["enqueued"]),
        ("delayq_retried_total", lambda figures: figures.counters["retried"]),
        ("delayq_reclaimed_total", lambda figures: figures.counters["reclaimed"]),
    ):
        lines.append(_head(name))
        lines += [f"{name}{{{labels}}} {value(figures)}\n" for labels, figures in labelled]
    lines.append(_head("delayq_messages"))
    lines += [
        _form("delayq_messages", labels, "state", _WAITING)
        % (figures.delayed, figures.ready, figures.leased)
        for labels, figures in labelled
    ]
    lines.append(_head("delayq_ended_total"))
    lines += [
        _form("delayq_ended_total", labels, "state", _ENDED)
        % tuple([figures.counters[state] for state in _ENDED])
        for labels, figures in labelled
    ]


def _write_counts(lines: list[str], counts: DatabaseCounts, known: set[str]) -> None:
    # A topic without any has a sample, too: an alert on a rise needs the zero before it.
    for name, by_topic in (
        ("delayq_outbox_messages", counts.outbox),
        ("delayq_dead_letters", counts.dead_letters),
    ):
        sums: dict[str, int] = {}
        named = _named(known | by_topic.keys())
        for topic in sorted(known | by_topic.keys()):
            shown = topic if topic in named else OTHER
            sums[shown] = sums.get(shown, 0) + by_topic[topic]
        _write(lines, name, [(f'{{topic="{topic}"}}', count) for topic, count in sums.items()])
    _write(lines, "delayq_unarchivable_messages", [("", counts.unarchivable)])


def _write_runs(lines: list[str], runs: Sequence[RunFigures]) -> None:
    labelled = [
        (f'topic="{figures.topic}",task="{_escaped(figures.task)}"', figures) for figures in runs
    ]
    lines.append(_head("delayq_runs_total"))
    lines += [
        _form("delayq_runs_total", labels, "result", RESULTS) % tuple(figures.results)
        for labels, figures in labelled
    ]
    lines.append(_head("delayq_lateness_seconds"))
    lines += [
        _histogram_form("delayq_lateness_seconds", labels, LATENESS_S)
        % (*accumulate(figures.lateness), figures.lateness_sum, sum(figures.lateness))
        for labels, figures in labelled
    ]
    lines.append(_head("delayq_run_seconds"))
    lines += [
        _histogram_form("delayq_run_seconds", labels, RUN_S)
        % (*accumulate(figures.run), figures.run_sum, sum(figures.run))
        for labels, figures in labelled
    ]


# A thousand topics are 60,000 lines. What is the same at each scrape is made once.


@lru_cache(maxsize=20_000)
def _form(name: str, labels: str, label: str, values: tuple[str, ...]) -> str:
    """Lines with a place for each number."""
    labels = labels.replace("%", "%%")
    return "".join(f'{name}{{{labels},{label}="{value}"}} %d\n' for value in values)


@lru_cache(maxsize=20_000)
def _histogram_form(name: str, labels: str, ends: tuple[float, ...]) -> str:
    """Lines with a place for each bucket, for the sum and for the count."""
    buckets = _form(f"{name}_bucket", labels, "le", (*(f"{end:g}" for end in ends), "+Inf"))
    labels = labels.replace("%", "%%")
    return f"{buckets}{name}_sum{{{labels}}} %.6f\n{name}_count{{{labels}}} %d\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# The bound on topics


def _named(topics: Iterable[str]) -> set[str]:
    """The topics that metrics name: those that code declares, then by name."""
    known, limit = registry.known_topics(), get_settings().metrics_max_topics
    return set(sorted(topics, key=lambda topic: (topic not in known, topic))[:limit])


def _bounded(topics: Sequence[TopicFigures]) -> Sequence[TopicFigures]:
    """The same, with one row for all topics beyond the limit."""
    if len(topics) <= get_settings().metrics_max_topics:
        return topics
    named = _named(figures.topic for figures in topics) - {OTHER}
    rest = [figures for figures in topics if figures.topic not in named]
    return [
        *(figures for figures in topics if figures.topic in named),
        TopicFigures(
            OTHER,
            delayed=sum(figures.delayed for figures in rest),
            ready=sum(figures.ready for figures in rest),
            leased=sum(figures.leased for figures in rest),
            lag=max(figures.lag for figures in rest),
            finished=sum(figures.finished for figures in rest),
            archive_lag=max(figures.archive_lag for figures in rest),
            paused=any(figures.paused for figures in rest),
            workers=min(figures.workers for figures in rest),
            counters={name: sum(figures.counters[name] for figures in rest) for name in COUNTERS},
        ),
    ]


def _metrics_of_the_project() -> bytes:
    """What the project's own code, and prometheus_client itself, count in this process; with
    PROMETHEUS_MULTIPROC_DIR in all processes."""
    if find_spec("prometheus_client") is None:
        return b""
    from prometheus_client import REGISTRY, CollectorRegistry, generate_latest, multiprocess

    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return generate_latest(REGISTRY)
    registry_of_all = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry_of_all)  # type: ignore[no-untyped-call]
    return generate_latest(registry_of_all)
