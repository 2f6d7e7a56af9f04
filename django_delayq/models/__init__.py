"""The tables, all of them in the database DELAYQ["DATABASE"].

May import core only. Start with archived.py (what has ended) and outbox_message.py (durable
messages).
"""

from __future__ import annotations

from ..core.message import Final
from .alert import Alert, AlertDelivery
from .api_token import ApiRight, ApiToken
from .archived import ArchivedMessage, UnarchivableEntry
from .audit_run import AuditRun
from .hourly_rows import BusiestTask, DayTotal, HourTotal, TaskDay, TopicHour
from .lake_batch import Forecast, ForecastCount, ForecastUnit, LakeBatch
from .manager import DelayQManager
from .operator_action import (
    BulkKind,
    BulkMessage,
    BulkOperation,
    BulkStatus,
    Dashboard,
    OperatorAction,
)
from .outbox_message import OutboxMessage, OutboxStatus
from .recurring_task import RecurringTask

__all__ = [
    "ApiRight", "ApiToken",
    "ArchivedMessage", "Final", "UnarchivableEntry",
    "BulkKind", "BulkMessage", "BulkOperation", "BulkStatus", "Dashboard", "OperatorAction",
    "OutboxMessage", "OutboxStatus", "RecurringTask",
    "BusiestTask", "DayTotal", "HourTotal", "TaskDay", "TopicHour",
    "Alert", "AlertDelivery", "AuditRun",
    "Forecast", "ForecastCount", "ForecastUnit", "LakeBatch",
    "DelayQManager",
]  # fmt: skip
