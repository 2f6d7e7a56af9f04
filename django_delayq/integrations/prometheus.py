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
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import accumulate, chain
from operator import attrgetter
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
        parts = [*_parts(self._has_database, self._counts.read()), _metrics_of_the_project()]
        close_all()  # of this request's thread
        return b"".join(parts)


def page(has_database: bool, runs: Sequence[RunFigures] = ()) -> bytes:
    """All metrics in the text format."""
    return b"".join(_parts(has_database, runs))


def _parts(has_database: bool, runs: Sequence[RunFigures]) -> Iterator[bytes]:
    topics = _topics_in(get_store()).get()
    yield _text("delayq_redis_up", [""], [topics is not None])
    if topics is not None:
        yield from _of_topics(_bounded(topics))
    if has_database:
        counts = _database.get()
        yield _text("delayq_database_up", [""], [counts is not None])
        if counts is not None:
            yield from _of_counts(counts, {figures.topic for figures in topics or ()})
    if runs:
        yield from _of_runs(runs)


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


# The text format


def _of_topics(topics: Sequence[TopicFigures]) -> Iterator[bytes]:
    labels = [f'topic="{figures.topic}"' for figures in topics]
    for name, attribute in (
        ("delayq_workers", "workers"),
        ("delayq_paused", "paused"),
        ("delayq_unarchived_messages", "finished"),
    ):
        yield _text(name, labels, map(attrgetter(attribute), topics))
    for name, attribute in (
        ("delayq_lag_seconds", "lag"),
        ("delayq_archive_lag_seconds", "archive_lag"),
    ):
        yield _text(name, labels, map(attrgetter(attribute), topics), _seconds)
    for counter in ("enqueued", "retried", "reclaimed"):
        counts = (figures.counters[counter] for figures in topics)
        yield _text(f"delayq_{counter}_total", labels, counts)
    waiting = chain.from_iterable(map(attrgetter(*_WAITING), topics))
    yield _text("delayq_messages", labels, waiting, partial(_each, label="state", values=_WAITING))
    ended = (figures.counters[state] for figures in topics for state in _ENDED)
    yield _text("delayq_ended_total", labels, ended, partial(_each, label="state", values=_ENDED))


def _of_counts(counts: DatabaseCounts, known: set[str]) -> Iterator[bytes]:
    # A topic without any has a sample, too: an alert on a rise needs the zero before it.
    for name, by_topic in (
        ("delayq_outbox_messages", counts.outbox),
        ("delayq_dead_letters", counts.dead_letters),
    ):
        sums: dict[str, int] = {}
        topics = known | by_topic.keys()
        named = _named(topics)
        for topic in sorted(topics):
            shown = topic if topic in named else OTHER
            sums[shown] = sums.get(shown, 0) + by_topic[topic]
        yield _text(name, [f'topic="{topic}"' for topic in sums], sums.values())
    yield _text("delayq_unarchivable_messages", [""], [counts.unarchivable])


def _of_runs(runs: Sequence[RunFigures]) -> Iterator[bytes]:
    labels = [f'topic="{figures.topic}",task="{_escaped(figures.task)}"' for figures in runs]
    results = chain.from_iterable(figures.results for figures in runs)
    yield _text(
        "delayq_runs_total", labels, results, partial(_each, label="result", values=RESULTS)
    )
    lateness = ((figures.lateness, figures.lateness_sum) for figures in runs)
    yield _text(
        "delayq_lateness_seconds", labels, _cells(lateness), partial(_histogram, ends=LATENESS_S)
    )
    run = ((figures.run, figures.run_sum) for figures in runs)
    yield _text("delayq_run_seconds", labels, _cells(run), partial(_histogram, ends=RUN_S))


def _cells(histograms: Iterable[tuple[Sequence[int], float]]) -> Iterator[float]:
    """The numbers of _histogram()."""
    for buckets, total in histograms:
        yield from accumulate(buckets)
        yield total
        yield sum(buckets)


def _one(name: str, labels: str) -> str:
    """A line with a place for a whole number."""
    return f"{name}{{{labels}}} %d\n" if labels else f"{name} %d\n"


def _seconds(name: str, labels: str) -> str:
    """A line with a place for a time."""
    return f"{name}{{{labels}}} %.3f\n"


def _each(name: str, labels: str, label: str, values: Iterable[str]) -> str:
    """A line with a place for a whole number for each of the values of a label."""
    return "".join(f'{name}{{{labels},{label}="{value}"}} %d\n' for value in values)


def _histogram(name: str, labels: str, ends: Sequence[float]) -> str:
    """Lines with a place for each bucket, for the sum and for the count."""
    buckets = _each(f"{name}_bucket", labels, "le", (*(f"{end:g}" for end in ends), "+Inf"))
    return f"{buckets}{name}_sum{{{labels}}} %.6f\n{name}_count{{{labels}}} %d\n"


#: By metric: the labels of its rows at the last scrape, and its text with a place for each number.
_forms: dict[str, tuple[Sequence[str], bytes]] = {}


def _text(
    name: str,
    labels: Sequence[str],
    numbers: Iterable[float],
    row: Callable[[str, str], str] = _one,
) -> bytes:
    """A metric with the numbers of all rows. A thousand topics are 60,000 lines, and from scrape to
    scrape only the numbers change: bytes take all of them at once, in a quarter of the time that
    lines take."""
    kept, form = _forms.get(name, ((), b""))
    if not form or kept != labels:
        kind, text = METRICS[name]
        rows = "".join(row(name, part.replace("%", "%%")) for part in labels)
        form = f"# HELP {name} {text}\n# TYPE {name} {kind}\n{rows}".encode()
        _forms[name] = labels, form
    return form % tuple(numbers)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# The bound on topics


def _named(topics: Iterable[str]) -> set[str]:
    """The topics that metrics name: those that code declares, then by name."""
    named, limit = set(topics), get_settings().metrics_max_topics
    if len(named) <= limit:
        return named
    known = registry.known_topics()
    return set(sorted(named, key=lambda topic: (topic not in known, topic))[:limit])


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
