"""Rules of ALERTS are checked at the door."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_delayq.core.conf import parse_settings
from django_delayq.core.exceptions import ConfigurationError

TO = {"to": ["ops@example.com"]}


def parsed(*rules: Any, **more: Any) -> Any:
    return parse_settings({"ALERTS": list(rules), **more}).alerts


def test_a_rule_has_a_name_of_its_kind_and_topics() -> None:
    (rule,) = parsed(
        {"kind": "lag", "limit": timedelta(minutes=5), "topics": ["a", "b"], "after": 30, **TO}
    )
    assert (rule.name, rule.kind, rule.limit, rule.after) == ("lag a b", "lag", 300, 30)
    assert (rule.topics, rule.to) == (("a", "b"), ("ops@example.com",))


def test_some_limits_and_waits_have_defaults() -> None:
    dead, unserved = parsed({"kind": "dead", **TO}, {"kind": "unserved", **TO})
    assert (dead.limit, dead.after, unserved.after) == (1, 0, 60)


def test_targets_are_addresses_urls_and_functions() -> None:
    targets = ["ops@example.com", "https://example.com/hook", "shop.alerts.page"]
    (rule,) = parsed({"kind": "dead", "to": targets}, ALERT_SECRET="shh")
    assert rule.to == tuple(targets)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ("lag", "must be a list of dicts"),
        (["lag"], '["ALERTS"][0] must be a dict'),
        ([{**TO}], '["kind"] is None: use one of backlog, lag'),
        ([{"kind": "late", **TO}], "'late': use one of"),
        ([{"kind": "lag", "limits": 3, **TO}], "no option limits. Did you mean limit?"),
        ([{"kind": "lag", **TO}], '["limit"]'),
        ([{"kind": "lag", "limit": 0, **TO}], "longer than 0"),
        ([{"kind": "lag", "limit": -1, **TO}], '["limit"]'),
        ([{"kind": "backlog", **TO}], "a whole number of messages from 1, not None"),
        ([{"kind": "backlog", "limit": 1.5, **TO}], "a whole number"),
        ([{"kind": "backlog", "limit": True, **TO}], "a whole number"),
        ([{"kind": "unserved", "limit": 1, **TO}], "the kind unserved has no limit"),
        ([{"kind": "redis", "topics": ["a"], **TO}], "is not about topics"),
        ([{"kind": "dead", "topics": [1], **TO}], "a text or a list of texts"),
        ([{"kind": "dead", "after": "soon", **TO}], '["after"]'),
        ([{"kind": "dead"}], '["to"] is missing'),
        ([{"kind": "dead", "to": "ops"}], "'ops': it is no mail address"),
        ([{"kind": "dead", "to": "ftp://example.com"}], "no mail address, no URL"),
        ([{"kind": "dead", "name": "a\nb", **TO}], '["name"]'),
        ([{"kind": "dead", **TO}, {"kind": "dead", "limit": 9, **TO}], "has 2 rules 'dead'"),
        ([{"kind": "dead", "to": "https://example.com"}], '["ALERT_SECRET"] is missing'),
    ],
)
def test_wrong_rules_are_refused(rules: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_settings({"ALERTS": rules})
    assert words in str(error.value)
