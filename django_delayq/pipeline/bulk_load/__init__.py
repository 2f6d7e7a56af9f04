"""The jobs that load many messages: schedule and replay.

Start with schedule.py; loads.py writes the messages, each once.
"""

from __future__ import annotations

__all__ = [
    "json_columns", "json_lines", "loads", "messages", "rejects", "replay", "replay_frames",
    "replay_marks", "schedule", "schedule_frames", "schedule_source", "task_specs",
]  # fmt: skip
