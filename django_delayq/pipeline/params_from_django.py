"""Between a Django project and the pipeline: parameters from its settings, and settings where there
is no project.

Only the driver has Django set up. Executors know Params and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from django.conf import settings as django_settings
from django.db import connections

from ..core.conf import get_settings
from ..store.connection import url_of
from .job_errors import Refused
from .params import SECRET_NAME, Database, Params, Redis, Secret
from .session import private_folder


@contextmanager
def parameters(
    *,
    database_secret: str = "",
    redis_secret: str = "",
    elsewhere: bool = False,
    needs_redis: bool = True,
    **rest: Any,
) -> Iterator[Params]:
    """The parameters for this project's settings; `rest` is for Params. Raises Refused,
    ConfigurationError.

    Without references the secrets are written to files that only this user can read and that are
    removed with the context. That is right for a master on this machine. The executors of a cluster
    need references (`env:NAME`, `file:/path`) that they can resolve: with `elsewhere`, parameters
    without them are refused. A job that does not speak to Redis needs none to it (`needs_redis`).
    """
    entry = connections[get_settings().database].settings_dict
    if elsewhere:
        missing = ["--database-secret"] if entry.get("PASSWORD") and not database_secret else []
        missing += ["--redis-secret"] if needs_redis and not redis_secret else []
        if missing:
            raise Refused(
                f"Other machines cannot see the settings of this one: give "
                f"{' and '.join(missing)}, each as env:NAME (set on the driver and on every "
                f"executor) or file:/path. It refers to the password of the database, or to the "
                f"URL of Redis."
            )
    with private_folder() as folder:
        settings = get_settings()
        password = Secret(database_secret) or _kept(folder, "database", entry.get("PASSWORD") or "")
        url, after = Secret(redis_secret), Secret()
        # Other machines cannot read a file of this one; there a job ends when the store moves.
        if not elsewhere:
            url = url or _kept(folder, "redis", url_of(settings))
            after = _kept(folder, "redis_next", settings.redis_next)
        # DELAYQ without its secrets, as values that JSON can hold.
        options = {
            field.name.upper(): getattr(settings, field.name)
            for field in fields(settings)
            if field.repr and field.name not in ("topics", "database")
        }
        options["TOPICS"] = {
            topic: {name: value for name, value in asdict(told).items() if value is not None}
            for topic, told in settings.topics.items()
        }
        yield Params(
            database=_database(entry, password),
            redis=Redis(url, options, after),
            encrypted=bool(settings.encryption_keys),
            **rest,
        )


def set_up(params: Params) -> None:
    """Set Django up from parameters where no project has: for `python -m
    django_delayq.pipeline`."""
    import django

    if not django_settings.configured:
        database = params.database
        if database.vendor == "mysql":
            from .sources.databases import mysql_driver

            mysql_driver()
        django_settings.configure(
            DATABASES={"default": {**database.resolved(), "TIME_ZONE": database.zone}},
            INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_delayq"],
            DELAYQ={**params.redis.resolved(), "DATABASE": "default"},
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
            USE_TZ=True,
            TIME_ZONE=database.zone,
        )
    django.setup()


def _kept(folder: Path, name: str, secret: str) -> Secret:
    if not secret:
        return Secret()
    path = folder / name
    path.touch(0o600, exist_ok=False)
    path.write_text(secret, encoding="utf-8")
    return Secret(f"file:{path}")


def _database(entry: Mapping[str, Any], password: Secret) -> Database:
    from ..models import ArchivedMessage, OutboxMessage

    name = str(entry["NAME"])
    if entry["ENGINE"].endswith("sqlite3"):
        if ":memory:" in name or "mode=memory" in name:
            raise Refused(
                "The archive is in the memory of this process, where Spark cannot read it: use a "
                "database file."
            )
        if not name.startswith("file:"):
            name = str(Path(name).absolute())
    options = entry.get("OPTIONS") or {}
    if found := next((key for key in options if re.search(SECRET_NAME, str(key))), None):
        raise Refused(
            f"The database's OPTIONS[{found!r}] looks like a secret and would be seen: use "
            f"PASSWORD for it."
        )
    # What JSON cannot hold, an isolation level or a class, is for writers.
    return Database(
        engine=entry["ENGINE"],
        name=name,
        table=ArchivedMessage._meta.db_table,
        outbox=OutboxMessage._meta.db_table,
        host=entry.get("HOST") or "",
        port=str(entry.get("PORT") or ""),
        user=entry.get("USER") or "",
        password=password,
        options={key: value for key, value in options.items() if _is_json(value)},
        zone=connections[get_settings().database].timezone_name,
    )


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
