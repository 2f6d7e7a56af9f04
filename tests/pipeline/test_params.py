"""Parameters: everything a job is told, and no secret."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from django_delayq.core.conf import get_settings
from django_delayq.core.exceptions import ConfigurationError
from django_delayq.pipeline import params_from_django
from django_delayq.pipeline.job_errors import Refused
from django_delayq.pipeline.params import Database, ExportOptions, Params, Redis, Secret, Storage
from tests.pipeline.outside import plain_environment

DATABASE = Database(engine="django.db.backends.postgresql", name="shop", table="t")


# Secrets


def test_a_secret_is_found_in_the_environment_or_in_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HERE", "hunter2")
    (tmp_path / "there").write_text("hunter3\n")
    assert Secret("env:HERE").resolve() == "hunter2"
    assert Secret(f"file:{tmp_path}/there").resolve() == "hunter3"
    assert Secret().resolve() == ""


@pytest.mark.parametrize("ref", ["env:NOWHERE", "file:/nowhere/secret"])
def test_a_reference_that_leads_nowhere_is_named(ref: str) -> None:
    with pytest.raises(ConfigurationError, match=ref):
        Secret(ref).resolve()


def test_a_secret_itself_is_no_reference_and_is_not_repeated() -> None:
    for make in (
        lambda: Secret("hunter2"),
        lambda: Params.decode(_file(password='{"ref": "hunter2"}')),
    ):
        with pytest.raises(ConfigurationError, match="never given itself") as refused:
            make()
        assert "hunter2" not in str(refused.value)


# Encoding


def _file(password: str = "{}", more: str = "") -> bytes:
    database = f'{{"engine": "e", "name": "n", "table": "t", "password": {password}}}'
    return f'{{"database": {database}{more}}}'.encode()


def test_what_is_written_is_read() -> None:
    params = Params(
        database=DATABASE,
        redis=Redis(Secret("env:R"), {"PREFIX": "shop"}),
        lake=Storage("/l"),
        job={"batch": 7},
    )
    assert Params.decode(params.encode()) == params


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", _file(more=', "lkae": "x"'), _file(password='{"ref": "", "x": 1}')]
)
def test_what_is_no_file_of_parameters_is_refused(raw: bytes) -> None:
    with pytest.raises(ConfigurationError, match="The parameters cannot be read"):
        Params.decode(raw)


def test_options_of_a_job_are_checked() -> None:
    params = Params(database=DATABASE, job={"batch": 7})
    assert params.options(ExportOptions).batch == 7
    for job in ({"btach": 7}, {"batch": 0}, {"batch": "x"}, {"prune": 60}):
        with pytest.raises(Refused, match="options of the job"):
            Params(database=DATABASE, job=job).options(ExportOptions)


def test_a_period_is_two_instants() -> None:
    params = Params(database=DATABASE, since="2026-01-31T09:00:00+01:00")
    assert params.period() == (datetime(2026, 1, 31, 8, tzinfo=timezone.utc), None)


@pytest.mark.parametrize("since", ["2026-01-31T09:00:00", "2026-01-31", "yesterday"])
def test_a_time_that_is_none_or_several_is_refused(since: str) -> None:
    with pytest.raises(Refused, match="since is"):
        Params(database=DATABASE, since=since).period()


# From a project


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An entry of DATABASES that a test may change."""
    entry: dict[str, Any] = {
        "ENGINE": "django.db.backends.postgresql", "NAME": "shop", "USER": "u", "PASSWORD": "hunter2", "HOST": "h",
        "PORT": 5432, "OPTIONS": {"sslmode": "verify-full"}, "TIME_ZONE": None,
    }  # fmt: skip
    monkeypatch.setattr(connections["default"], "settings_dict", entry)
    return entry


