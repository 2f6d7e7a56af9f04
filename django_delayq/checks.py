"""System checks. Those that connect run with `check --deploy` and when a worker starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings as django_settings
from django.core import checks
from django.core.checks import CheckMessage, Error, register
from django.utils.module_loading import import_string

from .conf import get_settings
from .exceptions import ConfigurationError, DelayQError
from .store import get_store
from .store.inspection import CLOCK_SKEW, OLDEST_VERSION, ServerReport, inspect_server


@register("delayq")
def check_settings(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """DELAYQ can be read and names things that exist."""
    try:
        settings = get_settings()
        if settings.redis:
            get_store()
    except ConfigurationError as error:
        return [Error(str(error), id="delayq.E001")]
    found: list[CheckMessage] = []
    if not settings.redis:
        hint = 'Name a CACHES entry of django-redis or a URL: DELAYQ = {"REDIS": "redis://127.0.0.1:6379/0"}.'
        found.append(Error('DELAYQ["REDIS"] is missing.', hint=hint, id="delayq.E002"))
    if settings.database not in django_settings.DATABASES:
        found.append(
            Error(f'DELAYQ["DATABASE"] is {settings.database!r}, which is not in DATABASES.', id="delayq.E003")
        )
    if settings.redact and (problem := _import_problem(settings.redact)):
        found.append(Error(f'DELAYQ["REDACT"] is {settings.redact!r}: {problem}.', id="delayq.E004"))
    return found


def _import_problem(path: str) -> str:
    try:
        return "" if callable(import_string(path)) else "not a function"
    except ImportError as error:
        return f"it cannot be imported ({error})"


@register("delayq", deploy=True)
def check_server(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Redis keeps what it is given."""
    if check_settings():
        return []
    try:
        reports = inspect_server(get_store())
    except DelayQError as error:
        return [Error(str(error), id="delayq.E010")]
    return check_reports(reports)


def check_reports(reports: Sequence[ServerReport]) -> list[CheckMessage]:
    """The findings about servers that have been looked at."""
    return [finding for report in reports for finding in (*_memory(report), *_safety(report))]


def _memory(report: ServerReport) -> list[CheckMessage]:
    if report.eviction is None:
        message = "Redis does not tell its maxmemory-policy (CONFIG is forbidden): make sure that it is noeviction."
        return [checks.Warning(message, id="delayq.W015")]
    if report.eviction == "noeviction":
        return []
    message = f"Redis' maxmemory-policy is {report.eviction}: it deletes messages when its memory is full."
    hint = "CONFIG SET maxmemory-policy noeviction, and in redis.conf."
    if report.maxmemory:
        return [Error(message, hint=hint, id="delayq.E011")]
    return [checks.Warning(message, hint=hint, id="delayq.W011")]


def _safety(report: ServerReport) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if not report.aof:
        message = "Redis does not write an append-only file: a restart loses the messages since the last snapshot."
        found.append(checks.Warning(message, hint="CONFIG SET appendonly yes, and in redis.conf.", id="delayq.W012"))
    if report.version < OLDEST_VERSION:
        oldest = ".".join(str(part) for part in OLDEST_VERSION)
        found.append(Error(f"{report.name} is too old: {oldest} or newer is needed.", id="delayq.E013"))
    if abs(report.skew_ms) > CLOCK_SKEW * 1000:
        message = f"Redis' clock and this machine's differ by {report.skew_ms / 1000:.1f} s; Redis' clock decides."
        found.append(checks.Warning(message, hint="Run NTP on both.", id="delayq.W014"))
    return found
