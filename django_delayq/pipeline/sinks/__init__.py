"""Where the pipeline writes from executors: the queue."""

from __future__ import annotations
