"""A reliable delay queue for Django on Redis."""

from __future__ import annotations

from .client.decorator import DelayedTask, delayed_task
from .client.handle import Handle
from .client.topics import (
    list_messages,
    move_topic,
    pause_topic,
    resume_topic,
    topic_stats,
)
from .core.exceptions import (
    ChildDied,
    DelayQError,
    DuplicateMessage,
    EnqueueUnknown,
    InvalidMessage,
    IsolatedRunFailed,
    LeaseLost,
    MemoryLimitExceeded,
    MessageCancelled,
    MessageExpired,
    MessageFailed,
    MessageNotFound,
    MessageRunning,
    NoResult,
    NotWaiting,
    OutcomeUnknown,
    Reject,
    Retry,
    RuntimeLimitExceeded,
    Snooze,
    StoreError,
    StoreUnavailable,
    UnknownTopic,
    WaitTimeout,
)
from .core.message import Message, Page, Priority, State
from .core.task_report import TaskProgress
from .core.version import PACKAGE_VERSION
from .operators.purge import purge_topic
from .store.topic_state import TopicStats
from .tasks.backoff import constant, exponential, ladder
from .tasks.batch import Batch, BatchMessage
from .tasks.context import current_message

__version__ = PACKAGE_VERSION

__all__ = [
    # Declaring
    "delayed_task", "constant", "exponential", "ladder",
    # Inside a task
    "current_message", "Retry", "Snooze", "Reject",
    # Topics
    "list_messages", "move_topic", "pause_topic", "purge_topic", "resume_topic", "topic_stats",
    # Types
    "Batch", "BatchMessage", "DelayedTask", "Handle", "Message", "Page", "Priority",
    "TaskProgress", "State", "TopicStats",
    # Errors
    "ChildDied", "DelayQError", "DuplicateMessage", "EnqueueUnknown", "InvalidMessage",
    "IsolatedRunFailed", "LeaseLost", "MemoryLimitExceeded", "MessageCancelled", "MessageExpired",
    "MessageFailed", "MessageNotFound", "MessageRunning", "NoResult", "NotWaiting",
    "OutcomeUnknown", "RuntimeLimitExceeded", "StoreError", "StoreUnavailable", "UnknownTopic",
    "WaitTimeout",
]  # fmt: skip
