"""The jobs schedule and replay: rows or dead letters -> messages, each once.

Stands on lake/, sources/ and sinks/. Start with schedule.py; loads.py writes for both jobs.
"""

from __future__ import annotations

__all__ = [
    "json_columns", "loads", "messages", "replay", "replay_frames", "replay_marks", "schedule",
    "schedule_frames", "schedule_source", "task_specs",
]  # fmt: skip
