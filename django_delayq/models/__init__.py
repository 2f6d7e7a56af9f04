"""The SQL side: the archive, the outbox, and what operators did. All of it lives in
DELAYQ["DATABASE"]."""

from __future__ import annotations

from ..core.message import Final
from .archived import ArchivedMessage, UnarchivableEntry
from .hourly_rows import TaskDay, TopicHour
from .lake_batch import BatchState, Forecast, ForecastCount, ForecastUnit, LakeBatch
from .manager import DelayQManager
from .operator_action import BulkKind, BulkOperation, BulkStatus, Dashboard, OperatorAction
from .outbox_message import OutboxMessage, OutboxStatus

__all__ = [
    "ArchivedMessage", "Final", "UnarchivableEntry",
    "BulkKind", "BulkOperation", "BulkStatus", "Dashboard", "OperatorAction",
    "OutboxMessage", "OutboxStatus",
    "TaskDay", "TopicHour",
    "BatchState", "Forecast", "ForecastCount", "ForecastUnit", "LakeBatch",
    "DelayQManager",
]  # fmt: skip
