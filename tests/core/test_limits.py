"""limits.py: what a rate is, and what a claim is told."""

from __future__ import annotations

import pytest

from django_delayq.core.limits import LimitRule, TopicLimits, interval_ms, names_in, rate_problem


@pytest.mark.parametrize(
    ("rate", "milliseconds"), [("10/s", 100.0), ("100/m", 600.0), ("7200/h", 500.0), (None, None)]
)
def test_a_rate_is_the_time_between_two_starts(
    rate: str | None, milliseconds: float | None
) -> None:
    assert interval_ms(rate) == milliseconds


@pytest.mark.parametrize("value", ["0/s", "10", "10/d", "-1/s", "1.5/s", "10/s\n", 10, None])
def test_anything_else_is_no_rate(value: object) -> None:
    assert "must be a text as" in rate_problem(value)


def test_a_rate_that_nobody_can_keep_is_refused() -> None:
    assert rate_problem("100000/s") == ""
    assert rate_problem("6000000/m") == ""
    assert rate_problem("100001/s") == "may be 100,000/s at most, not 100001/s."


def test_the_names_of_a_template_are_those_of_its_arguments() -> None:
    assert names_in("customer:{customer_id}:{order.id}:{lines[0]:>5}") == [
        "customer_id",
        "order",
        "lines",
    ]


def test_a_claim_is_told_the_limits_of_the_topic_and_of_each_task() -> None:
    limits = TopicLimits(LimitRule("10/s", 3, 5000), "1/s", {b"code": LimitRule(concurrency=1)})
    assert limits.arguments() == [100.0, 3, 1000.0, 5000, b"code", "", 1, ""]
    assert TopicLimits().arguments() == ["", "", "", ""]


def test_being_too_late_lets_nothing_wait() -> None:
    assert not TopicLimits(
        LimitRule(too_late_ms=1), None, {b"code": LimitRule(too_late_ms=1)}
    ).holds_back
    assert TopicLimits(release_rate="1/s").holds_back
    assert TopicLimits(tasks={b"code": LimitRule(concurrency=1)}).holds_back
