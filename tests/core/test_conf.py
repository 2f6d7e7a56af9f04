"""conf.py: the DELAYQ setting."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_delayq.core.conf import (
    Settings,
    TopicSettings,
    check_name,
    get_settings,
    parse_settings,
)
from django_delayq.core.exceptions import ConfigurationError, InvalidName


def test_nothing_is_needed_and_the_defaults_are_the_dataclass() -> None:
    assert parse_settings({}) == Settings()


def test_names_are_upper_case_in_the_settings_file() -> None:
    parsed = parse_settings({"REDIS": "redis://h", "PREFIX": "shop", "MAX_ATTEMPTS": 9})
    assert (parsed.redis, parsed.prefix, parsed.max_attempts) == ("redis://h", "shop", 9)


def test_durations_are_seconds_or_timedelta() -> None:
    parsed = parse_settings({"TTR": timedelta(minutes=2), "SWEEP_INTERVAL": 0.5})
    assert (parsed.ttr, parsed.sweep_interval) == (120.0, 0.5)


def test_topics_are_parsed() -> None:
    parsed = parse_settings(
        {
            "TOPICS": {
                "orders": {"partitions": 8, "weight": 3, "ttr": timedelta(seconds=5)},
                "a.b": {},
            }
        }
    )
    assert parsed.topics["orders"] == TopicSettings(partitions=8, weight=3, ttr=5.0)
    assert parsed.topics["a.b"] == TopicSettings()


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({"PREFX": "x"}, r"DELAYQ has no option PREFX. Did you mean PREFIX\?"),
        ({"COLOUR": "x"}, r"DELAYQ has no option COLOUR\.$"),
        ({"MIDDLEWARE": "shop.layer"}, r'DELAYQ\["MIDDLEWARE"\] must be a list of dotted paths'),
        ({"ENQUEUE_HOOKS": [5]}, r"must be a list of dotted paths, not \[5\]"),
        ({"TTR": 0}, r'DELAYQ\["TTR"\] must be from 1 to 86400, not 0'),
        ({"TTR": "60"}, r'DELAYQ\["TTR"\] must be a timedelta or a number of seconds'),
        ({"TTR": -1}, r"zero or more"),
        ({"MAX_ATTEMPTS": 0}, r"must be from 1 to 1000, not 0"),
        ({"MAX_ATTEMPTS": 2.5}, r"must be a whole number, not 2.5"),
        ({"POISON_LIMIT": True}, r"must be a whole number, not True"),
        ({"BODY_LIMIT": 2**21}, r'DELAYQ\["BODY_LIMIT"\] must be from 1 to'),
        ({"PREFIX": "a{b}"}, r'DELAYQ\["PREFIX"\] is \'a\{b\}\''),
        ({"PREFIX": ""}, r'DELAYQ\["PREFIX"\] is \'\''),
        ({"PREFIX": "x" * 65}, r"1 to 64 characters"),
        ({"TOPICS": ["orders"]}, r'DELAYQ\["TOPICS"\] must be a dict'),
        (
            {"TOPICS": {"orders": 3}},
            r'DELAYQ\["TOPICS"\]\["orders"\] must be a dict of options, not int',
        ),
        ({"TOPICS": {"or ders": {}}}, r"'or ders' cannot name a topic"),
        (
            {"TOPICS": {"a": {"partition": 2}}},
            r'DELAYQ\["TOPICS"\]\["a"\] has no option partition. Did you mean partitions\?',
        ),
        (
            {"TOPICS": {"a": {"rate": "10"}}},
            r'\["rate"\] must be a text as "10/s", "100/m" or "1000/h", not',
        ),
        ({"TOPICS": {"a": {"rate": 10}}}, "not 10"),
        ({"TOPICS": {"a": {"release_rate": "0/s"}}}, r'\["release_rate"\] must be a text'),
        ({"TOPICS": {"a": {"rate": "100001/s"}}}, "may be 100,000/s at most"),
        ({"TOPICS": {"a": {"concurrency": 0}}}, "from 1 to 100000, not 0"),
        ({"TOPICS": {"a": {"too_late": 0}}}, "from 1 to"),
        (
            {"TOPICS": {"a": {"concurrency": 3, "partitions": 2}}},
            "has a limit and 2 partitions.*a topic with a limit has one partition",
        ),
        (
            {"TOPICS": {"a": {"partitions": 257}}},
            r'\["partitions"\] must be from 1 to 256, not 257',
        ),
        ({"ARCHIVE": "some"}, r'DELAYQ\["ARCHIVE"\] is \'some\': use one of all, dead, none\.'),
        ({"ARCHIVE": None}, r'DELAYQ\["ARCHIVE"\] is None'),
        ({"ARCHIVE": True}, r'DELAYQ\["ARCHIVE"\] is True'),
        (
            {"TOPICS": {"a": {"archive": "acked"}}},
            r'\["TOPICS"\]\["a"\]\["archive"\] is \'acked\': use one of',
        ),
        ({"TOPICS": {"a": {"redact": "x"}}}, r"has no option redact\."),
        (
            {"ON_REDIS_ERROR": "ignore"},
            r'DELAYQ\["ON_REDIS_ERROR"\] is \'ignore\': use one of spill, raise\.',
        ),
        ({"REDACT": print}, r'DELAYQ\["REDACT"\] must be a str'),
        ({"HORIZON": 59}, r'DELAYQ\["HORIZON"\] must be from 60 to'),
        ({"HORIZON": "1h"}, r'DELAYQ\["HORIZON"\] must be a timedelta or a number of seconds'),
        (
            {"RECONCILE_AFTER": 0.5},
            r'DELAYQ\["RECONCILE_AFTER"\] must be from 1 to 86400, not 0\.5',
        ),
        ({"FINISHED_LIMIT": 0}, r'DELAYQ\["FINISHED_LIMIT"\] must be from 500'),
        ([], r"DELAYQ must be a dict, not list"),
        (None, r"DELAYQ must be a dict, not NoneType"),
    ],
)
def test_a_mistake_is_refused_and_named(raw: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        parse_settings(raw)


def test_by_default_everything_is_archived_and_redis_may_be_away() -> None:
    parsed = parse_settings({})
    assert (parsed.archive, parsed.redact, parsed.on_redis_error) == ("all", "", "spill")
    assert (parsed.horizon, parsed.reconcile_after) == (3600.0, 10.0)


def test_archive_and_outbox_can_be_set() -> None:
    raw = {
        "ARCHIVE": "dead", "REDACT": "shop.redact", "ON_REDIS_ERROR": "raise",
        "HORIZON": timedelta(minutes=5), "RECONCILE_AFTER": timedelta(seconds=30),
    }  # fmt: skip
    parsed = parse_settings(raw)
    assert (parsed.archive, parsed.redact, parsed.on_redis_error) == (
        "dead",
        "shop.redact",
        "raise",
    )
    assert (parsed.horizon, parsed.reconcile_after) == (300.0, 30.0)


def test_topic_may_be_archived_otherwise_than_the_rest() -> None:
    topics = {
        "noisy": {"archive": "none"},
        "orders": {"archive": "all"},
        "mail": {},
        "quiet": {"archive": None},
    }
    parsed = parse_settings({"ARCHIVE": "dead", "TOPICS": topics})
    wanted = {name: parsed.archive_of(name) for name in (*topics, "never named")}
    assert wanted == {
        "noisy": "none",
        "orders": "all",
        "mail": "dead",
        "quiet": "dead",
        "never named": "dead",
    }


def test_a_mistake_is_improperly_configured_to_django() -> None:
    with pytest.raises(ImproperlyConfigured):
        parse_settings({"X": 1})


def test_parsing_does_not_change_the_dict_of_the_settings_file() -> None:
    raw = {"TTR": timedelta(seconds=5), "TOPICS": {"a": {"ttr": timedelta(seconds=5)}}}
    parse_settings(raw)
    assert raw == {"TTR": timedelta(seconds=5), "TOPICS": {"a": {"ttr": timedelta(seconds=5)}}}


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(FrozenInstanceError):
        parse_settings({}).prefix = "x"  # type: ignore[misc]


def test_settings_are_read_anew_when_they_change(settings: Any) -> None:
    for prefix in ("one", "two"):
        settings.DELAYQ = {"PREFIX": prefix}
        assert get_settings().prefix == prefix


def test_a_missing_setting_is_an_empty_one(settings: Any) -> None:
    del settings.DELAYQ
    assert get_settings() == Settings()


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 64])
def test_a_good_name_is_returned(name: str) -> None:
    assert check_name(name, "a topic") == name


@pytest.mark.parametrize(
    "name", ["", "x" * 65, "a b", "a:b", "a{b", "ä", "a\n", "a/b", None, 5, b"a"]
)
def test_a_name_that_could_break_a_key_is_refused(name: Any) -> None:
    with pytest.raises(InvalidName, match=r"cannot name a task\. A name may hold A-Z"):
        check_name(name, "a task")


def test_every_option_has_a_line_that_explains_it() -> None:
    source = __import__("inspect").getsource(Settings)
    assert source.count('    """') >= len(Settings.__dataclass_fields__) + 1
