"""The SQL side: the archive, the outbox, and what operators did. All of it lives in DELAYQ["DATABASE"]."""

from __future__ import annotations

from .archived import ArchivedMessage, Final, UnarchivableEntry
from .manager import DelayQManager
from .operators import BulkKind, BulkOperation, BulkStatus, Dashboard, OperatorAction
from .outbox import OutboxMessage, OutboxStatus
from .pipeline import BatchState, Forecast, ForecastCount, ForecastUnit, LakeBatch
from .statistics import TaskDay, TopicHour

__all__ = [
    "ArchivedMessage", "Final", "UnarchivableEntry",
    "BulkKind", "BulkOperation", "BulkStatus", "Dashboard", "OperatorAction",
    "OutboxMessage", "OutboxStatus",
    "TaskDay", "TopicHour",
    "BatchState", "Forecast", "ForecastCount", "ForecastUnit", "LakeBatch",
    "DelayQManager",
]  # fmt: skip
