"""System checks, those with --deploy against real servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, run_checks
from django.core.management import call_command
from redis import Redis

from django_delayq import checks, delayed_task
from django_delayq.checks import (
    check_aliases,
    check_database,
    check_recurring,
    check_reports,
    check_server,
    check_settings,
)
from django_delayq.models import RecurringTask
from django_delayq.outbox.ticker import Ticker
from django_delayq.store import inspection
from django_delayq.store.inspection import ServerReport
from django_delayq.store.store import RedisStore
from tests.database_faults import without_table
from tests.servers import Server

GOOD = ServerReport("Redis 7.0.15", (7, 0, 15), "noeviction", 0, True, "everysec", 0.4)


@pytest.fixture(autouse=True)
def _old_servers_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of these tests may have the holes that W010 is about (tests/test_security.py)."""
    monkeypatch.setattr(inspection, "LUA_FLOORS", ())
    monkeypatch.setattr(inspection, "VALKEY_LUA_FLOORS", ())


def ids(found: list[CheckMessage]) -> list[str]:
    return [str(message.id) for message in found]


# Recurring tasks


@pytest.mark.django_db(transaction=True)
def test_a_recurring_task_that_nobody_enqueues_is_w023(
    delayq: RedisStore, nothing_recurs: dict[str, Any]
) -> None:
    assert check_recurring() == []
    delayed_task(name="recurring.task", every=60)(lambda: None)
    (found,) = check_recurring()
    assert ids([found]) == ["delayq.W023"]
    assert "recurring.task" in found.msg
    Ticker(delayq).run_once()
    assert check_recurring() == []


@pytest.mark.django_db
def test_w023_waits_for_the_migration(delayq: RedisStore, nothing_recurs: dict[str, Any]) -> None:
    delayed_task(name="recurring.task", every=60)(lambda: None)
    with without_table(RecurringTask):
        assert check_recurring() == []


# Settings


def test_good_settings(delayq: RedisStore) -> None:
    assert check_settings() == []


@pytest.mark.parametrize(
    ("delayq_settings", "words"),
    [
        ({"REDSI": "redis://x"}, "DELAYQ has no option REDSI. Did you mean REDIS?"),
        ([], "DELAYQ must be a dict, not list"),
        ({"REDIS": "nowhere"}, "'nowhere': neither a URL nor an entry of CACHES"),
        ({"REDIS": "default"}, "is not a django-redis cache"),
        ({"REDIS": "http://x"}, "use one of redis, rediss, unix"),
        ({"REDIS": 5}, 'DELAYQ["REDIS"] must be'),
        ({"REDIS": {"host": "x"}}, 'DELAYQ["REDIS"] must be'),
        ({"REDIS": "redis://x", "PREFIX": None}, 'DELAYQ["PREFIX"]'),
        ({"REDIS": "redis://x", "TTR": None}, 'DELAYQ["TTR"] must be'),
        ({"REDIS": "redis://x", "AFTER_COMMIT": "no"}, 'DELAYQ["AFTER_COMMIT"] must be'),
        ({"REDIS": "redis://x", "DATABASE": None}, 'DELAYQ["DATABASE"] must be'),
        (
            {"REDIS": "redis://x", "TTR": "5"},
            'DELAYQ["TTR"] must be a timedelta or a number of seconds, not str',
        ),
        ({"REDIS": "redis://x", "TOPICS": {"a b": {}}}, "'a b' cannot name a topic"),
        (
            {"REDIS": "redis://x", "TOPICS": {"a": {"partitions": 0}}},
            "must be from 1 to 256, not 0",
        ),
        ({"REDIS": "redis://x", "TOPICS": ["a"]}, "must be a dict of topic name"),
    ],
)
def test_wrong_settings_are_e001(settings: Any, delayq_settings: Any, words: str) -> None:
    settings.DELAYQ = delayq_settings
    (found,) = check_settings()
    assert found.id == "delayq.E001"
    assert words in found.msg


def test_missing_redis_is_e002(settings: Any) -> None:
    settings.DELAYQ = {}
    (found,) = check_settings()
    assert found.id == "delayq.E002"
    assert 'DELAYQ = {"REDIS": "redis://127.0.0.1:6379/0"}' in str(found.hint)


def test_another_database_than_the_default_is_w006(settings: Any) -> None:
    settings.DELAYQ = {"REDIS": "redis://x", "DATABASE": "other"}
    (found,) = check_database()
    assert (found.id, check_settings()) == ("delayq.W006", [])
    assert "transaction.atomic(using='other')" in str(found.hint)


