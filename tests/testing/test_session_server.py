"""Which server the tests of a project use."""

from __future__ import annotations

import pytest
from redis import Redis

from django_delayq.core import conf
from django_delayq.core.exceptions import ConfigurationError, StoreUnavailable
from django_delayq.testing import embedded, kit
from django_delayq.testing.session_server import URL_VARIABLE, session_url

find_anew = session_url.__wrapped__


def test_one_server_is_started_for_all_tests() -> None:
    assert session_url() == session_url()
    assert Redis.from_url(session_url()).ping()


def test_the_environment_may_name_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL_VARIABLE, "redis://tests.example:6379/9")
    assert find_anew() == "redis://tests.example:6379/9"


def test_a_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL_VARIABLE, "redis+cluster://tests.example:6379")
    with pytest.raises(ConfigurationError, match="name one server"):
        find_anew()


def test_without_a_server_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> None:
        raise ConfigurationError("No server to embed was found: install one")

    monkeypatch.setattr(embedded, "find_binary", nothing)
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    with pytest.raises(ConfigurationError, match=r"install one\. Or name a server in DELAYQ_TEST"):
        find_anew()


def test_a_server_that_does_not_answer_leaves_the_queue_of_the_project(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kit, "session_url", lambda: "redis://127.0.0.1:1/0")
    before = dict(conf.overrides)
    with pytest.raises(StoreUnavailable):
        kit.QueueUnderTest().start()
    assert conf.overrides == before
