"""The rules of each job, which are checked before Spark starts."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.pipeline import jobs
from django_delayq.pipeline.job_errors import Refused
from django_delayq.pipeline.params import Database, Params, Storage

TASK = {"name": "shop.tasks.remind", "topic": "mail", "ttr_ms": 60_000}
LOAD = {"job": "j", "task": TASK, "source": "s", "format": "csv", "key": "id"}
#: What each job needs at least.
LEAST: dict[str, dict[str, Any]] = {
    "export": {"lake": Storage("l")},
    "stats": {"lake": Storage("l")},
    "check": {"job": {"dead": 0.01}},
    "forecast": {},
    "audit": {"lake": Storage("l")},
    "schedule": {"job": LOAD},
    "replay": {"job": {"job": "j"}},
}


def check(name: str, **given: Any) -> None:
    """Checks a job with what it needs at least and what is given."""
    database = Database(engine="django.db.backends.sqlite3", name="n", table="t")
    options = {**LEAST[name].get("job", {}), **given.pop("job", {})}
    jobs.check_params(name, Params(database=database, **{**LEAST[name], **given, "job": options}))


@pytest.mark.parametrize("name", jobs.JOBS)
def test_what_a_job_needs_at_least_is_enough(name: str) -> None:
    check(name)
    check(name, dry_run=True)


@pytest.mark.parametrize("name", jobs.JOBS)
@pytest.mark.parametrize("field", ["since", "until", "topic"])
def test_a_job_refuses_what_means_nothing_to_it(name: str, field: str) -> None:
    given = {field: "mail" if field == "topic" else "2026-01-31T09:00:00Z"}
    if field in jobs.JOBS[name].options.takes:
        check(name, **given)
    else:
        with pytest.raises(Refused, match=f"does not take {field}"):
            check(name, **given)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("export", {"lake": Storage()}, "needs a lake.*--lake"),
        ("stats", {"lake": Storage()}, "needs a lake"),
        ("replay", {"job": {"source": "lake"}}, "needs a lake"),
        ("stats", {"since": "2026-11-20T09:00:00"}, "add its offset"),
        (
            "stats",
            {"since": "2026-11-20T09:00:00Z", "until": "2026-11-20T09:00:00Z"},
            "is not after since",
        ),
        ("stats", {"job": {"sauce": "lake"}}, "not what it takes"),
        ("forecast", {"job": {"drain_rate": 0}}, "drain_rate"),
        ("audit", {"job": {"repair": True}, "dry_run": True}, "contradict"),
        ("audit", {"job": {"most": 0}}, "most"),
        ("audit", {"job": {"pause": -1}}, "pause"),
        ("export", {"job": {"prune": 60}}, "prune"),
        ("export", {"job": {"interval": 0}}, "interval"),
        ("schedule", {"job": {"due": "at", "delay_ms": 5}}, "contradict"),
        ("schedule", {"job": {"delay_ms": 10**13}}, "delay_ms"),
        ("schedule", {"job": {"splits": 65}}, "splits"),
        ("schedule", {"encrypted": True}, "plain text"),
        ("replay", {"encrypted": True}, "plain text"),
    ],
)
def test_what_a_job_cannot_do_is_refused_with_a_reason(
    name: str, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refused, match=words):
        check(name, **given)


def test_a_lake_is_needed_only_where_it_is_read() -> None:
    check("stats", lake=Storage(), job={"source": "archive"})
    check("replay", job={"source": "archive"})


def test_a_job_that_is_refused_does_not_touch_its_session() -> None:
    database = Database(engine="django.db.backends.sqlite3", name="n", table="t")
    with pytest.raises(Refused):
        jobs.run("export", object(), Params(database=database))
