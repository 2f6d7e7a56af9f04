"""Topics that are consumed over HTTP are not for workers."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core.conf import parse_settings
from django_delayq.core.exceptions import ConfigurationError
from django_delayq.stats.unserved import unserved_topics
from django_delayq.store.store import RedisStore
from django_delayq.tasks import registry
from django_delayq.worker.process import startup
from tests.integrations.api.conftest import Caller


def test_no_worker_serves_them(settings: Any, api: RedisStore) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"acme.mail": {"max_attempts": 2}}}
    topics, _ = startup.choose_topics("all")
    assert "default" in topics
    assert not {"mail", "acme.mail"} & {*topics}
    assert "acme.mail" in registry.known_topics()
    for name in ("mail", "acme.mail", "acme.other"):
        with pytest.raises(ConfigurationError, match="over HTTP"):
            startup.choose_topics(name)


def test_nobody_is_warned_that_no_worker_serves_them(caller: Caller, api: RedisStore) -> None:
    caller.send("mail")
    caller.send("default", task="tests.app.tasks.record", args=[1])
    assert [row.stats.topic for row in unserved_topics(api)] == ["default"]


def test_options_of_the_topic_hold(caller: Caller, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"mail": {"max_attempts": 1, "ttr": 7}}}
    caller.send()
    message = caller.next()
    assert message["ttr"] == 7
    answer = caller.post("/leases/nack", lease=message["lease"])
    assert answer.json()["state"] == "dead"


@pytest.mark.parametrize("wrong", ["mail", ["a b"], [""], [7], {"mail": 1}])
def test_a_setting_that_cannot_be_meant_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="API_TOPICS"):
        parse_settings({"REDIS": "redis://localhost", "API_TOPICS": wrong})
