"""Each condition that can be wrong: what it measures, and in which words. The rules of ALERTS,
`delayq check` and the pages compare what is measured here with limits of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...core.alert_rules import ALERT_KINDS
from ...core.conf import get_settings
from ...core.present import amount, seconds, visible
from ...tasks import registry
from ..figures import TopicFigures
from ..overview import WorkerStatus
from .situation import Situation

#: Kinds that only Redis knows, and kinds that only the database knows. The others need both.
_OF_DATABASE = frozenset({"outbox", "dead", "dead_letters", "audit", "unarchivable", "relay_lag"})


class Measured(NamedTuple):
    """One condition in one topic, or in all: how bad it is."""

    kind: str
    topic: str
    """Empty for what is not about one topic."""
    value: float
    """In the unit of ALERT_KINDS; 1 where there is none and it holds."""
    words: str
    """The problem, and its cause if that is known, in the active language."""
    about: Sequence[str] = ()
    """The topics that it concerns when `topic` is empty."""
    worker: str = ""
    """The worker that it is about."""


def is_known(kind: str, situation: Situation) -> bool:
    """Whether the situation says anything of this kind. While Redis is away, nothing is known of
    what only Redis knows."""
    if kind in _OF_DATABASE:
        return not situation.database_problem
    return kind == "redis" or not situation.problem


def measured(
    kind: str, situation: Situation, topics: Sequence[str] = (), *, at_least: float
) -> Iterator[Measured]:
    """What the situation has of this kind, in these topics or in all, from this value on."""
    if is_known(kind, situation):
        # The measures look at thousands of topics: they make words of what is wrong only.
        for one in _MEASURES[kind](situation, topics, at_least):
            if one.value >= at_least:
                yield one


def limit_in_words(kind: str, limit: float) -> str:
    """Empty for a kind without a limit."""
    unit = ALERT_KINDS[kind]
    if unit is None:
        return ""
    return seconds(limit) if unit == "duration" else f"{limit:,.0f}{' %' * (unit == 'percent')}"


def _rows(situation: Situation, topics: Sequence[str]) -> Iterator[TopicFigures]:
    return (row for row in situation.topics if not topics or row.topic in topics)


def _backlog(situation: Situation, topics: Sequence[str], least: float) -> Iterator[Measured]:
    for row in _rows(situation, topics):
        if row.ready < least:
            continue
        words = ngettext("%(count)s due message", "%(count)s due messages", row.ready)
        yield Measured("backlog", row.topic, row.ready, words % {"count": amount(row.ready)})


def _lag(situation: Situation, topics: Sequence[str], least: float) -> Iterator[Measured]:
    for row in _rows(situation, topics):
        if row.paused or row.lag < least:
            continue
        words = _("lag %(lag)s") % {"lag": seconds(row.lag)}
        before = situation.lag_before.get(row.topic)
        # Only what is clearly more: a topic that is drained has a lag that rises for a while, too.
        if before is not None and row.lag > before + 60:
            words += _(", growing: %(lag)s ten minutes ago") % {"lag": seconds(before)}
        yield Measured("lag", row.topic, row.lag, words)


def _saturated(situation: Situation, topics: Sequence[str], least: float) -> Iterator[Measured]:
    by_topic: dict[str, list[WorkerStatus]] = {}
    for worker in situation.workers:
        if worker.serves:
            for topic in worker.topics:
                by_topic.setdefault(topic, []).append(worker)
    for row in _rows(situation, topics):
        serving = by_topic.get(row.topic, ())
        if row.paused or not row.ready or row.lag < least or not serving:
            continue
        if all(worker.is_saturated for worker in serving):
            words = _what_keeps_busy(serving, situation)
            yield Measured("saturated", row.topic, row.lag, words)


def _what_keeps_busy(workers: Sequence[WorkerStatus], situation: Situation) -> str:
    """`6 of 6 threads busy, 5 of them with build_report for 12 min`."""
    words = _("%(busy)s of %(all)s threads busy") % {
        "busy": amount(sum(worker.busy for worker in workers)),
        "all": amount(sum(worker.concurrency for worker in workers)),
    }
    counts, since = Counter[str](), dict[str, float]()
    for worker in workers:
        for task in worker.tasks:
            if task.task:
                counts[task.task] += task.messages
                age = (situation.at - task.since).total_seconds()
                since[task.task] = max(since.get(task.task, 0.0), age)
    for name, count in counts.most_common(1):
        words += _(", %(count)s of them with %(task)s for %(time)s") % {
            "count": amount(count),
            "task": visible(name.rpartition(".")[2]),
            "time": seconds(since[name], 2),
        }
    return words


def _unserved(situation: Situation, topics: Sequence[str], least: float) -> Iterator[Measured]:
    is_for_api = get_settings().is_for_api
    served = {t for worker in situation.workers if worker.serves for t in worker.topics}
    quiet = {t for worker in situation.workers if worker.keeps_quiet for t in worker.topics}
    known = {row.topic for row in situation.topics}
    only_in_outbox = [TopicFigures(t) for t in sorted(situation.database.outbox) if t not in known]
    for row in [*_rows(situation, topics), *only_in_outbox]:
        waiting = row.delayed + row.ready + row.leased + situation.database.outbox[row.topic]
        if waiting < least or row.topic in served or row.paused or is_for_api(row.topic):
            continue
        words = _("messages wait and no worker serves the topic")
        if row.topic in quiet:
            words += _(": an operator made its workers quiet")
        elif not registry.is_declared(row.topic):
            words += _(", and no code here declares it")
        yield Measured("unserved", row.topic, int(waiting > 0), words)


def _paused(situation: Situation, topics: Sequence[str], least: float) -> Iterator[Measured]:
    for row in _rows(situation, topics):
        if row.paused:
            yield Measured("paused", row.topic, 1, _("the topic is paused"))


def _worker_gone(situation: Situation, topics: Sequence[str], least: float) -> Iterator[Measured]:
    for worker in situation.workers:
        if worker.alive or (topics and not {*topics} & {*worker.topics}):
            continue
        words = _("worker %(worker)s ended without saying so %(time)s ago") % {
            "worker": visible(worker.name),
            "time": seconds((situation.at - worker.beat_at).total_seconds(), 2),
        }
        if worker.in_flight:
            held = ngettext(
                "; it held %(count)s message", "; it held %(count)s messages", worker.in_flight
            )
            words += held % {"count": amount(worker.in_flight)}
        yield Measured("worker_gone", "", 1, words, worker.topics, worker.name)


def _dead(situation: Situation, topics: Sequence[str], least: float) -> Iterator[Measured]:
    for topic, dead in sorted(situation.dead.items()):
        if dead.count < least or (topics and topic not in topics):
            continue
        words = ngettext(
            "%(count)s dead letter in an hour", "%(count)s dead letters in an hour", dead.count
        ) % {"count": amount(dead.count)}
        if dead.error and dead.of_error == dead.count:
            words += f", {visible(dead.error)}"
        elif dead.error:
            words += _(", %(count)s of them %(error)s") % {
                "count": amount(dead.of_error),
                "error": visible(dead.error),
            }
        yield Measured("dead", topic, dead.count, words)


def _dead_letters(situation: Situation, topics: Sequence[str], least: float) -> Iterator[Measured]:
    for topic, count in sorted(situation.database.dead_letters.items()):
        if count >= least and (not topics or topic in topics):
            words = ngettext("%(count)s open dead letter", "%(count)s open dead letters", count)
            yield Measured("dead_letters", topic, count, words % {"count": amount(count)})


def _archive_lag(situation: Situation, topics: Sequence[str], least: float) -> Iterator[Measured]:
    worst = max(_rows(situation, topics), key=lambda row: row.archive_lag, default=None)
    if worst is not None:
        words = _("the archive of %(topic)s is %(time)s behind") % {
            "topic": worst.topic,
            "time": seconds(worst.archive_lag),
        }
        yield Measured("archive_lag", "", worst.archive_lag, words, [worst.topic])


def _archive_limit(situation: Situation, topics: Sequence[str], least: float) -> Iterator[Measured]:
    for row in _rows(situation, topics):
        if 100 * row.fullness < least:
            continue
        words = _(
            "%(share)s %% of FINISHED_LIMIT waits for the archiver; at 100 %% no message starts"
        ) % {"share": f"{100 * row.fullness:.0f}"}
        yield Measured("archive_limit", row.topic, 100 * row.fullness, words)


def _outbox(situation: Situation, topics: Sequence[str], least: float) -> Iterator[Measured]:
    rows = situation.database.outbox
    count = sum(rows[topic] for topic in topics or rows)
    words = ngettext("%(count)s message in the outbox", "%(count)s messages in the outbox", count)
    yield Measured("outbox", "", count, words % {"count": amount(count)}, [*rows])


def _relay_lag(situation: Situation, topics: Sequence[str], least: float) -> Iterator[Measured]:
    behind = situation.database.relay_lag
    words = _("the relay of the outbox is %(time)s behind") % {"time": seconds(behind)}
    yield Measured("relay_lag", "", behind, words)


def _unarchivable(situation: Situation, topics: Sequence[str], least: float) -> Iterator[Measured]:
    count = situation.database.unarchivable
    words = ngettext(
        "the archive refused %(count)s message", "the archive refused %(count)s messages", count
    )
    yield Measured("unarchivable", "", count, words % {"count": amount(count)})


def _audit(situation: Situation, topics: Sequence[str], least: float) -> Iterator[Measured]:
    count = situation.findings
    words = ngettext(
        "the last audit has %(count)s finding", "the last audit has %(count)s findings", count
    )
    yield Measured("audit", "", count, words % {"count": amount(count)})


def _redis(situation: Situation, topics: Sequence[str], least: float) -> Iterator[Measured]:
    yield Measured("redis", "", int(bool(situation.problem)), situation.problem)


_MEASURES: Mapping[str, Callable[[Situation, Sequence[str], float], Iterator[Measured]]] = {
    "unserved": _unserved,
    "saturated": _saturated,
    "archive_limit": _archive_limit,
    "worker_gone": _worker_gone,
    "lag": _lag,
    "backlog": _backlog,
    "dead": _dead,
    "dead_letters": _dead_letters,
    "paused": _paused,
    "archive_lag": _archive_lag,
    "outbox": _outbox,
    "relay_lag": _relay_lag,
    "unarchivable": _unarchivable,
    "audit": _audit,
    "redis": _redis,
}