@pytest.mark.usefixtures("delayq")
def test_secrets_of_the_project_lie_in_files_of_this_user_that_go(
    entry: Mapping[str, Any], settings: Any
) -> None:
    with params_from_django.parameters() as params:
        path = Path(params.database.password.ref.removeprefix("file:"))
        assert params.database.password.resolve() == "hunter2"
        assert params.redis.url.resolve() == settings.DELAYQ["REDIS"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert b"hunter2" not in params.encode()
        assert settings.DELAYQ["REDIS"].encode() not in params.encode()
    assert not path.parent.exists()


@pytest.mark.usefixtures("delayq")
def test_no_secret_of_the_settings_stands_in_the_parameters(
    entry: Mapping[str, Any], settings: Any
) -> None:
    hook = "https://hooks.example.com/hunter4"
    settings.DELAYQ = {
        **settings.DELAYQ,
        "REDIS_NEXT": "redis://:hunter5@127.0.0.1:1/0",
        "METRICS_TOKEN": "hunter6",
        "ALERTS": [{"kind": "lag", "limit": 5, "to": [hook]}],
        "ALERT_SECRET": "hunter7",
        "ENCRYPTION_KEYS": ["QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY"],
    }
    assert "hunter" not in repr(get_settings()) and "QUJD" not in repr(get_settings())
    with params_from_django.parameters() as params:
        for secret in (b"hunter", b"QUJD"):
            assert secret not in params.encode()
        path = Path(params.redis.next.ref.removeprefix("file:"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        read = Params.decode(params.encode()).redis.settings()
        assert read.redis_next == "redis://:hunter5@127.0.0.1:1/0", "a job follows a move"
    with params_from_django.parameters(
        elsewhere=True, redis_secret="env:R", database_secret="env:D"
    ) as params:
        assert not params.redis.next, "others cannot read a file of this machine"


@pytest.mark.usefixtures("delayq")
def test_the_database_is_described_as_django_knows_it(entry: dict[str, Any]) -> None:
    entry["OPTIONS"] |= {"ssl": {"ca": "/ca.pem"}, "isolation_level": object()}
    with params_from_django.parameters(database_secret="env:DB") as params:
        database = params.database
    assert (database.vendor, database.name, database.user, database.host) == (
        "postgresql",
        "shop",
        "u",
        "h",
    )
    assert (database.port, database.zone) == ("5432", "UTC")
    assert database.password == Secret("env:DB")
    assert database.options == {"sslmode": "verify-full", "ssl": {"ca": "/ca.pem"}}
    assert database.outbox == "django_delayq_outboxmessage"


@pytest.mark.usefixtures("delayq")
def test_a_secret_among_the_options_is_refused(entry: dict[str, Any]) -> None:
    entry["OPTIONS"]["sslpassword"] = "hunter2"
    with pytest.raises(Refused, match="sslpassword") as refused, params_from_django.parameters():
        pass
    assert "hunter2" not in str(refused.value)


@pytest.mark.usefixtures("delayq")
def test_a_database_in_memory_is_refused(entry: dict[str, Any]) -> None:
    for name in (":memory:", "file:memorydb_default?mode=memory&cache=shared"):
        entry |= {"ENGINE": "django.db.backends.sqlite3", "NAME": name}
        with (
            pytest.raises(Refused, match="memory of this process"),
            params_from_django.parameters(),
        ):
            pass


@pytest.mark.usefixtures("delayq")
def test_the_file_of_a_database_is_found_from_another_folder(entry: dict[str, Any]) -> None:
    entry |= {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}
    with params_from_django.parameters() as params:
        assert params.database.name == str(Path("db.sqlite3").absolute())


@pytest.mark.usefixtures("delayq")
def test_the_address_of_a_file_of_sqlite_stays_as_it_is(entry: dict[str, Any]) -> None:
    entry |= {"ENGINE": "django.db.backends.sqlite3", "NAME": "file:/srv/shop.db?cache=private"}
    with params_from_django.parameters() as params:
        assert params.database.name == "file:/srv/shop.db?cache=private"


def test_times_without_a_zone_are_in_that_of_the_database_also_where_no_project_is(
    tmp_path: Path,
) -> None:
    code = (
        "import sys\nfrom django_delayq.pipeline import params_from_django\nfrom "
        "django_delayq.pipeline.params import Params\n"
        "params_from_django.set_up(Params.decode(sys.stdin.buffer.read()))\n"
        "from django.db import connection, models\n"
        "from django.db.models.expressions import RawSQL\n"
        "from django_delayq.models import ArchivedMessage\n"
        "with connection.schema_editor() as editor:\n    editor.create_model(ArchivedMessage)\n"
        "text = RawSQL(\"'2026-01-31 09:00:00'\", (), models.DateTimeField())\n"
        "print(ArchivedMessage.objects.aggregate(at=models.Max(text))['at'])\n"
        "print(connection.timezone_name)"
    )
    database = Database(
        "django.db.backends.sqlite3", str(tmp_path / "db"), "t", zone="America/New_York"
    )
    (tmp_path / "redis").write_text("redis://127.0.0.1:1")
    params = Params(database=database, redis=Redis(Secret(f"file:{tmp_path}/redis")))
    process = subprocess.run(
        [sys.executable, "-c", code], input=params.encode(), capture_output=True, timeout=60, check=False,
        env=plain_environment(),
    )  # fmt: skip
    assert process.stdout.decode().splitlines()[-1:] == ["America/New_York"], (
        process.stderr.decode()
    )


@pytest.mark.usefixtures("delayq")
def test_for_other_machines_each_missing_reference_is_named(entry: dict[str, Any]) -> None:
    with (
        pytest.raises(Refused, match="--database-secret and --redis-secret"),
        params_from_django.parameters(elsewhere=True),
    ):
        pass
    entry["PASSWORD"] = ""
    with (
        pytest.raises(Refused, match="give --redis-secret"),
        params_from_django.parameters(elsewhere=True),
    ):
        pass
    with params_from_django.parameters(elsewhere=True, redis_secret="env:R") as params:
        assert not params.database.password
