"""The jobs schedule and replay: rows or dead letters -> messages, each once.

Stands on lake/, sources/ and sinks/. Start with scheduling.py, the course of a load; schedule.py
runs it on Spark, send_file.py in one process. loads.py writes for all.
"""

from __future__ import annotations

__all__ = [
    "json_values", "loads", "message_frames", "messages", "pieces", "replay", "replay_frames",
    "row_files", "row_messages", "schedule", "schedule_source", "scheduling", "send_file",
    "task_specs",
]  # fmt: skip
