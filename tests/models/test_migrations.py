"""The migrations make exactly the tables of the models, on any alias, and take them away again."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections

from django_delayq.core.exceptions import ConfigurationError
from django_delayq.management.sql_services import check_tables
from django_delayq.models import (
    ArchivedMessage,
    BulkOperation,
    OperatorAction,
    OutboxMessage,
    RecurringTask,
    TaskDay,
    TopicHour,
    UnarchivableEntry,
)
from tests.database_faults import without_table

pytestmark = pytest.mark.databases

MODELS = (
    ArchivedMessage,
    OutboxMessage,
    UnarchivableEntry,
    OperatorAction,
    BulkOperation,
    RecurringTask,
    TopicHour,
    TaskDay,
)
TABLES = {model._meta.db_table for model in MODELS}

both = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def tables(alias: str) -> set[str]:
    with connections[alias].cursor() as cursor:
        return TABLES & set(connections[alias].introspection.table_names(cursor))


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    call_command("makemigrations", "--check", "--dry-run", stdout=StringIO())


@both
@pytest.mark.parametrize("alias", ["default", "other"])
def test_all_tables_go_and_come_back(alias: str) -> None:
    assert tables(alias) == TABLES
    try:
        call_command("migrate", "django_delayq", "zero", database=alias, verbosity=0)
        assert tables(alias) == set()
    finally:
        call_command("migrate", "django_delayq", database=alias, verbosity=0)
    assert tables(alias) == TABLES


@both
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_missing_table_is_named(model: Any) -> None:
    with (
        without_table(model),
        pytest.raises(ConfigurationError, match=f"no table {model._meta.db_table}"),
    ):
        check_tables()
    check_tables()


@both
def test_the_database_to_migrate_is_named(settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "DATABASE": "other"}
    check_tables()
    call_command("migrate", "django_delayq", "zero", database="other", verbosity=0)
    try:
        with pytest.raises(ConfigurationError, match="migrate django_delayq --database other"):
            check_tables()
    finally:
        call_command("migrate", "django_delayq", database="other", verbosity=0)