def test_a_second_alias_is_w007(delayq: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_database() == []
    assert ids(check_aliases()) == ["delayq.W007"]
    monkeypatch.setattr(django_settings, "DATABASES", {"default": {}})
    assert check_aliases() == []


def test_unknown_database_is_e003(settings: Any) -> None:
    settings.DELAYQ = {"REDIS": "redis://x", "DATABASE": "nowhere"}
    (found,) = check_settings()
    assert found.id == "delayq.E003"
    assert "'nowhere', which is not in DATABASES" in found.msg


@pytest.mark.parametrize(
    "backend", ["django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache"]
)
def test_a_cache_whose_clear_deletes_all_messages_is_w005(settings: Any, backend: str) -> None:
    settings.CACHES = {
        "same": {"BACKEND": backend, "LOCATION": "redis://localhost:6379/1"},
        "other": {"BACKEND": backend, "LOCATION": "redis://127.0.0.1:6379/2"},
        "first": {"BACKEND": backend, "LOCATION": "redis://127.0.0.1"},
    }
    settings.DELAYQ = {"REDIS": "redis://:secret@127.0.0.1:6379/1"}
    (found,) = check_settings()
    assert (found.id, found.is_serious()) == ("delayq.W005", False)
    assert "cache.clear() of CACHES 'same' is FLUSHDB" in found.msg
    settings.DELAYQ = {"REDIS": "redis://127.0.0.1:6379/3"}
    assert check_settings() == []
    settings.DELAYQ = {"REDIS": "redis://127.0.0.1:6379"}
    assert "'first'" in check_settings()[0].msg


def test_an_alias_of_caches_is_w005_and_the_server_is_looked_at_all_the_same(
    settings: Any, server: Server
) -> None:
    settings.CACHES = {
        "queue": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
    }
    settings.DELAYQ = {"REDIS": "queue"}
    assert ids(check_settings()) == ["delayq.W005"]
    assert "delayq.W012" in ids(check_server())  # no append-only file


def test_settings_are_checked_without_a_connection(settings: Any) -> None:
    settings.DELAYQ = {"REDIS": "redis://127.0.0.1:1/0"}
    assert run_checks(tags=["delayq"]) == []


def test_manage_py_check_fails(settings: Any) -> None:
    settings.DELAYQ = {}
    with pytest.raises(Exception, match=r"delayq\.E002"):
        call_command("check", "--tag", "delayq")


# Servers: and what waits there, also in the outbox


pytestmark = pytest.mark.django_db


@contextmanager
def configured(server: Server, **options: str) -> Iterator[None]:
    """The server with other options for a while."""
    client = Redis(unix_socket_path=str(server.primaries[0].socket), decode_responses=True)
    names = {name: option.replace("_", "-") for name, option in zip(options, options, strict=True)}
    before = {name: client.config_get(names[name])[names[name]] for name in options}
    try:
        for name, value in options.items():
            client.config_set(names[name], value)
        yield
    finally:
        for name, value in before.items():
            client.config_set(names[name], value)
        client.close()


def test_server_that_keeps_everything(delayq: RedisStore, server: Server) -> None:
    with configured(server, appendonly="yes"):
        assert check_server() == []


@pytest.mark.usefixtures("nothing_recurs")
def test_server_checks_run_with_deploy_only(delayq: RedisStore) -> None:
    assert ids(run_checks(tags=["delayq"])) == []
    assert set(ids(run_checks(tags=["delayq"], include_deployment_checks=True))) == {
        "delayq.W007",
        "delayq.W012",
    }


def test_missing_aof_is_w012(delayq: RedisStore) -> None:
    (found,) = check_server()
    assert found.id == "delayq.W012"
    assert "a restart loses the messages since the last snapshot" in found.msg
    assert "CONFIG SET appendonly yes" in str(found.hint)


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "allkeys-random"])
def test_server_that_evicts_is_e011(delayq: RedisStore, server: Server, policy: str) -> None:
    with configured(server, appendonly="yes", maxmemory="900mb", maxmemory_policy=policy):
        (found,) = check_server()
    assert (found.id, found.is_serious()) == ("delayq.E011", True)
    assert f"maxmemory-policy is {policy}: it deletes messages" in found.msg


def test_eviction_without_a_limit_is_w011(delayq: RedisStore, server: Server) -> None:
    with configured(server, appendonly="yes", maxmemory="0", maxmemory_policy="allkeys-lru"):
        (found,) = check_server()
    assert (found.id, found.is_serious()) == ("delayq.W011", False)


def limited(server: Server, *rules: str) -> str:
    """The URL of a user with these rights."""
    with Redis(unix_socket_path=str(server.primaries[0].socket)) as client:
        client.execute_command(
            "ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", *rules
        )
    return server.url.replace("redis://", "redis://limited:secret@")


def test_user_without_config_is_told_what_info_tells(
    settings: Any, delayq: RedisStore, server: Server
) -> None:
    """INFO has the policy too."""
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": limited(server, "-config")}
    with configured(server, appendonly="yes"):
        assert check_server() == []


def test_wrong_password_is_e010(settings: Any, delayq: RedisStore, server: Server) -> None:
    settings.DELAYQ = {
        **settings.DELAYQ,
        "REDIS": server.url.replace("redis://", "redis://limited:wrong@"),
    }
    limited(server)
    (found,) = check_server()
    assert found.id == "delayq.E010"
    assert "wrong@" not in found.msg


def test_server_that_is_away_is_e010(settings: Any) -> None:
    settings.DELAYQ = {"REDIS": "redis://:secret@127.0.0.1:1/0"}
    (found,) = check_server()
    assert found.id == "delayq.E010"
    assert "Cannot reach Redis at redis://:***@127.0.0.1:1/0" in found.msg


def test_wrong_settings_are_not_looked_up(settings: Any) -> None:
    settings.DELAYQ = {}
    assert check_server() == []


# Reports that the servers at hand do not give


def test_good_report_is_fine() -> None:
    assert check_reports([GOOD, GOOD]) == []


def test_policy_that_is_not_told_is_w015() -> None:
    assert ids(check_reports([GOOD._replace(eviction=None)])) == ["delayq.W015"]


def test_old_server_is_e013() -> None:
    (found,) = check_reports([GOOD._replace(version=(6, 0, 16), name="Redis 6.0.16")])
    assert (found.id, found.msg) == (
        "delayq.E013",
        "Redis 6.0.16 is too old: 6.2.0 or newer is needed.",
    )
    assert check_reports([GOOD._replace(version=(6, 2, 0))]) == []


def test_server_of_32_bits_is_e018() -> None:
    (found,) = check_reports([GOOD._replace(bits=32)])
    assert found.id == "delayq.E018"
    assert "Redis 7.0.15 is a 32-bit program" in found.msg


@pytest.mark.parametrize("skew_ms", [-5_001.0, 5_001.0, 3_600_000.0])
def test_clock_that_differs_is_w014(skew_ms: float) -> None:
    (found,) = check_reports([GOOD._replace(skew_ms=skew_ms)])
    assert found.id == "delayq.W014"
    assert f"differ by {skew_ms / 1000:.1f} s" in found.msg


def test_every_server_is_judged() -> None:
    assert (
        ids(check_reports([GOOD, GOOD._replace(aof=False), GOOD._replace(aof=False)]))
        == ["delayq.W012"] * 2
    )


@pytest.mark.usefixtures("nothing_recurs")
def test_findings_can_be_silenced(settings: Any, delayq: RedisStore) -> None:
    settings.SILENCED_SYSTEM_CHECKS = ["delayq.W012", "delayq.W007"]
    assert all(
        message.is_silenced()
        for message in run_checks(tags=["delayq"], include_deployment_checks=True)
    )


def test_replicas_and_no_min_replicas_to_write_is_w016() -> None:
    assert ids(check_reports([GOOD._replace(replicas=1, min_replicas=0)])) == ["delayq.W016"]
    assert ids(check_reports([GOOD._replace(sentinel=True, min_replicas=0)])) == ["delayq.W016"]
    assert check_reports([GOOD._replace(replicas=1, min_replicas=1)]) == []
    assert check_reports([GOOD._replace(replicas=0, min_replicas=0)]) == []
    assert (
        check_reports([GOOD._replace(replicas=1, min_replicas=None)]) == []
    )  # CONFIG is forbidden


def test_fewer_replicas_than_are_waited_for_is_w017() -> None:
    assert ids(check_reports([GOOD, GOOD._replace(replicas=2, min_replicas=1)], 1)) == [
        "delayq.W017"
    ]
    assert check_reports([GOOD._replace(replicas=2, min_replicas=1)], 2) == []


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("tests.stats.alerts.conftest.remember", []),
        ("ops@example.com", []),
        ("tests.stats.alerts.conftest.gone", ["delayq.E030"]),
        ("gone.alerts.page", ["delayq.E030"]),
        ("tests.stats.alerts.conftest.notices", ["delayq.E030"]),
        ("page", ["delayq.E001"]),
    ],
)
def test_targets_of_alerts_have_to_be_there(
    delayq: RedisStore, settings: Any, target: str, expected: list[str]
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "ALERTS": [{"kind": "dead", "to": target}]}
    assert ids(check_settings()) == expected


@pytest.mark.parametrize(
    ("vendor", "code", "found"),
    [
        ("postgresql", "python", ["delayq.W024"]),
        ("postgresql", "binary", []),
        ("sqlite", "python", []),
    ],
)
def test_psycopg_without_compiled_code_is_named(
    monkeypatch: pytest.MonkeyPatch, vendor: str, code: str, found: list[str]
) -> None:
    pq = pytest.importorskip("psycopg").pq
    monkeypatch.setattr(pq, "__impl__", code)
    monkeypatch.setattr(checks, "connections", {"default": SimpleNamespace(vendor=vendor)})
    assert [message.id for message in checks.check_driver()] == found


@pytest.mark.parametrize(
    ("version", "found"),
    [((10, 6, 22), []), ((10, 11, 4), ["delayq.W025"]), ((10, 11, 5), []), ((11, 8, 3), []),
     ((10, 8, 8), ["delayq.W025"])],
)  # fmt: skip
def test_a_mariadb_that_sorts_ids_by_their_last_bytes_is_a_warning(
    version: tuple[int, ...], found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for vendor, is_mariadb in (("mysql", True), ("mysql", False), ("sqlite", False)):
        here = SimpleNamespace(vendor=vendor, mysql_is_mariadb=is_mariadb, mysql_version=version)
        monkeypatch.setattr(checks, "connections", {"default": here})
        ids = [message.id for message in checks.check_order_of_ids()]
        assert ids == (found if is_mariadb else [])
